"""What is not encrypted is told: once in the log of a load, and by doctor, without stopping either but for Spark."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine

from airflow_kafka_offsets import DeltaTable, ParquetFiles
from airflow_kafka_offsets.core.addresses import host_in_plain_text
from airflow_kafka_offsets.core.warn import warn_once
from airflow_kafka_offsets.database.weakness import database_weakness, warn_of_weakness
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.config import weaknesses
from airflow_kafka_offsets.sinks.iceberg.format import _checked_url
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from airflow_kafka_offsets.sinks.lake.storage import object_store_options
from airflow_kafka_offsets.spark.properties import read_defaults

CLUSTER = "spark://master:7077"
PLAIN = {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "5ecret"}
PROTECTED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


class TestKafka:
    @pytest.mark.parametrize(
        ("config", "problem"),
        [
            (
                {"bootstrap.servers": "kafka:9092"},
                "security.protocol=plaintext: records cross the network to kafka:9092 in plain",
            ),
            (
                {
                    "bootstrap.servers": "localhost:1,PLAINTEXT://10.0.0.1:9092",
                    "security.protocol": "SASL_PLAINTEXT",
                    **PLAIN,
                },
                "security.protocol=sasl_plaintext: the user's name and password cross the network to "
                "PLAINTEXT://10.0.0.1:9092 in",
            ),
            (
                {
                    "bootstrap.servers": "kafka:9093",
                    "security.protocol": "SSL",
                    "ssl.endpoint.identification.algorithm": "none",
                },
                "The host names in the TLS certificates of the Kafka brokers are not verified",
            ),
            (
                {
                    "bootstrap.servers": "kafka:9093",
                    "security.protocol": "ssl",
                    "enable.ssl.certificate.verification": "false",
                },
                "TLS certificates of the Kafka brokers are not verified",
            ),
            (
                {
                    "bootstrap.servers": "kafka:9093",
                    "security.protocol": "sasl_ssl",
                    "sasl.mechanism": "OAUTHBEARER",
                    "sasl.oauthbearer.method": "oidc",
                    "sasl.oauthbearer.client.id": "me",
                    "sasl.oauthbearer.client.secret": "5ecret",
                    "sasl.oauthbearer.token.endpoint.url": "http://identity/token",
                },
                "sasl.oauthbearer.token.endpoint.url: the client's secret crosses the network to identity in plain",
            ),
        ],
    )
    def test_unencrypted_kafka_is_logged_once(
        self, config: dict[str, str], problem: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        warn_once.cache_clear()
        for _ in range(2):
            Cluster(config)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith(problem)

    @pytest.mark.parametrize(
        "config",
        [
            {"bootstrap.servers": "127.0.0.1:9092,[::1]:9092,localhost"},
            {"bootstrap.servers": "localhost:9092", "security.protocol": "sasl_plaintext"},
            {"bootstrap.servers": "kafka:9093", "security.protocol": "SASL_SSL"},
        ],
    )
    def test_safe_kafka_settings_give_no_warning(self, config: dict[str, str]) -> None:
        assert weaknesses(config) == []


class TestDatabase:
    def test_databases_on_this_machine_and_other_drivers_give_no_warning(self) -> None:
        local = SimpleNamespace(pgconn=SimpleNamespace(ssl_in_use=False), info=SimpleNamespace(
            host="/var/run/postgresql", get_parameters=dict
        ))  # fmt: skip
        assert database_weakness(local) is None
        assert database_weakness(object()) is None

    def test_a_name_of_this_machine_with_an_address_of_another(self) -> None:
        info = SimpleNamespace(host="localhost", get_parameters=lambda: {"hostaddr": "10.1.2.3"})
        problem = database_weakness(SimpleNamespace(pgconn=SimpleNamespace(ssl_in_use=False), info=info))
        assert problem is not None
        assert "cross the network to 10.1.2.3 in plain text" in problem

    def test_an_unencrypted_database_is_logged_once(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        warn_once.cache_clear()
        monkeypatch.setattr("airflow_kafka_offsets.database.weakness.database_weakness", lambda _: "in plain text")
        engine = create_engine("sqlite://", pool_size=2)
        warn_of_weakness(engine, "Connection 'warehouse'")
        with engine.connect(), engine.connect():
            pass
        assert [record.getMessage() for record in caplog.records] == ["Connection 'warehouse': in plain text"]
        engine.dispose()


class TestStorage:
    @pytest.mark.parametrize(
        ("connection", "problem"),
        [
            (
                {"conn_type": "aws", "extra": {"endpoint_url": "http://minio:9000"}},
                "Connection 'lake': rows and credentials cross the network to minio in plain text: use https",
            ),
            (
                {"conn_type": "generic", "extra": {"s3.endpoint": "HTTP://minio:9000"}},
                "Connection 'lake': rows and credentials cross the network to minio in plain text: use https",
            ),
            *(
                (
                    {"conn_type": "generic", "extra": extra},
                    "Connection 'lake': rows and credentials cross the network to blob.core.windows.net in plain text: "
                    "use https",
                )
                for extra in (
                    {"adls.connection-string": "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=k=="},
                    {"adls.connection-string": "AccountName=a;BlobEndpoint=http://blob.core.windows.net/a"},
                    {"adls.blob-storage-scheme": "http"},
                    {"adls.dfs-storage-scheme": "HTTP"},
                )
            ),
            *(
                (
                    {"conn_type": "generic", "extra": extra},
                    "Connection 'lake': TLS certificates of the object store are not verified",
                )
                for extra in (
                    {"allow_invalid_certificates": True},
                    {"allow_invalid_certificates": "True"},
                    {"aws_allow_invalid_certificates": 1},
                    {"AWS_ALLOW_INVALID_CERTIFICATES": "yes"},
                )
            ),
        ],
    )
    def test_an_unencrypted_store_is_logged_once(
        self, connection: dict[str, object], problem: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        warn_once.cache_clear()
        for _ in range(2):
            object_store_options("lake", {"lake": connection})
        assert caplog.messages == [problem]

    def test_an_emulator_on_this_machine_gives_no_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        warn_once.cache_clear()
        emulated = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=k;BlobEndpoint=http://127.0.0.1:10000/a"
        authority = {"adls.dfs-storage-scheme": "http", "adls.dfs-storage-authority": "127.0.0.1:10000"}
        object_store_options("lake", {"lake": {"conn_type": "generic", "extra": authority}})
        object_store_options("lake", {"lake": {"conn_type": "generic", "extra": {"connection_string": emulated}}})
        assert caplog.messages == []

    def test_an_unencrypted_catalog_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        warn_once.cache_clear()
        connection = {"conn_type": "generic", "schema": "http", "host": "catalog", "extra": {"type": "rest"}}
        engine = create_engine("sqlite://")
        IcebergTable("shop.orders", catalog_conn_id="lake").connect(engine, {"lake": connection})
        assert caplog.messages == [
            "The catalog of iceberg://default/shop.orders: rows and credentials cross the network to catalog in plain "
            "text: use https"
        ]

    def test_a_root_certificate_in_the_url_of_a_catalog_asks_for_tls(self) -> None:
        url = "postgresql+psycopg://user:p%40ss@db/catalog?sslrootcert=%2Fca.pem"
        assert _checked_url(url) == url.replace("?", "?sslmode=verify-full&")
        assert _checked_url(f"{url}&sslmode=require") == f"{url}&sslmode=require"

    @pytest.mark.parametrize(
        ("uri", "host"),
        [
            ("s3://lake/staging?scheme=http&endpoint_override=minio:9000", "minio"),
            ("s3://lake/staging?endpoint_override=http://minio:9000", "minio"),
            ("abfs://lake@account.dfs.core.windows.net/staging?enable_tls=false", "account.dfs.core.windows.net"),
            ("s3://lake/staging?scheme=http&endpoint_override=127.0.0.1:9000", None),
            ("s3://lake/staging?scheme=https&endpoint_override=minio:9000", None),
            ("s3://lake/staging", None),
            ("/staging", None),
        ],
    )
    def test_unencrypted_staging_is_known_by_its_uri(self, uri: str, host: str | None) -> None:
        assert host_in_plain_text(uri) == host

    @pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
    def test_an_unencrypted_store_of_the_environment_is_logged(
        self, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        warn_once.cache_clear()
        monkeypatch.setenv(name, "http://minio:9000/")
        engine = create_engine("sqlite://")
        for sink in (DeltaTable("s3://lake/a"), ParquetFiles("s3a://lake/b"), DeltaTable("/lake/c")):
            sink.connect(engine)
        IcebergTable("shop.orders", catalog={"type": "sql", "uri": "sqlite://"}).connect(engine)
        problem = "rows and credentials cross the network to minio in plain text: use https"
        uris = ("s3://lake/a", "s3a://lake/b", "s3://")
        assert caplog.messages == [f"The environment of {uri}: {problem}" for uri in uris]
        assert host_in_plain_text("s3://lake/staging") == "minio"
        assert host_in_plain_text("s3://lake/staging?endpoint_override=https://minio:9000") is None


class TestSpark:
    @pytest.fixture(autouse=True)
    def _cluster(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": CLUSTER}))
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))

    def test_a_cluster_that_protects_nothing_is_told_at_every_launch(self, caplog: pytest.LogCaptureFixture) -> None:
        SparkSubmitLauncher("spark_default").check("/shared")
        assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
            f"The traffic between the driver and the executors of {CLUSTER} is unprotected, including secrets of "
            "Spark.conf: set spark.authenticate and spark.network.crypto.enabled (or spark.ssl.rpc.enabled) to true "
            "in spark-defaults.conf, here and on the workers"
        ]

    def test_half_of_it_is_not_enough(self) -> None:
        for name in PROTECTED:
            problem = SparkSubmitLauncher("spark_default", conf={name: "true"}).weakness()
            assert problem is not None
            assert f"set {name}" not in problem

    def test_properties_of_the_load_count(self) -> None:
        assert SparkSubmitLauncher("spark_default", conf=PROTECTED).weakness() is None

    def test_the_machines_own_defaults_count(self, tmp_path: Path) -> None:
        (tmp_path / "spark-defaults.conf").write_text("# ours\nspark.authenticate true\nspark.ssl.rpc.enabled=true\n")
        assert SparkSubmitLauncher("spark_default").weakness() is None

    def test_local_master_gives_no_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
        assert SparkSubmitLauncher("spark_default").weakness() is None


def test_defaults_are_read_as_spark_reads_them() -> None:
    text = "# comment\n\nspark.a   one two\nspark.b=two\nspark.c: three\n  spark.d\tfour\n! another\nspark.e\n"
    assert read_defaults(text) == {
        "spark.a": "one two",
        "spark.b": "two",
        "spark.c": "three",
        "spark.d": "four",
        "spark.e": "",
    }
