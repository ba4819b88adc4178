"""A preview that is saved and read again: the same, or refused."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.offsets import Position
from airflow_kafka_offsets.preview import Preview
from airflow_kafka_offsets.rewinding import PartitionRewind
from airflow_kafka_offsets.scenarios import MOST

ID = "vVZ4aDWLQP2NkY0pxyHJYA"
MOVED_BACK = PartitionRewind("orders", 0, 20, 500, Position(100, ID, 3), Position(20, ID, 4), True, "clamped")
MOVED_ON = PartitionRewind(
    "orders", 1, 0, 500, Position(100, ID), Position(300, ID, 4), skipped=((120, 200), (250, 300))
)
CHOSEN = PartitionRewind("orders", 2, 0, 500, None, Position(0, ID, 4))
GONE = PartitionRewind("orders", 9, None, None, Position(5, ID), None, note="gone")
SAME = PartitionRewind("returns", 0, 50, 60, Position(10, ID), Position(10, ID))
PREVIEW = Preview(
    'søren\'s group, "x"',
    "MkU3OEVBNTcwNTJENDM2Qg",
    4,
    "to-datetime 2026-11-17T08:00:00Z",
    "rewind",
    (MOVED_BACK, MOVED_ON, CHOSEN, GONE, SAME),
    datetime(2026, 11, 17, 8, tzinfo=UTC),
    17,
)


def saved(preview: Preview = PREVIEW) -> dict[str, Any]:
    """As JSON holds it."""
    found: dict[str, Any] = json.loads(json.dumps(preview.as_dict()))
    return found


def refused(changed: object) -> str:
    with pytest.raises(ConfigurationError) as raised:
        Preview.from_json(json.dumps(changed))
    return str(raised.value)


# --- what is the same ---

offsets = st.integers(0, 2**63 - 1)
counts = st.none() | st.integers(0, 2**63 - 1)
positions = st.builds(
    Position,
    offsets,
    st.none() | st.just(ID),
    st.none() | st.integers(0, 2**31 - 1),
)
words = st.text(max_size=20)


@st.composite
def partitions(draw: st.DrawFn, partition: int) -> PartitionRewind:
    old = draw(st.none() | positions)
    beginning, end = sorted((draw(offsets), draw(offsets)))
    changed = draw(st.none() | positions.map(lambda new: replace(new, offset=min(max(new.offset, beginning), end))))
    new = draw(st.sampled_from([old, changed]))
    skipped: tuple[tuple[int, int], ...] = ()
    if old is not None and new is not None and new.offset > old.offset and draw(st.booleans()):
        skipped = ((old.offset, new.offset),)
    ends = (beginning, end) if draw(st.integers(0, 5)) else (None, None)
    flags = (draw(st.booleans()), draw(words))
    loaded_to = None
    if new is not None and new.offset < MOST:
        loaded_to = draw(st.none() | st.integers(new.offset + 1, MOST))
    return PartitionRewind(draw(words), partition, ends[0], ends[1], old, new, *flags, skipped, loaded_to)


@st.composite
def previews(draw: st.DrawFn) -> Preview:
    return Preview(
        draw(words),
        draw(words),
        draw(counts),
        draw(words),
        draw(st.sampled_from(["rewind", "undo", "import"])),
        tuple(draw(partitions(number)) for number in range(draw(st.integers(0, 4)))),
        draw(st.none() | st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC))),
        draw(counts),
        draw(st.booleans()),
    )


@given(previews())
def test_what_is_saved_is_read_again(preview: Preview) -> None:
    assert Preview.from_dict(preview.as_dict()) == preview
    assert Preview.from_json(json.dumps(preview.as_dict())) == preview
    assert Preview.from_json(json.dumps(preview.as_dict(), indent=1, sort_keys=True)) == preview


def test_it_is_plain_data_that_names_what_will_be_done() -> None:
    back, on, chosen, gone, same = saved()["partitions"]

    assert (back["old"], back["new"], back["difference"], back["again"], back["clamped"]) == (100, 20, -80, 80, True)
    assert (on["old"], on["new"], on["difference"], on["again"], on["skipped"]) == (
        100,
        300,
        200,
        0,
        [[120, 200], [250, 300]],
    )
    assert (chosen["old"], chosen["new"], chosen["difference"]) == (None, 0, None)
    assert (gone["old"], gone["new"], gone["beginning"], gone["end"]) == (5, None, None, None)
    assert (same["old"], same["new"], same["difference"]) == (10, 10, 0)
    assert (saved()["offsets_again"], saved()["offsets_skipped"]) == (80, 130)
    assert saved()["instant"] == "2026-11-17T08:00:00+00:00"


def test_it_knows_what_changes() -> None:
    assert PREVIEW.changed == (MOVED_BACK, MOVED_ON, CHOSEN, GONE)
    assert replace(PREVIEW, partitions=(SAME,)).changed == ()


# --- what is not ---


@pytest.mark.parametrize(
    "text", ["", "{", "nul", "[" * 100_000, "1" * 5_000, "\0", '{"format": }'], ids=lambda text: repr(text)[:10]
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="this is none"):
        Preview.from_json(text)


@pytest.mark.parametrize(
    "other", [None, 5, "x", [], {}, [["format", 1]], {"format": "airflow-kafka-offsets rewind 1"}], ids=str
)
def test_what_is_no_preview_is_refused(other: object) -> None:
    assert "its format is not 'airflow-kafka-offsets rewind 2'" in refused(other)


def keys_of(thing: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value of a saved preview, to those that hold others too."""
    if path:
        yield path
    if isinstance(thing, dict | list):
        for key, value in thing.items() if isinstance(thing, dict) else enumerate(thing):
            yield from keys_of(value, (*path, key))


