"""`ArrowTransform`: what a function gets, what is checked of what it returns, and how it reaches processes without its
module.
"""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError, TransformError
from airflow_kafka_offsets.staging.rows import Record
from airflow_kafka_offsets.transforms.arrow import ArrowTransform
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.staged import COLUMNS


def shouted(rows: pa.RecordBatch) -> pa.RecordBatch:
    kept = rows.filter(pc.greater(rows["id"], 0))
    return kept.append_column("shout", pc.utf8_upper(kept["name"])).drop_columns(["name"])


def twice(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([rows, rows])


def without_origin(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.select(["id"])


def table(rows: pa.RecordBatch) -> Any:
    return pa.Table.from_batches([rows])


def untyped(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.append_column("x", pa.array([None for _ in rows["id"]]))


def moved(rows: pa.RecordBatch) -> pa.RecordBatch:
    offsets = pc.add(rows["_kafka_offset"], 1000)
    return rows.set_column(rows.schema.get_field_index("_kafka_offset"), "_kafka_offset", offsets)


def renumbered(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.set_column(
        rows.schema.get_field_index("_kafka_partition"),
        "_kafka_partition",
        pa.array(["0"] * rows.num_rows, pa.string()),
    )


def changing(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.append_column(
        "x", pa.array(["" for _ in range(rows.num_rows)], pa.string() if rows.num_rows < 2 else pa.large_binary())
    )


def never_empty(rows: pa.RecordBatch) -> pa.RecordBatch:
    if not rows.num_rows:
        raise IndexError(0)
    return rows.append_column("x", rows["id"])


def raising(rows: pa.RecordBatch) -> pa.RecordBatch:
    if rows.num_rows:
        raise ValueError("no such day")
    return rows


def of_39_digits(rows: pa.RecordBatch) -> pa.RecordBatch:
    unscaled = b"".join((12 * 10**37).to_bytes(16, "little") for _ in rows["id"])
    kind = pa.decimal128(38, 0)
    return rows.append_column("x", pa.Array.from_buffers(kind, rows.num_rows, [None, pa.py_buffer(unscaled)]))


def with_(name: str) -> ArrowTransform:
    return ArrowTransform(f"{__name__}.{name}")


def test_a_batch_may_shrink_and_the_target_is_created_from_what_is_returned(
    loader: Loader, topic: TopicFactory
) -> None:
    name = topic()
    produce(loader.kafka, name, names(0, 3))
    result = loader(name, transform=with_("shouted"))
    assert (result.records, result.rows) == (3, 2)
    assert rows(loader.engine, "SELECT id, shout, _kafka_offset FROM target") == [(1, "NAME-1", 1), (2, "NAME-2", 2)]
    assert positions(loader.engine) == {(name, 0): 3}
    assert rows(loader.engine, "SELECT transform FROM offset_batches") == [(f"{__name__}.shouted",)]


def test_a_batch_may_grow(loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    produce(loader.kafka, name, names(0, 3))
    assert loader(name, transform=with_("twice")).rows == 6


def test_the_origin_columns_may_be_dropped_as_by_a_dataframe_transform(loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    produce(loader.kafka, name, names(0, 3))
    assert loader(name, transform=with_("without_origin")).rows == 3
    assert rows(loader.engine, "SELECT * FROM target") == [(number, 1) for number in range(3)]


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("table", "returned Table, not a pyarrow.RecordBatch"),
        ("untyped", "column 'x' without a type"),
        ("renumbered", "changes the type of '_kafka_partition' to STRING"),
    ],
)
def test_invalid_return_schema_is_refused_before_reading(
    loader: Loader, topic: TopicFactory, function: str, error: str
) -> None:
    name = topic()
    produce(loader.kafka, name, names(0, 3))
    with pytest.raises(TransformError, match=error):
        loader(name, transform=with_(function))
    assert loader.launcher.jobs == []


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (
            "moved",
            r"of topic '.*' partition 0 offsets 0 to 2, returns rows whose '_kafka_offset' is none of the batch's",
        ),
        (
            "changing",
            r"offsets 0 to 2, returned other columns than before: .* x binary; before, or of an empty batch, .* x "
            r"string",
        ),
        ("raising", r"offsets 0 to 2, raised ValueError: no such day"),
        ("of_39_digits", r"offsets 0 to 2, returns a value that is outside of the range of its column"),
    ],
)
def test_error_of_records_names_them(loader: Loader, topic: TopicFactory, function: str, error: str) -> None:
    name = topic()
    produce(loader.kafka, name, names(0, 3))
    with pytest.raises(TransformError, match=error):
        loader(name, transform=with_(function), on_bad_record=DeadLetters())
    assert positions(loader.engine) == {}


def test_columns_that_the_target_lacks_are_named_before_anything_is_read(loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    produce(loader.kafka, name, [b"no json"])
    with loader.engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE target (id BIGINT, name TEXT)")
    with pytest.raises(TargetError, match="shout"):
        loader(name, transform=with_("shouted"))
    assert loader.launcher.jobs == []


def test_a_function_that_takes_no_empty_batch_is_checked_with_the_first_records(
    loader: Loader, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    produce(loader.kafka, name, names(0, 3))
    with caplog.at_level("INFO"):
        assert loader(name, transform=with_("never_empty")).rows == 3
    assert "cannot be called with an empty batch (IndexError)" in caplog.text
    produce(loader.kafka, name, names(3, 1))
    with loader.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE target DROP COLUMN x")
    with pytest.raises(TargetError, match="no column 'x'"):
        loader(name, transform=with_("never_empty"))


def test_dead_letters_are_replayed_through_it_without_spark(loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    produce(loader.kafka, name, [b"no json", *names(1, 1)])
    transform = with_("shouted")
    loader(name, transform=transform, on_bad_record=DeadLetters())
    dead_letters = rows(loader.engine, "SELECT topic, partition, offset_value FROM dead_letters")
    corrected = {1: {Record(*dead_letters[0]): b'{"id": 9, "name": "z"}'}}
    replay_dead_letters(
        DeadLetterFilter("loader"),
        loader.pipeline([name], transform=transform),
        engine=loader.engine,
        corrected=corrected,
    )
    assert rows(loader.engine, "SELECT shout FROM target ORDER BY id") == [("NAME-1",), ("Z",)]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("nowhere.at.all", "module 'nowhere.at' cannot be imported"),
        ("json.nowhere", "has no function 'nowhere'"),
        ("f", "import path"),
    ],
)
def test_a_function_that_is_not_there_is_named(path: str, error: str) -> None:
    with pytest.raises(TransformError, match=error):
        ArrowTransform(path).prepared(COLUMNS)
    with pytest.raises(TransformError, match="module 'nowhere' cannot be imported"):
        ArrowTransform(f"{__name__}.twice", modules=["nowhere"]).prepared(COLUMNS)


@pytest.mark.parametrize("given", [(twice,), ("a.b", "module")])
def test_arrow_transform_is_plain_data(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="ArrowTransform needs the import path"):
        ArrowTransform(*given)


PRICES = "RATE = 3\n\ndef price(ids):\n    import pyarrow.compute as pc\n    return pc.multiply(ids, RATE)\n"

CLEAN = """
    import prices_of_this_test
    from prices_of_this_test import price

    def helper(rows):
        return price(rows["id"])

    def clean(rows):
        from prices_of_this_test import RATE
        assert RATE == 3
        return rows.append_column("x", helper(rows)).append_column("y", prices_of_this_test.price(rows["id"]))
"""

ELSEWHERE = """
    import base64, pickle, sys
    import pyarrow as pa
    from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS

    columns = pa.schema([("id", pa.int64()), *ORIGIN_COLUMNS])
    row = {"id": 2, "_kafka_topic": "t", "_kafka_partition": 0, "_kafka_offset": 5}
    rows = pa.RecordBatch.from_pylist([row], schema=columns)
    function = pickle.loads(base64.b64decode(sys.stdin.read())).function(columns)
    print(function(rows).rows.select(["x", "y"]).to_pylist(), "clean_of_this_test" in sys.modules)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "prices_of_this_test.py").write_text(PRICES)
    (tmp_path / "clean_of_this_test.py").write_text(dedent(CLEAN))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("prices_of_this_test", "clean_of_this_test"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def elsewhere(transform: ArrowTransform) -> subprocess.CompletedProcess[str]:
    """Run a transform in a process that cannot import its module."""
    text = base64.b64encode(pickle.dumps(transform.prepared(COLUMNS))).decode()
    return subprocess.run(
        [sys.executable, "-c", dedent(ELSEWHERE)], input=text, capture_output=True, text=True, timeout=60
    )


@pytest.mark.usefixtures("shop")
def test_the_function_and_the_named_modules_travel_as_code() -> None:
    done = elsewhere(ArrowTransform("clean_of_this_test.clean", modules=["prices_of_this_test"]))
    assert done.stdout == "[{'x': 6, 'y': 6}] False\n", done.stderr
    alone = elsewhere(ArrowTransform("clean_of_this_test.clean"))
    assert "Spark's Python has no module 'prices_of_this_test': name it in modules=" in alone.stderr


def test_code_of_another_python_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"code of Python 2\.7, but Spark runs Python"):
        with_values(ArrowTransform("a.b"), code="2.7:AA==").function(COLUMNS)


def test_the_fingerprint_changes_with_the_code_and_the_named_modules(shop: Path) -> None:
    transform = ArrowTransform("clean_of_this_test.clean", modules=["prices_of_this_test"])
    before = [transform.fingerprint(), ArrowTransform(transform.path).fingerprint()]
    assert transform.prepared(COLUMNS).fingerprint() == before[0] != before[1]
    (shop / "prices_of_this_test.py").write_text(f"{PRICES}# changed\n")
    assert transform.fingerprint() != before[0]
    assert ArrowTransform(transform.path).fingerprint() == before[1]
    (shop / "clean_of_this_test.py").write_text(f"{dedent(CLEAN)}# changed\n")
    assert ArrowTransform(transform.path).fingerprint() != before[1]
