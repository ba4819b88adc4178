"""A preview that is saved and read again: the same, or refused."""

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Position
from airflow_kafka_offsets.core.text import MAX_INT64
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.rewinding.preview import PartitionRewind, RewindPreview, _checksum

ID = "vVZ4aDWLQP2NkY0pxyHJYA"
MOVED_BACK = PartitionRewind("orders", 0, 20, 500, Position(100, ID, 3), Position(20, ID, 4), True, "clamped")
MOVED_ON = PartitionRewind(
    "orders", 1, 0, 500, Position(100, ID), Position(300, ID, 4), skipped=((120, 200), (250, 300))
)
CHOSEN = PartitionRewind("orders", 2, 0, 500, None, Position(0, ID, 4))
GONE = PartitionRewind("orders", 9, None, None, Position(5, ID), None, note="gone")
SAME = PartitionRewind("returns", 0, 50, 60, Position(10, ID), Position(10, ID))
PREVIEW = RewindPreview(
    'søren\'s group, "x"',
    "MkU3OEVBNTcwNTJENDM2Qg",
    4,
    "to-datetime 2026-11-17T08:00:00Z",
    "rewind",
    (MOVED_BACK, MOVED_ON, CHOSEN, GONE, SAME),
    datetime(2026, 11, 17, 8, tzinfo=UTC),
    17,
)


def saved(preview: RewindPreview = PREVIEW) -> dict[str, Any]:
    """As JSON holds it."""
    found: dict[str, Any] = json.loads(json.dumps(preview.as_dict()))
    return found


def refused(changed: object) -> str:
    with pytest.raises(ConfigurationError) as raised:
        RewindPreview.from_json(json.dumps(changed))
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
    if new is not None and new.offset < MAX_INT64:
        loaded_to = draw(st.none() | st.integers(new.offset + 1, MAX_INT64))
    return PartitionRewind(draw(words), partition, ends[0], ends[1], old, new, *flags, skipped, loaded_to)


@st.composite
def previews(draw: st.DrawFn) -> RewindPreview:
    return RewindPreview(
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
def test_saved_previews_are_read_again(preview: RewindPreview) -> None:
    assert RewindPreview.from_dict(preview.as_dict()) == preview
    assert RewindPreview.from_json(json.dumps(preview.as_dict())) == preview
    assert RewindPreview.from_json(json.dumps(preview.as_dict(), indent=1, sort_keys=True)) == preview


def test_offsets_are_skipped_from_the_first_on_and_side_by_side() -> None:
    preview = replace(PREVIEW, partitions=(replace(PREVIEW.partitions[0], skipped=((0, 3), (3, 5), (9, 10))),))
    assert RewindPreview.from_dict(preview.as_dict()) == preview


def test_a_saved_preview_is_plain_data_with_every_move() -> None:
    back, on, chosen, gone, same = saved()["partitions"]

    assert (back["old_offset"], back["new_offset"], back["difference"], back["reread"], back["clamped"]) == (
        100,
        20,
        -80,
        80,
        True,
    )
    assert (on["old_offset"], on["new_offset"], on["difference"], on["reread"], on["skipped"]) == (
        100,
        300,
        200,
        0,
        [[120, 200], [250, 300]],
    )
    assert (chosen["old_offset"], chosen["new_offset"], chosen["difference"]) == (None, 0, None)
    assert (gone["old_offset"], gone["new_offset"], gone["beginning_offset"], gone["end_offset"]) == (
        5,
        None,
        None,
        None,
    )
    assert (same["old_offset"], same["new_offset"], same["difference"]) == (10, 10, 0)
    assert (saved()["offsets_reread"], saved()["offsets_skipped"]) == (80, 130)
    assert saved()["instant"] == "2026-11-17T08:00:00+00:00"


def test_a_preview_knows_which_positions_change() -> None:
    assert PREVIEW.changed == (MOVED_BACK, MOVED_ON, CHOSEN, GONE)
    assert replace(PREVIEW, partitions=(SAME,)).changed == ()


# --- what is not ---


@pytest.mark.parametrize(
    "text", ["", "{", "nul", "[" * 100_000, "1" * 5_000, "\0", '{"format": }'], ids=lambda text: repr(text)[:10]
)
def test_a_saved_preview_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="this is none"):
        RewindPreview.from_json(text)


@pytest.mark.parametrize(
    "other", [None, 5, "x", [], {}, [["format", 1]], {"format": "airflow-kafka-offsets rewind 1"}], ids=str
)
def test_json_that_is_not_a_preview_is_refused(other: object) -> None:
    assert "its format is not 'airflow-kafka-offsets rewind 3'" in refused(other)


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


CHANGED = "The saved preview of group 'søren\\'s group, \"x\"' was changed: its checksum is not that of its content"