def holder(thing: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        thing = thing[key]
    return thing


WAYS = list(keys_of(saved()))


@pytest.mark.parametrize("path", WAYS, ids=lambda path: ".".join(map(str, path)))
def test_nothing_may_be_missing(path: tuple[Any, ...]) -> None:
    changed = saved()
    del holder(changed, path)[path[-1]]
    if path[:-1] == ("partitions",):
        # Left out as a whole: what is shown of the sum does not fit any more, unless it was nothing.
        of = PREVIEW.partitions[path[-1]]
        if not of.offsets_again and not of.offsets_skipped:
            assert len(Preview.from_dict(changed).partitions) == len(PREVIEW.partitions) - 1
            return
    words = refused(changed)
    assert words.startswith(("The saved preview was changed", "This is no saved preview"))


@pytest.mark.parametrize("path", WAYS, ids=lambda path: ".".join(map(str, path)))
@pytest.mark.parametrize("wrong", [{}, {"offset": {}}, [[]], [5], 1.5, float("nan"), -1, 2**63, 10**40], ids=str)
def test_nothing_may_be_of_another_type_or_size(path: tuple[Any, ...], wrong: object) -> None:
    changed = saved()
    holder(changed, path)[path[-1]] = wrong
    assert refused(changed).startswith(("The saved preview was changed", "This is no saved preview"))


ONCE = {"generation", "open_batch", "partition", "leader_epoch", "beginning", "end"}


@pytest.mark.parametrize(
    "path",
    [path for path in WAYS if type(holder(saved(), path)[path[-1]]) is int and path[-1] not in ONCE],
    ids=lambda path: ".".join(map(str, path)),
)
def test_a_number_cannot_be_changed_in_one_place(path: tuple[Any, ...]) -> None:
    changed = saved()
    holder(changed, path)[path[-1]] += 1
    assert "The saved preview was changed" in refused(changed)


def change(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    keys = [int(key) if key.isdigit() else key for key in path.split(".")]

    def changing(thing: dict[str, Any]) -> None:
        holder(thing, tuple(keys))[keys[-1]] = value

    return changing


@pytest.mark.parametrize(
    ("changing", "words"),
    [
        (change("kind", "load"), "kind 'load'"),
        (change("extra", 5), "extra: not what the rest of it says"),
        (change("offsets_again", 99), "offsets_again: not what the rest of it says"),
        (change("partitions.0.extra", 5), "partitions: not what the rest of it says"),
        (change("partitions.0.new", 30), "partitions: not what the rest of it says"),
        (change("partitions.0.difference", 0), "partitions: not what the rest of it says"),
        (change("partitions.0.again", 0), "partitions: not what the rest of it says"),
        (change("partitions.0.loaded_to", 20), "orders[0]: loaded to 20, which is not beyond the new position"),
        (change("partitions.3.loaded_to", 20), "orders[9]: loaded to 20, which is not beyond the new position"),
        (change("partitions.0.loaded_to", 500), "offsets_again, partitions: not what the rest of it says"),
        (change("partitions.0.clamped", 1), "1 where bool is expected"),
        (change("partitions.0.partition", True), "True where int is expected"),
        (change("partitions.2.partition", 1), "partitions that are there twice: ['orders[1]']"),
        (change("partitions.0.beginning", None), "orders[0]: one end of the log"),
        (change("partitions.0.beginning", 21), "orders[0]: offset 20 is outside of the log, 21..500"),
        (change("partitions.1.end", 299), "orders[1]: offset 300 is outside of the log, 0..299"),
        (change("partitions.1.skipped", [[90, 200]]), "orders[1]: offsets 90..200 are not passed over"),
        (change("partitions.1.skipped", [[120, 301]]), "orders[1]: offsets 120..301 are not passed over"),
        (change("partitions.1.skipped", [[200, 120]]), "orders[1]: offsets 200..120 are not passed over"),
        (change("partitions.1.skipped", [[120, 200], [150, 300]]), "orders[1]: offsets 150..300 are not passed over"),
        (change("partitions.0.skipped", [[20, 30]]), "orders[0]: offsets 20..30 are not passed over"),
        (change("partitions.2.skipped", [[0, 1]]), "orders[2]: offsets 0..1 are not passed over"),
        (change("instant", "2026-11-17T08:00:00"), "an instant without a time zone"),
        (change("instant", "2026-11-17T08:00:00Z"), "instant: not what the rest of it says"),
        (change("instant", "yesterday"), "Invalid isoformat string"),
        (change("partitions.0.old_position.leader_epoch", 2**31), "a number that is negative or too large"),
        (change("partitions.0.old_position.offset", None), "null where a number is expected"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_what_was_changed_is_told(changing: Callable[[dict[str, Any]], None], words: str) -> None:
    changed = saved()
    changing(changed)
    told = refused(changed)
    assert told.startswith("The saved preview was changed, and cannot be read: ")
    assert words in told


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5) | st.just(ID),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["offset", "topic_id", "leader_epoch", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.sampled_from(WAYS), plain), min_size=1, max_size=3))
def test_whatever_is_put_into_it_is_read_or_refused(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    changed = saved()
    for path, value in changes:
        try:
            holder(changed, path)[path[-1]] = deepcopy(value)
        except (LookupError, TypeError):  # an earlier change took the place away
            continue
    try:
        read = Preview.from_json(json.dumps(changed))
    except ConfigurationError:
        return
    assert read.as_dict() == changed


@given(plain)
def test_any_json_is_read_or_refused(anything: object) -> None:
    with pytest.raises(ConfigurationError):
        Preview.from_json(json.dumps(anything))


@given(st.integers(0, 10_000), st.text(st.sampled_from('0123456789",:{}[]nulte-.\\ '), max_size=4))
def test_any_text_in_the_middle_is_read_or_refused(at: int, text: str) -> None:
    whole = json.dumps(PREVIEW.as_dict())
    at %= len(whole)
    try:
        read = Preview.from_json(whole[:at] + text + whole[at + len(text) :])
    except ConfigurationError:
        return
    assert Preview.from_dict(read.as_dict()) == read
