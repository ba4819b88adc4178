"""Fan-out: one batch into several sinks in one transaction, each with its own transform, read once."""

from __future__ import annotations

import json
from collections.abc import Callable as Function
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import ArrowTransform, Branch, DeadLetters, KafkaBatchOperator, Limits, Sql, SqlTable
from airflow_kafka_offsets.exceptions import ConfigurationError, DeadLetterError, TargetError, TransformError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.sinks.fan_out import FanOut
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.sinks.target_names import targets_in
from tests.support import functions
from tests.support.archive import ARCHIVE
from tests.support.clients import Kafka, produce
from tests.support.dying_load import DyingLoad, Load
from tests.support.external_archive import ExternalArchive
from tests.support.loads import COLUMNS, Loader, TopicFactory, names, positions, rows

pytestmark = pytest.mark.server

ORDERS = SqlTable("orders")

LARGE = Branch(SqlTable("large"), Sql("SELECT id * 10 AS tenfold FROM records WHERE id >= 3"))

BOTH = [ORDERS, LARGE]


@pytest.fixture
def name(inline_loader: Loader, topic: TopicFactory) -> str:
    """A topic of six records."""
    made = topic()
    produce(inline_loader.kafka, made, names(0, 6))
    return made


def ids(loader: Loader, table: str = "orders") -> list[int]:
    return [offset for (offset,) in rows(loader.engine, f"SELECT _kafka_offset FROM {table} ORDER BY 1")]


def dead_letters(loader: Loader) -> dict[int, tuple[str, str]]:
    query = "SELECT offset_value, error_class, error FROM dead_letters ORDER BY 1"
    return {offset: (kind, error) for offset, kind, error in rows(loader.engine, query)}


def outputs(loader: Loader) -> list[dict[str, int]]:
    """The number of rows of each batch, by target."""
    found = rows(loader.engine, "SELECT outputs FROM offset_batches WHERE outputs IS NOT NULL ORDER BY batch_id")
    return [{target: output["rows"] for target, output in json.loads(text).items()} for (text,) in found]


def records(*texts: str) -> list[bytes]:
    return [json.dumps({"id": number, "name": text}).encode() for number, text in enumerate(texts)]


def test_fan_out_is_a_sink() -> None:
    assert isinstance(FanOut.of(BOTH), Sink)
    assert FanOut.of(BOTH).name == FanOut.of([LARGE, ORDERS]).name == "fanout://large+orders"


def test_names_of_branches_may_have_any_characters() -> None:
    names = ["a+b", "c%2Bd", "größe", "shop.orders"]

    name = FanOut.of([SqlTable(table) for table in names]).name

    assert name == "fanout://a%2Bb+c%252Bd+größe+shop.orders"
    assert targets_in(name) == names


def test_a_target_that_is_one_wrote_nothing_into_several(engine: Engine) -> None:
    with (
        engine.begin() as conn,
        SqlTable("orders").connect(engine).publish(conn, Output(1, "loader", (), "")) as target,
    ):
        assert (target.written, target.removed) == ({}, {})


def test_a_new_column_has_to_fit_the_sinks_that_take_rows_as_they_are_decoded(engine: Engine) -> None:
    tags = pa.field("tags", pa.list_(pa.string()))
    plain, taken_apart = SqlTable("a"), Branch(SqlTable("b"), transform=Sql("SELECT tags[1] AS tag FROM records"))
    FanOut.of([taken_apart, Branch(SqlTable("c"), transform=taken_apart.transform)]).connect(engine).added_check()(tags)
    with pytest.raises(TargetError, match="'tags' is ARRAY<STRING>: SqlTable stores no nested columns"):
        FanOut.of([plain, taken_apart]).connect(engine).added_check()(tags)


def test_each_sink_gets_its_rows_in_one_transaction(inline_loader: Loader, name: str) -> None:
    result = inline_loader(name, sink=BOTH, limits=Limits(max_records=4))

    assert (result.records, result.rows) == (6, 9)
    assert rows(inline_loader.engine, "SELECT _batch_id, id, name FROM orders ORDER BY 2") == [
        (1 if number < 4 else 2, number, f"name-{number}") for number in range(6)
    ]
    assert rows(inline_loader.engine, "SELECT _batch_id, tenfold, _kafka_offset FROM large ORDER BY 2") == [
        (1, 30, 3),
        (2, 40, 4),
        (2, 50, 5),
    ]
    assert positions(inline_loader.engine) == {(name, 0): 6}
    assert outputs(inline_loader) == [{"large": 1, "orders": 4}, {"large": 2, "orders": 2}]
    history = rows(inline_loader.engine, "SELECT target_table, row_count FROM offset_batches ORDER BY batch_id")
    assert history == [("fanout://large+orders", 5), ("fanout://large+orders", 4)]
    # Each record was read once.
    assert [job.offsets for job in inline_loader.launcher.jobs] == [4, 2]


