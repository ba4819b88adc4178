"""What a connection, a catalog's server or another writer of a table says runs no code here, and sends no file away."""

from __future__ import annotations

import base64
import json
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import IcebergTable
from airflow_kafka_offsets.core.attempts import attempt_name
from airflow_kafka_offsets.core.warn import warn_once
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.iceberg.format import ConnectedIcebergTable, PositionsCatalog
from airflow_kafka_offsets.sinks.iceberg.places import may_be_local
from airflow_kafka_offsets.sinks.iceberg.private import commit_once
from airflow_kafka_offsets.sinks.iceberg.publication import PREFIX, Publication, last_published, published
from airflow_kafka_offsets.sinks.iceberg.snapshot import IcebergSnapshot
from airflow_kafka_offsets.sinks.lake.snapshot import Change, KnownRollbacks, PublicationResult
from airflow_kafka_offsets.sinks.table import Output
from tests.support import fixtures
from tests.support.http_server import serving
from tests.support.iceberg import iceberg_sink, open_table
from tests.support.lake import publish_rows

COLUMNS = pa.schema([("id", pa.int64())])

engine = fixtures.sqlite_engine


def program(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """Properties with which pyiceberg would start a program, and the file that it would make."""
    made = tmp_path / "made"
    return {"/bin/touch": "x", str(made): "x", "py-io-impl": "subprocess.Popen"}, made


@pytest.mark.parametrize(
    "name", ["py-io-impl", "py-catalog-impl", "s3.retry-strategy-impl", "write.py-location-provider.impl"]
)
@pytest.mark.parametrize("where", ["catalog", "storage"])
def test_a_connection_names_no_code(engine: Engine, name: str, where: str) -> None:
    of_catalog = {"type": "sql", "uri": "sqlite://"} if where == "catalog" else {}
    connection = {"conn_type": "generic", "extra": {**of_catalog, name: "subprocess.Popen"}}
    given: dict[str, Any] = {f"{where}_conn_id": "c"}
    sink = IcebergTable("shop.orders", **given)
    with pytest.raises(ConfigurationError, match=f"has {name} (among the properties|in its extra)"):
        sink.connect(engine, {"c": connection})


def test_the_clients_of_pyiceberg_itself_may_be_chosen(tmp_path: Path, engine: Engine) -> None:
    known = "pyiceberg.io.pyarrow.PyArrowFileIO"
    plain = iceberg_sink("sql", tmp_path)
    sink = IcebergTable(plain.identifier, {**plain.catalog, "py-io-impl": known})  # type: ignore[dict-item]
    table = sink.connect(engine)
    assert table.prepare(COLUMNS).known == ("id", "_batch_id")
    assert table.storage_options()["py-io-impl"] == known


@pytest.mark.parametrize("where", ["sql", "positions"])
def test_properties_of_a_table_start_no_program_and_choose_no_storage(
    tmp_path: Path, engine: Engine, where: str
) -> None:
    properties, made = program(tmp_path)
    sink = iceberg_sink(where, tmp_path)
    table = sink.connect(engine)
    table.prepare(COLUMNS)
    properties |= {"s3.endpoint": "http://stranger", "client.access-key-id": "x"}
    with engine.begin() as conn:
        before = table.snapshot(conn)
        assert isinstance(before, IcebergSnapshot)
        with before.table.transaction() as change:
            change.set_properties(properties)

    found = table.snapshot()

    assert isinstance(found, IcebergSnapshot)
    assert found.table.properties.keys() >= properties.keys()
    assert not made.exists()
    assert not {"s3.endpoint", "client.access-key-id", "py-io-impl"} & found.table.io.properties.keys()
    assert not {"s3.endpoint", "py-io-impl"} & table.storage_options().keys()


@pytest.mark.parametrize("where", ["sql", "positions"])
def test_properties_of_a_table_start_no_program_when_files_of_a_failed_attempt_are_removed(
    tmp_path: Path, engine: Engine, where: str
) -> None:
    properties, made = program(tmp_path)
    table = iceberg_sink(where, tmp_path).connect(engine)
    table.prepare(COLUMNS)
    found = table.snapshot()
    assert isinstance(found, IcebergSnapshot)
    place = Path(found.table.location().removeprefix("file://"))
    left = place / "data" / attempt_name("installation", 7) / "left.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x")
    change_metadata(found, properties=properties)

    assert table.remove_leftovers(7, datetime.now(UTC) + timedelta(days=1), "installation") == 1
    assert not made.exists()


