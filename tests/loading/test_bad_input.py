"""Bad input is answered clearly, and before Spark starts where that is possible."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import (
    ClusterChangedError,
    ConfigurationError,
    KafkaUnavailableError,
    LedgerError,
    ReadError,
    RecordError,
    StagingError,
    TargetError,
    TopicRecreatedError,
    TransformError,
    UnknownTopicError,
)
from airflow_kafka_offsets.formats.json_format import Json
from airflow_kafka_offsets.hooks.spark import check_java
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.loading.load import load
from airflow_kafka_offsets.operators.rewind import KafkaRewindOperator
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.launcher import Launcher
from devstack.kafka import KafkaBroker
from devstack.process import free_port, wait_until
from devstack.topics import create_topic
from tests.support import clients
from tests.support.clients import produce
from tests.support.command_line import database_connection, kafka_connection
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, positions, rows

if TYPE_CHECKING:
    from airflow.sdk import Context

pytestmark = pytest.mark.server


def test_unknown_topics_are_named(loader: Loader, topic: TopicFactory) -> None:
    with pytest.raises(UnknownTopicError, match=r"has no topic 'nowhere', topic 'nowhere-else'.*Check the spelling"):
        loader(topic(), "nowhere", "nowhere-else")

    assert loader.launcher.jobs == []


def test_an_unreachable_broker_is_explained() -> None:
    port = free_port()

    with pytest.raises(KafkaUnavailableError, match=rf"Kafka at 127\.0\.0\.1:{port} .*Connection refused"):
        Cluster({"bootstrap.servers": f"127.0.0.1:{port}"}, timeout=2).logs(["orders"])


def test_a_broker_that_speaks_no_tls_is_explained(kafka: KafkaBroker) -> None:
    config = {"bootstrap.servers": kafka.bootstrap_servers, "security.protocol": "SSL"}

    with pytest.raises((ConfigurationError, KafkaUnavailableError), match=r"SSL|ssl"):
        Cluster(config, timeout=3).logs(["orders"])


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
    Cluster({"bootstrap.servers": kafka.bootstrap_servers, "enable.ssl.certificate.verification": value})

    assert [
        message for message in caplog.messages if "TLS certificates of the Kafka brokers are not verified" in message
    ]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"value_format": Json("id BIGNT")}, ConfigurationError, "near 'BIGNT'.*known types are"),
        ({"value_format": Json("id MAP<STRING,INT>")}, ConfigurationError, "unknown type 'MAP<STRING, INT>'"),
        ({"value_format": Json("_kafka_offset BIGINT")}, ConfigurationError, "'_kafka_offset' cannot be declared"),
        ({"transform": "nowhere.at.all"}, TransformError, "module 'nowhere.at' cannot be imported"),
        ({"transform": "json.nowhere"}, TransformError, "module 'json' has no function 'nowhere'"),
        ({"transform": "clean"}, TransformError, "write 'package.module.function'"),
        ({"start": "begining"}, ConfigurationError, "got start='begining'"),
        ({"on_data_loss": "ignore"}, ConfigurationError, "got on_data_loss='ignore'"),
        ({"on_busy": "explode"}, ConfigurationError, "got on_busy='explode'"),
        ({"max_records": 0}, ConfigurationError, "got max_records=0"),
        ({"isolation_level": "serializable"}, ConfigurationError, "got isolation_level='serializable'"),
        ({"group_id": ""}, ConfigurationError, "got group_id=''"),
        ({"lease": 60}, ConfigurationError, "lease must be a positive timedelta; got lease=60"),
    ],
)
def test_a_wrong_parameter_is_refused_with_what_was_received(
    postgres_loader: Loader, topic: TopicFactory, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        postgres_loader(topic(), **options)

    assert postgres_loader.launcher.jobs == []
    assert sa.inspect(postgres_loader.engine).get_table_names() == []


def test_a_target_that_lacks_a_column_is_refused_with_the_statement_that_adds_it(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    with loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT)"))

    with pytest.raises(TargetError, match=r"no column 'name' .*ALTER TABLE target ADD COLUMN name TEXT"):
        loader(name)

    assert loader.launcher.jobs == []


@pytest.mark.parametrize("table", ["", " ", None], ids=["empty", "blank", "none"])
def test_a_table_without_a_name_is_refused(inline_loader: Loader, topic: TopicFactory, table: Any) -> None:
    with pytest.raises(ConfigurationError, match="needs the name of a table; got table="):
        inline_loader(topic(), sink=SqlTable(table))


def test_a_schema_in_the_name_of_a_table_is_refused_where_it_would_be_created(
    inline_loader: Loader, topic: TopicFactory
) -> None:
    schema = sa.inspect(inline_loader.engine).default_schema_name
    meant = re.escape(f"SqlTable('orders', schema='{schema}')")
    with pytest.raises(ConfigurationError, match=f"no table '{schema}.orders'.*{meant}"):
        inline_loader(topic(), sink=SqlTable(f"{schema}.orders"))

    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql(f'CREATE TABLE "{schema}.orders" (id BIGINT, name TEXT)')
    inline_loader(topic(), sink=SqlTable(f"{schema}.orders"))


def test_a_target_of_other_types_is_refused(postgres_loader: Loader, topic: TopicFactory) -> None:
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id DATE, name BOOLEAN, needed INT NOT NULL)"))

    with pytest.raises(TargetError, match=r"'id' is DATE.*'name' is BOOLEAN.*needs a value for 'needed'"):
        postgres_loader(topic())


@pytest.fixture
def guest(postgres_loader: Loader) -> Iterator[Engine]:
    """A user who may connect and nothing else."""
    role = f"guest_{postgres_loader.engine.url.database}"
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text(f"CREATE ROLE {role} LOGIN PASSWORD 'guest'"))
        conn.execute(sa.text("REVOKE CREATE ON SCHEMA public FROM PUBLIC"))
    engine = sa.create_engine(postgres_loader.engine.url.set(username=role, password="guest"))
    yield engine
    engine.dispose()
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text(f"DROP OWNED BY {role}"))
        conn.execute(sa.text(f"DROP ROLE {role}"))


def made_ready(loader: Loader, topic: str, *statements: str) -> None:
    """Records, the state tables and a target, and what statements make of them."""
    produce(loader.kafka, topic, names(0, 3))
    initialize(loader.engine, Tables())
    with loader.engine.begin() as conn:
        for statement in ("CREATE TABLE target (id BIGINT, name TEXT)", *statements):
            conn.execute(sa.text(statement))


def test_a_user_who_may_not_create_tables_is_told_what_to_do(
    postgres_loader: Loader, guest: Engine, topic: TopicFactory
) -> None:
    with pytest.raises(LedgerError, match=r"cannot be created.*permission denied.*init --show-sql"):
        Loader(postgres_loader.kafka, guest, postgres_loader.launcher)(topic())


def test_a_user_who_may_not_insert_is_told_before_spark(
    postgres_loader: Loader, guest: Engine, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    made_ready(
        postgres_loader,
        name,
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {guest.url.username}",
    )

    with pytest.raises(TargetError, match="may not insert into table 'target'; GRANT INSERT ON target"):
        Loader(kafka, guest, postgres_loader.launcher)(name)

    assert postgres_loader.launcher.jobs == []


def test_a_user_who_may_not_write_the_state_is_told_before_spark(
    postgres_loader: Loader, guest: Engine, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    made_ready(
        postgres_loader,
        name,
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {guest.url.username}",
        f"GRANT INSERT ON target TO {guest.url.username}",
    )

    with pytest.raises(
        LedgerError, match=r"may not write to the state tables: permission denied for table consumer_groups. GRANT"
    ):
        Loader(kafka, guest, postgres_loader.launcher)(name)

    assert postgres_loader.launcher.jobs == []


@pytest.mark.parametrize(
    ("granted", "denied"),
    [
        ("CONNECT ON DATABASE {database}", "table offsets_schema_version"),
        ("ALL ON ALL TABLES IN SCHEMA public", "sequence offset_batches_batch_id_seq"),
    ],
    ids=["tables", "sequence"],
)
def test_rights_that_are_missing_in_the_state_tables_are_told(
    postgres_loader: Loader, guest: Engine, kafka: KafkaBroker, topic: TopicFactory, granted: str, denied: str
) -> None:
    name = topic()
    made_ready(
        postgres_loader,
        name,
        f"GRANT {granted.format(database=guest.url.database)} TO {guest.url.username}",
    )

    with pytest.raises(
        LedgerError, match=f"permission denied for {denied}.*need SELECT, INSERT, .*kafka-offsets doctor"
    ) as raised:
        Loader(kafka, guest, postgres_loader.launcher)(name)

    assert not raised.value.retriable
    assert postgres_loader.launcher.jobs == []


def test_rights_that_are_missing_for_a_rewind_are_told(
    postgres_loader: Loader, guest: Engine, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_loader(topic())
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", database_connection(guest))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", kafka_connection(postgres_loader.kafka))
    rewind = KafkaRewindOperator(
        task_id="rewind", group_id="loader", scenario="to-earliest", offsets_conn_id="warehouse"
    )
    instance = SimpleNamespace(dag_id="dag", task_id="rewind", run_id="run", map_index=-1, try_number=1)

    with pytest.raises(LedgerError, match=r"Group 'loader' was not rewound: permission denied .* need SELECT, INSERT"):
        rewind.execute(cast("Context", {"ti": instance}))


def test_a_schema_that_is_not_there_is_told(postgres_loader: Loader, topic: TopicFactory) -> None:
    with pytest.raises(LedgerError, match=r'schema "nowhere" does not exist\. CREATE SCHEMA nowhere'):
        postgres_loader(topic(), tables=Tables("nowhere"))


def test_a_table_with_security_for_its_rows_is_refused(
    postgres_loader: Loader, guest: Engine, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    made_ready(
        postgres_loader,
        name,
        "ALTER TABLE target ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY everyone ON target USING (true)",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {guest.url.username}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {guest.url.username}",
    )

    with pytest.raises(TargetError, match="Nothing was written into 'target': COPY FROM not supported with row-level"):
        Loader(kafka, guest, postgres_loader.launcher)(name)


def test_a_constraint_that_is_checked_at_commit_is_told_without_the_row(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [*names(0, 3), b'{"id": 99887766}', b'{"id": 99887766}'])
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT, name TEXT, UNIQUE (id) DEFERRABLE INITIALLY DEFERRED)"))

    with pytest.raises(
        TargetError, match=r"Batch 1 of group 'loader' was not committed.* duplicate key value violates"
    ) as raised:
        postgres_loader(name)

    assert "99887766" not in "".join(traceback.format_exception(raised.value))
    assert rows(postgres_loader.engine, "SELECT count(*) FROM target") == [(0,)]
    assert positions(postgres_loader.engine) == {}


def test_a_value_outside_its_column_is_named(postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, [*names(0, 5), b'{"id": 3000000000, "name": "big"}', *names(5, 5)])
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id INTEGER, name TEXT)"))

    with pytest.raises(RecordError, match=f"topic '{name}' partition 0 offset 5 .*column 'id'"):
        postgres_loader(name)

    assert rows(postgres_loader.engine, "SELECT count(*) FROM target") == [(0,)]
    assert positions(postgres_loader.engine) == {}


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("name TEXT CHECK (name <> 'bad')", "bad", "violates check constraint"),
        ("name TEXT UNIQUE", "name-3", "duplicate key value"),
        ("name VARCHAR(6)", "too-long", "value too long"),
        ("name TEXT", "nul\\u0000byte", "invalid byte sequence|null character"),
        ("name JSONB", "{", "invalid input syntax for type json"),
    ],
)
def test_a_row_that_postgres_refuses_is_traced_to_its_record(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, column: str, value: str, reason: str
) -> None:
    name = topic()
    good = [b'{"id": %d, "name": "%s"}' % (i, b"{}" if "JSONB" in column else b"n%d" % i) for i in range(7)]
    twin = [b'{"id": 7, "name": "name-3"}'] if "UNIQUE" in column else []
    produce(kafka, name, [*good, *twin, f'{{"id": 8, "name": "{value}"}}'.encode(), *good[:1]])
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text(f"CREATE TABLE target (id BIGINT, {column})"))

    with pytest.raises(RecordError, match=f"partition 0 offset {7 + len(twin)} .*({reason})"):
        postgres_loader(name, slice_offsets=100)

    assert rows(postgres_loader.engine, "SELECT count(*) FROM target") == [(0,)]
    assert positions(postgres_loader.engine) == {}


@pytest.mark.parametrize("key", [(), ("id",)], ids=["appended", "upserted"])
@pytest.mark.parametrize("bad", [0, 1, 4])
@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_lines_within_values_do_not_hide_which_row_postgres_refuses(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, bad: int, key: tuple[str, ...]
) -> None:
    name = topic()
    texts = ["a\nb\r\nc\rd\r", "\n\n", "", "e\r\rf\r\n\n", "\ng\n", "h"]
    produce(
        kafka,
        name,
        [
            json.dumps({"id": i, "name": text, "doc": "{" if i == bad else '{"a":\n1}', "more": text}).encode()
            for i, text in enumerate(texts)
        ],
    )
    with inline_loader.engine.begin() as conn:
        conn.execute(
            sa.text(
                "CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT, doc JSONB, more TEXT,"
                " _kafka_topic TEXT, _kafka_partition INT, _kafka_offset BIGINT)"
            )
        )

    with pytest.raises(RecordError, match=f"partition 0 offset {bad} .*invalid input syntax for type json"):
        inline_loader(
            name,
            sink=SqlTable("target", upsert_key=key),
            value_format=Json("id BIGINT, name STRING, doc STRING, more STRING"),
        )


@pytest.mark.parametrize("bad", range(5))
def test_a_trigger_that_writes_does_not_hide_which_row_sqlite_refuses(
    tmp_path: Path, kafka: KafkaBroker, topic: TopicFactory, bad: int
) -> None:
    name = topic()
    produce(kafka, name, [*names(0, bad), b'{"id": 1000}', *names(bad, 4 - bad)])
    engine = sa.create_engine(f"sqlite:///{tmp_path}/w.db")
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE target (id BIGINT CHECK (id < 1000), name TEXT)")
        conn.exec_driver_sql("CREATE TABLE seen (id BIGINT)")
        conn.exec_driver_sql("CREATE TRIGGER see AFTER INSERT ON target BEGIN INSERT INTO seen VALUES (new.id); END")

    with pytest.raises(RecordError, match=f"partition 0 offset {bad} .*CHECK constraint failed"):
        Loader(kafka, engine, InlineLauncher())(name)

    assert rows(engine, "SELECT count(*) FROM seen") == [(0,)]
    engine.dispose()


def test_a_row_that_sqlite_refuses_is_traced_to_its_record(
    tmp_path: Path, postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [*names(0, 7), *names(3, 1), *names(9, 1)])
    engine = sa.create_engine(f"sqlite:///{tmp_path}/w.db")
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT UNIQUE, name TEXT)"))

    with pytest.raises(RecordError, match=r"partition 0 offset 7 .*UNIQUE constraint failed: target\.id"):
        Loader(kafka, engine, postgres_loader.launcher)(name)

    assert rows(engine, "SELECT count(*) FROM target") == [(0,)]
    engine.dispose()


def test_a_driver_without_copy_inserts_and_traces_refused_rows(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    """psycopg2 stands for every driver that this package knows no faster way for."""
    name = topic()
    produce(kafka, name, names(0, 50))
    engine = sa.create_engine(postgres_loader.engine.url.set(drivername="postgresql+psycopg2"))
    other = Loader(kafka, engine, postgres_loader.launcher)
    assert other(name).rows == 50
    assert rows(engine, "SELECT count(DISTINCT id) FROM target") == [(50,)]

    with engine.begin() as conn:
        conn.execute(sa.text("CREATE UNIQUE INDEX ON target (id)"))
    produce(kafka, name, [*names(50, 5), *names(7, 1)])
    with pytest.raises(RecordError, match=f"topic '{name}' partition 0 offset 55 .*duplicate key value"):
        other(name)

    assert rows(engine, "SELECT count(*) FROM target") == [(50,)]
    assert positions(engine) == {(name, 0): 50}
    engine.dispose()


def test_text_is_read_by_postgres_where_the_type_has_no_binary_form_here(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(
        kafka,
        name,
        [
            b'{"id": "6f1b9a0e-7c44-4d0b-9b36-0d6a2a1a5a11", "doc": "{\\"a\\": \\"x,\\\\\\"y\\"}", "text": "a,\\"b\\"\\nc", "net": "10.0.0.1"}',
            b'{"text": ""}',
            b'{"text": "\\\\N"}',
        ],
    )
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id UUID, doc JSONB, text TEXT, net INET, _kafka_offset BIGINT)"))

    postgres_loader(name, value_format=Json("id STRING, doc STRING, text STRING, net STRING"))

    query = "SELECT id::text, doc->>'a', text, net::text FROM target ORDER BY _kafka_offset"
    assert rows(postgres_loader.engine, query) == [
        ("6f1b9a0e-7c44-4d0b-9b36-0d6a2a1a5a11", 'x,"y', 'a,"b"\nc', "10.0.0.1/32"),
        (None, None, "", None),
        (None, None, "\\N", None),
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

    def on_kill(self) -> None:
        self._launcher.on_kill()


def test_reading_that_stalls_says_where_and_why(postgres_loader: Loader) -> None:
    with KafkaBroker() as broker:
        create_topic(broker.bootstrap_servers, "orders", 1, {})
        produce(broker, "orders", names(0, 10))

        with pytest.raises(
            ReadError,
            match=r"orders\[0\]: no record came for 3 s at offset 0, 10 offsets before the end 10 .*Connection refused",
        ):
            load(
                postgres_loader.pipeline(["orders"], idle_timeout=timedelta(seconds=3)),
                kafka_config={"bootstrap.servers": broker.bootstrap_servers},
                engine=postgres_loader.engine,
                launcher=StopsTheBroker(postgres_loader.launcher, broker),
            )

    assert positions(postgres_loader.engine) == {}


def test_spark_that_fails_for_its_own_reasons_is_a_staging_error(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))

    class Broken:
        def check(self, staging_dir: str | None) -> None:
            """Nothing is missing."""

        def __call__(self, job: object) -> None:
            raise RuntimeError("no room on the cluster")

        def on_kill(self) -> None:
            """Nothing runs."""

    with pytest.raises(StagingError, match=r"Spark did not stage batch 1: no room on the cluster"):
        load(
            loader.pipeline([name]),
            kafka_config={"bootstrap.servers": kafka.bootstrap_servers},
            engine=loader.engine,
            launcher=Broken(),
        )


def test_missing_or_old_java_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="no java on the PATH: install a Java runtime"):
        check_java()

    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"Java 17 or newer; .*/java says: openjdk version \"11\.0\.2\""):
        check_java()