def test_the_order_of_the_sinks_does_not_matter(inline_loader: Loader, name: str) -> None:
    inline_loader(name, sink=BOTH, limits=Limits(max_records=4))
    produce(inline_loader.kafka, name, names(6, 1))

    assert inline_loader(name, sink=[LARGE, ORDERS]).rows == 2
    assert ids(inline_loader) == list(range(7))
    assert ids(inline_loader, "large") == [3, 4, 5, 6]


def test_a_record_that_a_transform_refuses_has_a_row_in_no_sink(inline_loader: Loader, name: str) -> None:
    ratio = Branch(SqlTable("ratios"), Sql("SELECT 60 / (id - 2) AS ratio FROM records"))

    with pytest.raises(TransformError, match=r"offset 2.* cannot be transformed"):
        inline_loader(name, sink=[ORDERS, ratio], run=TaskRun("run"))
    assert ids(inline_loader) == []
    inline_loader(name, sink=[ORDERS, ratio], on_bad_record=DeadLetters(), run=TaskRun("run"))

    assert ids(inline_loader) == ids(inline_loader, "ratios") == [0, 1, 3, 4, 5]
    ((offset, (kind, error)),) = dead_letters(inline_loader).items()
    assert (offset, kind) == (2, "transform")
    assert "Divide by zero" in error


def checked(loader: Loader) -> None:
    """Have the table `large` refuse the row of offset 4."""
    with loader.engine.begin() as conn:
        conn.execute(
            sa.text(
                "CREATE TABLE large (tenfold BIGINT CHECK (tenfold <> 40), _kafka_topic TEXT, _kafka_partition INT, "
                "_kafka_offset BIGINT, _batch_id BIGINT)"
            )
        )


@pytest.mark.parametrize("other", ["orders", "a_table_before", "z_table_after"])
def test_a_record_that_a_table_refuses_has_a_row_in_no_sink(inline_loader: Loader, name: str, other: str) -> None:
    checked(inline_loader)

    result = inline_loader(name, sink=[SqlTable(other), LARGE], on_bad_record=DeadLetters())

    assert (result.rows, result.dead_letters) == (7, 1)
    assert ids(inline_loader, other) == [0, 1, 2, 3, 5]
    assert ids(inline_loader, "large") == [3, 5]
    assert list(dead_letters(inline_loader)) == [4]
    assert dead_letters(inline_loader)[4][0] == "target"
    assert outputs(inline_loader) == [{"large": 2, other: 5}]


def test_dead_letters_of_all_branches_are_limited_together(inline_loader: Loader, name: str) -> None:
    checked(inline_loader)
    ratio = Branch(SqlTable("ratios"), Sql("SELECT 60 / (id - 2) AS ratio FROM records"))

    with pytest.raises(DeadLetterError):
        inline_loader(name, sink=[ratio, LARGE], on_bad_record=DeadLetters(limit=1))
    assert ids(inline_loader, "ratios") == ids(inline_loader, "large") == []