def test_a_table_that_names_code_for_its_paths_is_refused(tmp_path: Path, engine: Engine) -> None:
    sink = iceberg_sink("sql", tmp_path)
    table = sink.connect(engine)
    table.prepare(COLUMNS)
    native = open_table(sink, engine)
    # pyiceberg would run it when it stores it.
    native.metadata.properties["write.py-location-provider.impl"] = "builtins.exec"

    with pytest.raises(TargetError, match=r"has the property 'write\.py-location-provider\.impl', which names code"):
        IcebergSnapshot("orders", native, lambda: native, is_external=True, may_be_local=True)


@pytest.mark.parametrize("where", ["sql", "positions"])
def test_code_for_its_paths_that_a_table_names_before_the_commit_is_refused(
    tmp_path: Path, engine: Engine, where: str
) -> None:
    table = iceberg_sink(where, tmp_path).connect(engine)
    table.prepare(COLUMNS)
    with engine.connect() as conn:
        found = table.snapshot(conn, lock=True)
        assert isinstance(found, IcebergSnapshot)
        made = tmp_path / "made"
        code = f"open({str(made)!r}, 'w')"
        change_metadata(found, location=code, properties={"write.py-location-provider.impl": "builtins.exec"})
        change = Change(Output(1, "g", (), "series", "batch-1-x"), 1, PublicationResult())
        with pytest.raises(TargetError, match=r"Iceberg table 'shop\.orders' has the property 'write\.py-location-"):
            found.commit(change)
    assert not made.exists()


@pytest.mark.parametrize("what", ["location", "write.data.path", "write.metadata.path"])
@pytest.mark.parametrize("when", ["opened", "committed"])
def test_a_table_in_a_store_has_no_files_on_this_machine(tmp_path: Path, engine: Engine, what: str, when: str) -> None:
    table = iceberg_sink("positions", tmp_path).connect(engine)
    table.prepare(COLUMNS)
    found = table.snapshot()
    assert isinstance(found, IcebergSnapshot)
    strange = f"file://{tmp_path}/strange"
    change: dict[str, Any] = {"location": "s3://lake/orders", "properties": {what: strange}}
    change_metadata(found, **(change if what != "location" else {what: strange}))

    def use(conn: sa.Connection) -> None:
        if when == "opened":
            IcebergTable("shop.orders", warehouse="s3://lake").connect(engine).snapshot(conn)
        else:
            native = PositionsCatalog("default", conn, warehouse="s3://lake").load_table("shop.orders")
            commit_once(native, native.transaction(), ())

    problem = r"has the place 'file://.*/strange', which is on this machine"
    with engine.connect() as conn, pytest.raises(TargetError, match=problem):
        use(conn)
    assert not (tmp_path / "strange").exists()


def change_metadata(found: IcebergSnapshot, **changed: Any) -> None:
    """Change the metadata of a table as another writer does."""
    metadata = Path(found.version.removeprefix("file://"))
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | changed))


@contextmanager
def hostile_catalog(answers: dict[str, Any]) -> Iterator[str]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        body = json.dumps(answers.get(path, {})).encode()
        handler.send_response(200 if path in answers else 404)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with serving(answer) as uri:
        yield uri


