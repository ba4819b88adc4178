"""Apache Kafka's jars."""

from devstack.java import find_java
from devstack.maven import Jars, Module

KAFKA_VERSION = "4.2.1"
SCALA_VERSION = "2.13"
LOG4J_VERSION = "2.25.4"

_LOG4J = """<Configuration status="WARN">
  <Appenders>
    <Console name="out"><PatternLayout pattern="%d{HH:mm:ss.SSS} %-5p %c{1} %m%n%throwable"/></Console>
  </Appenders>
  <Loggers><Root level="INFO"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""

# kafka-tools has the command line tools, with which tests and benchmarks compare. It is not transitive: it also depends
# on Kafka Connect with a web server, which nothing here needs. log4j-slf4j-impl makes the broker write a log.
KAFKA_JARS = Jars(
    f"kafka-{KAFKA_VERSION}",
    "Kafka's jars",
    (
        Module("org.apache.kafka", f"kafka_{SCALA_VERSION}", KAFKA_VERSION, transitive=True),
        Module("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
        Module("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
    ),
    "kafka-jars.sha256",
    {"log4j2.xml": _LOG4J},
)


# Of older brokers, by the beginning of their version. They log by Log4j 1, whose successor reload4j is.
_OLDER = {"3.9": "3.9.1", "3.5": "3.5.2", "2.8": "2.8.2"}

_LOG4J_1 = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{HH:mm:ss.SSS} %-5p %c{1} %m%n
"""


def kafka_jars(version: str | None = None) -> Jars:
    """Return the jars of a version of Kafka.

    :param version: one of `devstack.versions`; None is that of every day
    """
    full = _OLDER.get(version or "")
    if full is None:
        return KAFKA_JARS
    modules = (
        Module("org.apache.kafka", f"kafka_{SCALA_VERSION}", full, transitive=True),
        Module("org.slf4j", "slf4j-reload4j", "1.7.36", transitive=True),
    )
    return Jars(f"kafka-{full}", f"the jars of Kafka {full}", modules, "servers.sha256", {"log4j.properties": _LOG4J_1})


def kafka_java(*options: str, version: str | None = None) -> list[str]:
    """Return the beginning of a command that runs a class of Kafka's: Java with its options, Kafka's jars and logging.

    :param options: more options of the JVM
    :param version: one of `devstack.versions`; None is that of every day
    :raises RuntimeError: the download failed, or a jar is not the recorded one
    """
    jars = kafka_jars(version).fetched()
    logging = [
        f"-Dlog4j2.configurationFile={jars}/log4j2.xml",
        "-Dlog4j2.disableJmx=true",
        f"-Dlog4j.configuration=file:{jars}/log4j.properties",
    ]
    return [str(find_java()), *options, *logging, "-cp", f"{jars}/*"]