def without_origin(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.select(["name"])


def test_rows_that_may_be_of_a_refused_record_stop_the_load(inline_loader: Loader, name: str) -> None:
    checked(inline_loader)
    branch = Branch(SqlTable("anonymous"), ArrowTransform(f"{__name__}.without_origin"))

    with pytest.raises(TargetError, match="rows without an origin may be its rows"):
        inline_loader(name, sink=[branch, LARGE], on_bad_record=DeadLetters())
    assert rows(inline_loader.engine, "SELECT count(*) FROM anonymous") == [(0,)]


def only_odd(rows: pa.RecordBatch) -> pa.RecordBatch:
    if not rows.num_rows:
        raise ValueError("it needs rows")
    return rows.filter(pc.equal(pc.bit_wise_and(rows["id"], 1), 1))


def test_a_branch_whose_columns_the_first_batch_shows(inline_loader: Loader, name: str) -> None:
    branch = Branch(SqlTable("odd"), ArrowTransform(f"{__name__}.only_odd"))
    with inline_loader.engine.begin() as conn:
        columns = "id BIGINT, name TEXT, _kafka_offset BIGINT"
        conn.execute(sa.text(f"CREATE TABLE odd ({columns})"))

    inline_loader(name, sink=[ORDERS, branch])

    assert ids(inline_loader, "odd") == [1, 3, 5]
    assert ids(inline_loader) == list(range(6))


def test_one_of_several_sinks_may_be_no_table(inline_loader: Loader, name: str) -> None:
    inline_loader(name, sink=[ARCHIVE, LARGE])

    with inline_loader.engine.connect() as conn:
        ((batch, archived),) = ARCHIVE.read(conn)
    assert (batch, [record["id"] for record in archived]) == (1, [0, 1, 2, 3, 4, 5])
    assert ids(inline_loader, "large") == [3, 4, 5]


def test_one_of_several_sinks_may_be_a_function(inline_loader: Loader, name: str) -> None:
    functions.create(inline_loader.engine)
    produce(inline_loader.kafka, name, [json.dumps({"id": 6, "name": "bad"}).encode()])
    sinks = [functions.sink("picky"), ORDERS]

    assert inline_loader(name, sink=sinks, on_bad_record=DeadLetters()).rows == 12

    assert ids(inline_loader) == ids(inline_loader, "lines") == list(range(6))
    assert dead_letters(inline_loader) == {6: ("target", "a bad name")}


def test_fan_out_writes_nothing_unless_all_targets_can_be_written(inline_loader: Loader, name: str) -> None:
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE large (other INT)"))

    with pytest.raises(TargetError, match="large"):
        inline_loader(name, sink=BOTH)
    assert inline_loader.launcher.jobs == []


@pytest.mark.broker
@pytest.mark.parametrize("point", ["after it is marked as staged", "inside the transaction", "after COMMIT"])
def test_a_crash_and_a_retry_write_once(kafka: Kafka, inline_loader: Loader, name: str, point: str) -> None:
    run, url = TaskRun("run"), inline_loader.engine.url.render_as_string(hide_password=False)
    load = Load(url, kafka.bootstrap_servers, (name,), run, {"sink": BOTH})
    with DyingLoad(load, point) as dying:
        dying.reach(point)
        dying.kill()

    inline_loader(name, sink=BOTH, run=run)

    # Staged files are committed as they are.
    assert inline_loader.launcher.jobs == []
    assert ids(inline_loader) == list(range(6))
    assert ids(inline_loader, "large") == [3, 4, 5]
    assert outputs(inline_loader) == [{"large": 3, "orders": 6}]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: [ORDERS], "at least two sinks; got ['orders']"),
        (list, "at least two sinks"),
        (lambda: [ORDERS, Branch(SqlTable("orders"))], "has 'orders' twice"),
        (lambda: [ORDERS, "customers"], "Branch needs a sink, such as SqlTable(…); got 'customers'"),
        (lambda: [ORDERS, FanOut.of(BOTH)], "Branch needs a sink"),
        (
            lambda: [SqlTable("orders", conn_id="one"), SqlTable("customers", conn_id="two")],
            "committed in one transaction; got conn_id='one', 'two'",
        ),
        (lambda: [ORDERS, ExternalArchive("far", path="far.db")], "'elsewhere://far' cannot be one of several sinks"),
        (
            lambda: [ORDERS, Branch(SqlTable("large"), "package.function")],  # type: ignore[arg-type]
            "a DataFrame transform reads them separately",
        ),
    ],
)
def test_sinks_that_cannot_be_written_together_are_named(made: Function[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        KafkaBatchOperator(task_id="load", group_id="loader", topics=["orders"], value_format=COLUMNS, sink=made())

    assert message in str(raised.value)


def test_a_transform_belongs_to_a_branch(inline_loader: Loader, name: str) -> None:
    sinks = [SqlTable("orders", conn_id="warehouse"), SqlTable("large", conn_id="warehouse")]
    for transform in ("package.function", Sql("SELECT id FROM records")):
        with pytest.raises(ConfigurationError, match="each branch has its own transform"):
            inline_loader(name, sink=BOTH, transform=transform)
    with pytest.raises(ConfigurationError, match="each branch has its own transform"):
        KafkaBatchOperator(
            task_id="load",
            group_id="loader",
            topics=["orders"],
            value_format=COLUMNS,
            sink=sinks,
            transform=Sql("SELECT id FROM records"),
        )


def test_an_operator_takes_a_list() -> None:
    sinks: Any = [SqlTable("orders", conn_id="warehouse"), Branch(SqlTable("large", conn_id="warehouse"))]
    task = KafkaBatchOperator(task_id="load", group_id="loader", topics=["x"], value_format=COLUMNS, sink=sinks)

    assert task.sink.conn_id == "warehouse"
    assert task.pipeline().sink.name == "fanout://large+orders"
