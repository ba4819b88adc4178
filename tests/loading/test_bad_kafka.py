"""Kafka that does not answer, is another cluster, or is configured wrongly: a load says so."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Reading
from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.warn import warn_once
from airflow_kafka_offsets.exceptions import (
    ClusterChangedError,
    ConfigurationError,
    KafkaUnavailableError,
    ReadError,
    TopicRecreatedError,
    UnknownTopicError,
)
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.consumer import consumer_config
from airflow_kafka_offsets.kafka.reader import read
from airflow_kafka_offsets.loading.load import load
from airflow_kafka_offsets.spark.job import Launcher, StageJob
from devstack.kafka import KafkaBroker
from devstack.process import free_port, wait_until
from devstack.topics import create_topic
from tests.support import clients
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names, positions

pytestmark = pytest.mark.server


def test_unknown_topics_are_named(loader: Loader, topic: TopicFactory) -> None:
    with pytest.raises(UnknownTopicError, match=r"has no topic 'nowhere', topic 'nowhere-else'.*Check the spelling"):
        loader(topic(), "nowhere", "nowhere-else")

    assert loader.launcher.jobs == []


def test_an_unreachable_broker_is_explained() -> None:
    port = free_port()

    with pytest.raises(KafkaUnavailableError, match=rf"Kafka at 127\.0\.0\.1:{port} .*Connection refused"):
        Cluster({"bootstrap.servers": f"127.0.0.1:{port}"}, timeout=5).logs(["orders"])


def test_a_broker_that_speaks_no_tls_is_explained(kafka: KafkaBroker) -> None:
    config = {"bootstrap.servers": kafka.bootstrap_servers, "security.protocol": "SSL"}

    with pytest.raises((ConfigurationError, KafkaUnavailableError), match=r"SSL|ssl"):
        Cluster(config, timeout=5).logs(["orders"])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "no 'bootstrap.servers'"),
        ({"bootstrap.servers": "b:9", "plugin.library.paths": "evil.so"}, "sets plugin.library.paths"),
        ({"bootstrap.servers": "b:9", "sasl.kerberos.kinit.cmd": "rm"}, "sets sasl.kerberos.kinit.cmd"),
        ({"bootstrap.servers": "b:9", "ssl.engine.location": "evil.so"}, "sets ssl.engine.location"),
        ({"bootstrap.servers": "b:9", "ssl.providers": "default, /tmp/evil.so"}, "sets ssl.providers"),
        ({"bootstrap.servers": "b:9", "sasl.kerberos.principal": "me;id"}, "sets sasl.kerberos.principal"),
        ({"bootstrap.servers": "b:9", "sasl.kerberos.principal": "-X"}, "sets sasl.kerberos.principal"),
        ({"bootstrap.servers": "b:9", "sasl.kerberos.keytab": "$(id)"}, "sets sasl.kerberos.keytab"),
        ({"bootstrap.servers": "b:9", "ssl.providers\0": "evil.so"}, r"NUL character in 'ssl\.providers\\x00'"),
        ({"bootstrap.servers": "b:9", "enable.ssl.certificate.verification": "0\0"}, "NUL character in 'enable.ssl"),
        ({"bootstrap.servers": "b:9", "oauth_cb": print}, "sets oauth_cb"),
        ({"bootstrap.servers": "b:9", "no.such.key": "1"}, "no.such.key"),
        ({"bootstrap.servers": "b:9", "security.protocol": "sasl_sll"}, "sasl_sll"),
    ],
)
def test_a_kafka_configuration_that_cannot_be_used_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Cluster(config)


def test_names_of_kerberos_and_of_openssl_are_no_code(kafka: KafkaBroker) -> None:
    config = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "ssl.providers": "default, base",
        "sasl.kerberos.principal": "airflow/worker-1.example.org@EXAMPLE.ORG",
        "sasl.kerberos.keytab": "FILE:/etc/security/airflow.keytab",
    }

    assert Cluster(config).logs([]) == {}


@pytest.mark.parametrize("value", [False, "False", "f", "0", 0], ids=repr)
def test_certificates_that_are_not_verified_are_warned_about(
    kafka: KafkaBroker, caplog: pytest.LogCaptureFixture, value: object
) -> None:
    warn_once.cache_clear()
    Cluster({"bootstrap.servers": kafka.bootstrap_servers, "enable.ssl.certificate.verification": value})

    assert [
        message for message in caplog.messages if "TLS certificates of the Kafka brokers are not verified" in message
    ]


def test_a_recreated_topic_is_an_error_even_when_its_log_covers_the_position(  # P12
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))
    loader(name)
    admin = clients.admin(kafka)
    admin.delete_topics([name])[name].result()
    wait_until(lambda: name not in admin.list_topics(timeout=5).topics, 30, "the topic to be gone")
    create_topic(kafka.bootstrap_servers, name, 1, {})
    produce(kafka, name, names(0, 10))

    with pytest.raises(
        TopicRecreatedError, match=rf"{name}\[0\]: position 5 belongs to topic id .* offsets 0\.\.10 now"
    ):
        loader(name)


def test_another_cluster_is_an_error(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))
    loader(name)
    with loader.engine.begin() as conn:
        conn.execute(sa.text("UPDATE consumer_groups SET cluster_id = 'another'"))

    with pytest.raises(ClusterChangedError, match="belong to Kafka cluster 'another'; the connection leads to cluster"):
        loader(name)


class StopsTheBroker:
    """The real launcher, before whose read the broker is gone."""

    def __init__(self, launcher: Launcher, broker: KafkaBroker) -> None:
        self._launcher = launcher
        self._broker = broker

    def check(self, staging_dir: str | None) -> None:
        self._launcher.check(staging_dir)

    def __call__(self, job: StageJob) -> None:
        self._broker.stop()
        self._launcher(job)

    def cancel(self) -> None:
        self._launcher.cancel()

    def close(self) -> None:
        self._launcher.close()


def test_reading_that_stalls_says_where_and_why(postgres_loader: Loader) -> None:
    with KafkaBroker() as broker:
        create_topic(broker.bootstrap_servers, "orders", 1, {})
        produce(broker, "orders", names(0, 10))

        with pytest.raises(
            ReadError,
            match=r"orders\[0\]: no record came for 6 s at offset 0, 10 offsets before the end 10 .*Connection refused",
        ):
            load(
                postgres_loader.pipeline(["orders"], reading=Reading(idle_timeout=timedelta(seconds=6))),
                kafka_config={"bootstrap.servers": broker.bootstrap_servers},
                engine=postgres_loader.engine,
                launcher=StopsTheBroker(postgres_loader.launcher, broker),
            )

    assert positions(postgres_loader.engine) == {}


@pytest.mark.long  # tests/kafka/test_reader.py has it without a broker every day
def test_a_read_outlasts_polls_that_bring_nothing(tmp_path: Path) -> None:
    with KafkaBroker() as broker:
        create_topic(broker.bootstrap_servers, "orders", 1, {})
        produce(broker, "orders", names(0, 50_000))
        config = consumer_config({"bootstrap.servers": broker.bootstrap_servers}, "reader", "read_committed")
        batches = read(Slice(0, "orders", 0, 0, 50_000), config)
        count = next(batches).num_rows
        # What is prefetched runs out, and for a while nothing comes.
        broker.kill()
        broker.start()

        count += sum(batch.num_rows for batch in batches)

    assert count == 50_000
