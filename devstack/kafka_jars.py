"""Apache Kafka's jars."""

from pathlib import Path

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


def kafka_java(*options: str) -> list[str]:
    """Return the beginning of a command that runs a class of Kafka's: Java with its options, Kafka's jars and logging.

    :param options: more options of the JVM
    """
    jars = kafka_classpath()
    log4j = Path(jars).with_name("log4j2.xml")
    logging = [f"-Dlog4j2.configurationFile={log4j}", "-Dlog4j2.disableJmx=true"]
    return [str(find_java()), *options, *logging, "-cp", jars]


def kafka_classpath() -> str:
    """Return the class path with Kafka's jars. Missing jars are fetched.

    :raises RuntimeError: the download failed, and the message ends with Ivy's output; or a jar is not the recorded one
    """
    return f"{KAFKA_JARS.fetched()}/*"