@pytest.mark.parametrize("path", WAYS, ids=lambda path: ".".join(map(str, path)))
def test_preview_with_a_missing_field_is_refused(path: tuple[Any, ...]) -> None:
    changed = saved()
    del holder(changed, path)[path[-1]]
    assert refused(changed).startswith(("The saved preview of group ", "This is not a saved preview"))


@pytest.mark.parametrize("path", WAYS, ids=lambda path: ".".join(map(str, path)))
def test_preview_with_an_additional_field_is_refused(path: tuple[Any, ...]) -> None:
    changed = saved()
    place = holder(changed, path)
    if isinstance(place, dict):
        place["extra"] = 5
    else:
        place.append(5)
    assert refused(changed).startswith(CHANGED)


WRONG: list[object] = [None, True, 1, {}, {"offset": {}}, [[]], [5], 1.5, float("nan"), -1, 2**63, 10**40, "x"]


@pytest.mark.parametrize("path", WAYS, ids=lambda path: ".".join(map(str, path)))
def test_no_value_may_be_changed(path: tuple[Any, ...]) -> None:
    for wrong in WRONG:
        changed = saved()
        before = holder(changed, path)[path[-1]]
        if before == wrong and type(before) is type(wrong):
            continue
        holder(changed, path)[path[-1]] = wrong
        error = refused(changed)
        assert error.startswith(("The saved preview of group ", "This is not a saved preview")), wrong


@pytest.mark.parametrize(
    "path",
    [path for path in WAYS if type(holder(saved(), path)[path[-1]]) is int],
    ids=lambda path: ".".join(map(str, path)),
)
def test_a_number_cannot_be_changed(path: tuple[Any, ...]) -> None:
    changed = saved()
    holder(changed, path)[path[-1]] += 1
    assert refused(changed).startswith(CHANGED)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5) | st.just(ID),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["offset", "topic_id", "leader_epoch", "x", "format", "checksum"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.sampled_from(WAYS), plain), min_size=1, max_size=3))
def test_whatever_is_changed_is_refused(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    changed = saved()
    for path, value in changes:
        try:
            holder(changed, path)[path[-1]] = deepcopy(value)
        except (LookupError, TypeError):  # an earlier change took the place away
            continue
    if json.dumps(changed) == json.dumps(saved()):
        assert RewindPreview.from_json(json.dumps(changed)) == PREVIEW
    else:
        refused(changed)


@given(plain)
def test_any_other_json_is_refused(anything: object) -> None:
    with pytest.raises(ConfigurationError):
        RewindPreview.from_json(json.dumps(anything))


@given(st.integers(0, 10_000), st.text(st.sampled_from('0123456789",:{}[]nulte-.\\ '), max_size=4))
def test_any_text_in_the_middle_is_refused_or_means_the_same(at: int, text: str) -> None:
    whole = json.dumps(PREVIEW.as_dict())
    at %= len(whole)
    try:
        read = RewindPreview.from_json(whole[:at] + text + whole[at + len(text) :])
    except ConfigurationError:
        return
    assert read == PREVIEW


@pytest.mark.parametrize(
    "change",
    [
        {"partitions": 7},
        {"partitions": [7]},
        {"partitions": [{}]},
        {"instant": "soon"},
        {"generation": "x"},
        {"generation": 2**70},
        {"group_id": "\ud800"},
        {"moves_cluster": "no"},
        {"generation": True},
        {"kind": "delete"},
        {"scenario": "x" * 10_001},
        {"partitions": 2 * saved()["partitions"][:1]},
    ],
)
def test_a_preview_of_another_kind_is_refused_whatever_its_checksum(change: dict[str, Any]) -> None:
    content = {name: value for name, value in saved().items() if name != "checksum"} | change
    with pytest.raises(ConfigurationError, match="not a saved preview of a rewind: "):
        RewindPreview.from_dict(content | {"checksum": _checksum(content)})


@pytest.mark.parametrize(
    "change",
    [
        {"old_position": 7},
        {"old_position": {"offset": "x"}},
        {"new_position": {"place": 1}},
        {"skipped": [1]},
        {"skipped": [[1, "x"]]},
        {"skipped": [[1, float("inf")]]},
        {"skipped": [[5, 3]]},
        {"skipped": [[-5, 3]]},
        {"skipped": [[1, 5], [3, 8]]},
        {"skipped": [[1, 2**63]]},
        {"old_position": {"offset": -1, "topic_id": None, "leader_epoch": None}},
        {"new_position": {"offset": True, "topic_id": None, "leader_epoch": None}},
        {"beginning_offset": []},
        {"clamped": None},
    ],
)
def test_a_preview_whose_partitions_are_of_another_kind_is_refused(change: dict[str, Any]) -> None:
    content = {name: value for name, value in saved().items() if name != "checksum"}
    content["partitions"] = [content["partitions"][0] | change]
    with pytest.raises(ConfigurationError, match="not a saved preview of a rewind: "):
        RewindPreview.from_dict(content | {"checksum": _checksum(content)})