def hostile_login(tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """Properties with which pyiceberg would start a program when it logs in, and the file that it would make."""
    made = tmp_path / "made"
    login = {"type": "custom", "impl": "subprocess.Popen", "custom": {"args": ["/bin/touch", str(made)]}}
    return {"auth": login, "rest.sigv4-enabled": "true", "oauth2-server-uri": "http://stranger"}, made


@pytest.mark.parametrize("kind", [{"type": "REST"}, {}])
@pytest.mark.parametrize("part", ["defaults", "overrides"])
def test_the_server_of_a_rest_catalog_does_not_say_who_logs_in(
    tmp_path: Path, engine: Engine, part: str, kind: dict[str, str]
) -> None:
    properties, made = hostile_login(tmp_path)
    answer = {"defaults": {}, "overrides": {}, part: properties | {"s3.region": "lent", "s3.access-key-id": 7}}
    for place in ("gcs.service.host", "adls.account-host", "s3.proxy-uri", "s3.profile-name", "hdfs.kerberos_ticket"):
        answer[part][place] = "stranger"
    with hostile_catalog({"/v1/config": answer}) as uri:
        given = {**kind, "uri": uri, "gcs.service.host": "given"}
        table = IcebergTable("shop.orders", given).connect(engine)
        assert isinstance(table, ConnectedIcebergTable)
        found = table._catalog().properties

    assert found == {**kind, "uri": uri, "gcs.service.host": "given", "s3.region": "lent"}
    assert not made.exists()


@contextmanager
def catalog_of(
    tmp_path: Path, engine: Engine, of_table: dict[str, str], of_server: dict[str, str], location: str | None = None
) -> Iterator[str]:
    """A REST catalog with one table."""
    plain = iceberg_sink("sql", tmp_path)
    plain.connect(engine).prepare(COLUMNS)
    native = open_table(plain, engine)
    metadata = json.loads(native.metadata.model_dump_json())
    metadata["properties"] |= of_table
    metadata["location"] = location or metadata["location"]
    loaded = {"metadata-location": f"{metadata['location']}/metadata/1.json", "metadata": metadata, "config": of_server}
    answers = {"/v1/config": {"defaults": of_server, "overrides": {}}, "/v1/namespaces/shop/tables/orders": loaded}
    with hostile_catalog(answers) as uri:
        yield uri


def test_a_rest_catalog_starts_no_program_and_its_address_without_tls_is_logged(
    tmp_path: Path, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    properties, made = program(tmp_path)
    of_server = {**properties, "s3.region": "lent", "gcs.service.host": "stranger", "s3.endpoint": "http://minio"}
    with catalog_of(tmp_path, engine, {}, of_server) as uri:
        table = IcebergTable("shop.orders", {"type": "rest", "uri": uri}).connect(engine)
        found = table.snapshot()
        options = table.storage_options()

    assert found is not None
    assert not made.exists()
    assert not {"py-io-impl", "gcs.service.host"} & options.keys()
    assert options["s3.region"] == "lent"
    assert caplog.messages == [
        "The server of a REST catalog: rows and credentials cross the network to minio in plain text: use https"
    ]


def test_properties_of_a_table_in_a_rest_catalog_choose_no_storage(tmp_path: Path, engine: Engine) -> None:
    signer = {"s3.signer": "S3V4RestSigner", "s3.signer.uri": "http://stranger", "s3.endpoint": "http://stranger"}
    of_azure = {"adls.account-name": "stranger", "adls.sas-token": "x"}
    with catalog_of(tmp_path, engine, signer | of_azure, {}) as uri:
        given = {"type": "rest", "uri": uri, "adls.account-name": "ours", "adls.token": "secret"}
        table = IcebergTable("shop.orders", given).connect(engine)
        found = table.snapshot()
        options = table.storage_options()

    assert isinstance(found, IcebergSnapshot)
    assert found.table.properties.keys() >= signer.keys()
    assert options == {"adls.account-name": "ours", "adls.token": "secret"}


ACCOUNT = "adls.account-name"
AZURE = "abfss://lake@stranger.dfs.core.windows.net/orders"


@pytest.mark.parametrize(
    ("of_server", "expected"),
    [
        ({"adls.account-name": "stranger"}, {"adls.account-name": "ours", "adls.token": "secret"}),
        (
            {"adls.account-name": "lent", "adls.sas-token": "lent"},
            {"adls.account-name": "lent", "adls.sas-token": "lent", "adls.account-host": "host"},
        ),
        ({"adls.sas-token.ours": "lent"}, {"adls.account-name": "ours", "adls.sas-token.ours": "lent"}),
        *(
            (
                {"adls.account-name": "stranger", name: value},
                {"adls.account-name": "ours", "adls.token": "secret"},
            )
            for name, value in (("adls.account-key", ""), ("adls.account-keys", "x"), ("adls.sas-token.", "x"))
        ),
        (
            {"adls.account-name": "stranger.example/", "adls.sas-token": "lent"},
            {"adls.account-name": "ours", "adls.sas-token": "lent"},
        ),
    ],
)
def test_a_login_at_azure_is_sent_to_no_account_that_others_name(
    tmp_path: Path, engine: Engine, of_server: dict[str, str], expected: dict[str, str]
) -> None:
    with catalog_of(tmp_path, engine, {}, of_server, AZURE) as uri:
        given = {"type": "rest", "uri": uri, "adls.account-name": "ours", "adls.token": "secret"}
        given |= {name: value for name, value in expected.items() if name == "adls.account-host"}
        found = IcebergTable("shop.orders", given).connect(engine).snapshot()

    assert isinstance(found, IcebergSnapshot)
    properties = found.table.io.properties
    assert {name: value for name, value in properties.items() if name.startswith("adls.")} == expected


@pytest.mark.parametrize("scheme", ["abfss", "ABFSS", " wasbs"])
@pytest.mark.parametrize("where", ["sql", "positions"])
def test_the_address_of_metadata_names_no_account(tmp_path: Path, engine: Engine, where: str, scheme: str) -> None:
    sink = iceberg_sink(where, tmp_path)
    table = sink.connect(engine)
    table.prepare(COLUMNS)
    with (engine if where == "positions" else sa.create_engine(f"sqlite:///{tmp_path}/catalog.db")).begin() as conn:
        conn.execute(
            sa.text("UPDATE iceberg_tables SET metadata_location = :at"),
            {"at": f"{scheme}{AZURE.removeprefix('abfss')}/metadata/1.json"},
        )
    with pytest.raises(ConfigurationError, match=r"No property names the account of ' ?\w+://lake@stranger"):
        table.snapshot()


@pytest.mark.parametrize("where", ["sql", "positions"])
def test_a_file_of_a_table_elsewhere_names_no_account(tmp_path: Path, engine: Engine, where: str) -> None:
    table = iceberg_sink(where, tmp_path).connect(engine)
    table.prepare(COLUMNS)
    found = table.snapshot()
    assert isinstance(found, IcebergSnapshot)
    assert {found.table.io.properties[ACCOUNT], table.storage_options()[ACCOUNT]} == {"adls.account-name-is-not-set"}


def test_the_location_of_a_table_names_no_account(tmp_path: Path, engine: Engine) -> None:
    with catalog_of(tmp_path, engine, {}, {}, AZURE) as uri:
        table = IcebergTable("shop.orders", {"type": "rest", "uri": uri}).connect(engine)
        with pytest.raises(ConfigurationError, match=r"No property names the account of 'abfss://lake@stranger"):
            table.snapshot()


@pytest.mark.parametrize("given", ["sslkey=/library.so:key", "service=x", "passfile=/x", "sslkeylogfile=/x"])
@pytest.mark.parametrize("driver", ["postgresql", "postgresql+psycopg", "postgresql+psycopg2"])
def test_a_catalog_in_postgres_loads_no_library(engine: Engine, driver: str, given: str) -> None:
    sink = IcebergTable("shop.orders", {"type": "sql", "uri": f"{driver}://u@127.0.0.1:1/d?{given}"})
    with pytest.raises(ConfigurationError, match=r"[Tt]he URL of the catalog (has|must have)"):
        sink.connect(engine).snapshot()


@pytest.mark.parametrize("option", ["local_infile=1", "read_default_file=/etc/my.cnf"])
def test_a_catalog_in_mysql_gets_no_files(engine: Engine, option: str) -> None:
    uri = f"mysql+pymysql://u@h/d?{option}"
    with pytest.raises(ConfigurationError, match="A MySQL server can ask its clients for files"):
        IcebergTable("shop.orders", {"type": "sql", "uri": uri}).connect(engine).snapshot()


@pytest.mark.parametrize(
    "uri",
    [
        "mssql+pyodbc:///?odbc_connect=Driver%3D/path/x.so",
        "sqlite+pysqlcipher://",
        "postgresql+pg8000://h/d",
        "mysql://u@h/d",
        "mariadb+mysqldb://u@h/d",
    ],
)
def test_a_catalog_has_no_driver_that_may_load_libraries_or_send_files(engine: Engine, uri: str) -> None:
    with pytest.raises(ConfigurationError, match=r"The URL of the catalog begins with \w+(\+\w+)?://"):
        IcebergTable("shop.orders", {"type": "sql", "uri": uri}).connect(engine).snapshot()


@pytest.mark.parametrize("scheme", ["postgresql", "mysql+pymysql", "https"])
def test_a_url_that_cannot_be_read_is_not_quoted(engine: Engine, scheme: str) -> None:
    uri = f"{scheme}://loader:first@second:rest@127.0.0.1:9/d"
    with pytest.raises(ConfigurationError, match="write @, : and / in its user and password as %40") as refused:
        IcebergTable("shop.orders", {"type": "sql", "uri": uri}).connect(engine).snapshot()
    assert "rest" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("where", ["positions", "sql"])
@pytest.mark.parametrize("content", ["the key of another system", '{"key": "of another system"}', "1"])
def test_a_catalog_that_names_another_file_as_metadata_does_not_get_it_quoted(
    engine: Engine, tmp_path: Path, where: str, content: str
) -> None:
    table = iceberg_sink(where, tmp_path).connect(engine)
    table.prepare(COLUMNS)
    (tmp_path / "file").write_text(content)
    catalog = engine if where == "positions" else sa.create_engine(f"sqlite:///{tmp_path}/catalog.db")
    with catalog.begin() as conn:
        conn.execute(
            sa.text("UPDATE iceberg_tables SET metadata_location = :file"), {"file": f"file://{tmp_path}/file"}
        )
    with pytest.raises(TargetError, match=r"is not Iceberg's \(ValidationError\)") as refused:
        table.snapshot()
    shown = "".join(traceback.format_exception(refused.value))
    assert not any(word in shown for word in ("another system", "input_value"))


def test_a_property_of_the_last_publication_takes_bounded_memory_and_another_groups_none() -> None:
    def packed(text: bytes) -> str:
        return base64.b64encode(zlib.compress(text)).decode()

    def stored(group: str, removed: str) -> str:
        return json.dumps({**json.loads(Publication(group, 1, snapshot=7).to_json()), "removed": removed})

    properties = {f"{PREFIX}a": stored("a", packed(b" " * (33 << 20) + b"[]")), f"{PREFIX}b": stored("b", "no Base64")}
    properties[f"{PREFIX}c"] = stored("c", packed(json.dumps([[]] * 100_000).encode()))
    properties[f"{PREFIX}d"] = Publication("d", 1, PublicationResult(3, ((1, "t", 0, 1), (2, "t", 0, 2)))).to_json()
    table: Any = SimpleNamespace(properties=properties, name=lambda: ("shop", "orders"))

    for group in "abc":
        assert last_published(table, group) == (f"{PREFIX}{group}", Publication(group, 1, snapshot=7))
        with pytest.raises(TargetError, match=rf"Property 'kafka-offsets\.{group}' of Iceberg table 'shop\.orders'"):
            published(table, group, with_removed=True)
    whole = published(table, "d", with_removed=True)
    assert whole is not None
    assert whole.result == PublicationResult(3, ((1, "t", 0, 1), (2, "t", 0, 2)))


@pytest.mark.parametrize(
    "changes", [{"batch": "1"}, {"batch": None}, {"batch": True}, {"batch": 10**30}, {"group": 1}, {"snapshot": "x"}]
)
def test_a_property_of_the_last_publication_has_the_types_of_one(changes: dict[str, Any]) -> None:
    text = json.dumps(json.loads(Publication("g", 1).to_json()) | changes)
    table: Any = SimpleNamespace(properties={f"{PREFIX}s": text}, name=lambda: ("shop", "orders"))
    with pytest.raises(TargetError, match=r"Property 'kafka-offsets.s' .* cannot be read"):
        published(table, "s")


def test_no_property_is_written_that_could_not_be_read() -> None:
    removed = ((1, "t" * 249, 0, 1),) * 150_000
    with pytest.raises(TargetError, match="replay fewer offsets at once"):
        Publication("g", 1, PublicationResult(1, removed)).to_json()


def test_a_history_that_goes_round_in_a_circle_has_an_end(tmp_path: Path, engine: Engine) -> None:
    table = iceberg_sink("sql", tmp_path).connect(engine)
    publish_rows(table, pa.record_batch({"id": pa.array([1])}), tmp_path)
    found = table.snapshot()
    assert isinstance(found, IcebergSnapshot)
    metadata = json.loads(Path(found.version.removeprefix("file://")).read_text())
    last = metadata["snapshots"][-1]
    own = {**last, "summary": {"operation": "append"}}
    after = [
        {**own, "snapshot-id": each, "parent-snapshot-id": parent, "sequence-number": each}
        for each, parent in ((101, 102), (102, 101))
    ]
    refs = {"main": {"snapshot-id": 102, "type": "branch"}}
    changed = {"snapshots": [last, *after], "current-snapshot-id": 102, "last-sequence-number": 102, "refs": refs}
    change_metadata(found, **changed)

    circle = table.snapshot()
    assert circle is not None
    with pytest.raises(TargetError, match="was rolled back, or replaced"):
        circle.check_history("g", KnownRollbacks(None))


@pytest.mark.parametrize(
    ("warehouse", "expected"),
    [(None, True), ("/lake", True), ("file:///lake", True), ("s3://lake", False), ("prod", False)],
)
def test_a_name_of_a_warehouse_is_no_place_on_this_machine(warehouse: str | None, expected: bool) -> None:
    assert may_be_local({} if warehouse is None else {"warehouse": warehouse}) is expected
