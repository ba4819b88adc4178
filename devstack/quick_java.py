"""A JAVA_HOME whose JVMs start in a third of the time: for tests, which start dozens of Spark applications and brokers.

Half of a start is the compiler's, the other half reads and checks classes. The `java` of this home compiles quickly
rather than well, which a JVM that works for seconds is better off with, and finds the classes of Spark and of Kafka in
an archive (https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html). Benchmarks and the demo take Java as
it is.
"""

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from confluent_kafka import Consumer, Producer

from devstack.java import find_java
from devstack.kafka import KafkaBroker
from devstack.kafka_jars import KAFKA_VERSION
from devstack.paths import BUILD, environment
from devstack.topics import create_topic

_JAVA = """#!/bin/sh
case "$*" in
*/pyspark/jars/*) archive={home}/spark.jsa ;;
*) archive={home}/kafka.jsa ;;
esac
if [ -f "$archive" ]; then
    set -- "-XX:SharedArchiveFile=$archive" "$@"
fi
exec {java} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr "$@"
"""

# What the tests' applications need most: a session, and Python that is fed with Arrow.
_APPLICATION = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
assert spark.range(10).mapInArrow(lambda batches: batches, "id long").count() == 10
spark.stop()
"""


def quick_java_home() -> Path | None:
    """Return the JAVA_HOME, or None if it was not made, or was made for other versions than are installed."""
    home = _home()
    return home if home.exists() else None


def make_quick_java() -> None:
    """Make the JAVA_HOME, unless it is there; that takes half a minute.

    :raises RuntimeError: a JVM that should have written an archive failed
    """
    home = _home()
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "quick-java.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if home.exists():
            return
        partial = Path(tempfile.mkdtemp(prefix="quick-java-", dir=BUILD))
        try:
            java = partial / "bin" / "java"
            java.parent.mkdir()
            java.write_text(_JAVA.format(home=shlex.quote(str(home)), java=shlex.quote(str(find_java()))))
            java.chmod(0o755)
            os.environ["JAVA_HOME"] = str(partial)
            with ThreadPoolExecutor() as pool:
                for made in [pool.submit(_archive_spark, partial), pool.submit(_archive_kafka, partial)]:
                    made.result()
            if missing := [name for name in ("spark.jsa", "kafka.jsa") if not (partial / name).exists()]:
                raise RuntimeError(f"{find_java()} wrote no archive of classes: {', '.join(missing)}")
            partial.chmod(0o755)
            partial.rename(home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _home() -> Path:
    return BUILD / f"quick-java-spark-{version('pyspark')}-kafka-{KAFKA_VERSION}"


def _archive_spark(home: Path) -> None:
    application = home / "application.py"
    application.write_text(_APPLICATION)
    conf = {
        "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={home}/spark.jsa",
        "spark.ui.enabled": "false",
        "spark.pyspark.python": sys.executable,
    }
    options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    done = subprocess.run([*submit, *options, str(application)], capture_output=True, text=True, env=environment())
    if done.returncode != 0:
        raise RuntimeError(f"the classes of Spark could not be archived:\n{done.stdout}{done.stderr}")


def _archive_kafka(home: Path) -> None:
    with KafkaBroker(java_options=[f"-XX:ArchiveClassesAtExit={home}/kafka.jsa"]) as broker:
        servers: dict[str, str | int] = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        create_topic(broker.bootstrap_servers, "topic", 1, {})
        producer = Producer({**servers, "enable.idempotence": True})
        producer.produce("topic", b"{}")
        producer.flush(30)
        consumer = Consumer({**servers, "group.id": "group", "auto.offset.reset": "earliest"})
        consumer.subscribe(["topic"])
        assert consumer.poll(30) is not None
        consumer.close()
        # The archive is written when the JVM ends by itself.
        broker.stop()
