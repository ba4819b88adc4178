"""Kafka's own ConsumerGroupCommand, and a topic that it and this package see alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.instants import milliseconds
from airflow_kafka_offsets.core.offsets import parse_scope
from airflow_kafka_offsets.rewinding.execution import execute_rewind
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from devstack.java import find_java
from devstack.kafka import KafkaBroker
from devstack.kafka_jars import KAFKA_JARS
from devstack.topics import create_topic, delete_records
from tests.support import clients
from tests.support.clients import commit_to_kafka

Offsets = dict[tuple[str, int], int]


# Records are a second apart, from here on; the last 40 of partition 0 are of now.
BEGUN = datetime.now(UTC).replace(microsecond=0) - timedelta(days=2)


COMMITTED = {0: 40, 1: 50, 2: 10, 3: 50, 5: 10}


WITH_COMMIT = "0,1,2,3,5"


_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


class ConsumerGroupTool:
    """`kafka-consumer-groups` in a JVM that all questions share: its start takes a hundred times what an answer
    takes.
    """

    def __init__(self, kafka: KafkaBroker) -> None:
        self._kafka = kafka
        self._said: dict[tuple[str, ...], str] = {}
        self._gateway: JavaGateway | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def __call__(self, *arguments: str) -> str:
        """Return what the tool prints.

        :raises RuntimeError: it ends with another status than 0
        """
        if arguments not in self._said:
            server = ("--bootstrap-server", self._kafka.bootstrap_servers)
            try:
                self._said[arguments] = self._run(*server, *arguments)
            except Py4JError:
                # It ended, and the JVM with it. One of its own has the status and the message.
                self._stop()
                self._said[arguments] = self._kafka.run_class(_TOOL, *server, *arguments)
        return self._said[arguments]

    def _run(self, *arguments: str) -> str:
        if self._gateway is None:
            port, self._process = launch_gateway(
                classpath=f"{KAFKA_JARS.fetched()}/*",
                java_path=str(find_java()),
                die_on_exit=True,
                return_proc=True,
            )
            self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        jvm = self._gateway.jvm
        array = self._gateway.new_array(jvm.String, len(arguments))
        for index, argument in enumerate(arguments):
            array[index] = argument
        printed = jvm.java.io.ByteArrayOutputStream()
        jvm.System.setOut(jvm.java.io.PrintStream(printed, True, "UTF-8"))
        getattr(jvm.org.apache.kafka.tools.consumer.group, _TOOL.rpartition(".")[2]).main(array)
        return str(printed.toString("UTF-8"))

    def _stop(self) -> None:
        if self._gateway is not None:
            self._gateway.shutdown()
            # The JVM ends at the end of its input, if it has not ended by itself.
            self._process.stdin.close()
            self._process.wait()
            self._gateway = None

    def new_offsets(self, group: str, *arguments: str) -> Offsets:
        """NEW-OFFSET by topic and partition."""
        said = self("--group", group, "--reset-offsets", "--dry-run", *arguments)
        found = re.findall(rf"^{group}\s+(\S+)\s+(\d+)\s+(\d+)\s*$", said, re.MULTILINE)
        return {(topic, int(partition)): int(offset) for topic, partition, offset in found}

    def exported(self, *arguments: str) -> str:
        """The CSV that it prints among its log."""
        said = self("--reset-offsets", "--dry-run", "--export", *arguments)
        return "".join(line + "\n" for line in said.splitlines() if re.fullmatch(r"(\S+,)?\S+,\d+,\d+", line))


class Subject:
    """A topic, what a consumer group committed of it, and the same positions in a group of ours, in both databases.

    | partition | log | committed | |
    | --- | --- | --- | --- |
    | 0 | [0, 100) | 40 | |
    | 1 | [20, 100) | 50 | its beginning was deleted |
    | 2 | [30, 60) | 10 | retention has passed the position |
    | 3 | [0, 50) | 50 | read to its end |
    | 4 | [0, 80) | - | never read |
    | 5 | [10, 10) | 10 | emptied |
    """

    def __init__(self, kafka: KafkaBroker, topic: str, engines: Mapping[str, Engine]) -> None:
        self.kafka, self.topic, self.group = kafka, topic, topic
        self.config: dict[str, Any] = {"bootstrap.servers": kafka.bootstrap_servers}
        create_topic(kafka.bootstrap_servers, topic, 6, {"retention.ms": "-1"})
        self._produce()
        for partition, beginning in {1: 20, 5: 10}.items():
            delete_records(kafka.bootstrap_servers, topic, beginning, partition)
        commit_to_kafka(kafka, self.group, topic, COMMITTED)
        for engine in engines.values():
            execute_rewind(
                preview_rewind(
                    "loader",
                    Scenario.of("import", self.group),
                    engine=engine,
                    kafka_config=self.config,
                    scope=parse_scope([topic]),
                ),
                engine=engine,
            )
        delete_records(kafka.bootstrap_servers, topic, 30, 2)

    def _produce(self) -> None:
        producer = clients.producer(self.kafka)
        for partition, count in enumerate((60, 100, 60, 50, 80, 10)):
            for number in range(count):
                timestamp = milliseconds(BEGUN + timedelta(seconds=number))
                producer.produce(self.topic, b"{}", partition=partition, timestamp=timestamp)
        for _ in range(40):
            producer.produce(self.topic, b"{}", partition=0)
        assert producer.flush(30) == 0
