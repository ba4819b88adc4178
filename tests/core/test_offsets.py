"""Value types, and splitting ranges into slices."""

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import OffsetRange, Slice, TopicPartition, pack, split


def offset_range(topic: str, partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(topic, partition, start, end, end)


@st.composite
def offset_ranges(draw: st.DrawFn) -> list[OffsetRange]:
    partitions = draw(
        st.lists(st.tuples(st.sampled_from(["a", "b.c"]), st.integers(0, 5)), unique=True, min_size=1, max_size=6)
    )
    return [
        offset_range(topic, partition, start, start + length)
        for topic, partition in partitions
        for start, length in [draw(st.tuples(st.integers(0, 2**62), st.integers(0, 300)))]
    ]


split_arguments = given(ranges=offset_ranges(), max_offsets=st.integers(1, 350))


def of_each_range(slices: list[Slice]) -> dict[TopicPartition, list[Slice]]:
    """Slices by partition, in the order in which they were returned."""
    return {
        tp: list(pieces) for tp, pieces in groupby(slices, key=lambda one: TopicPartition(one.topic, one.partition))
    }


@split_arguments
def test_slices_tile_each_range_exactly(ranges: list[OffsetRange], max_offsets: int) -> None:
    pieces = of_each_range(split(ranges, max_offsets))
    for one in ranges:
        if not len(one):
            continue
        of_range = pieces[one.topic_partition]
        assert of_range[0].start == one.start
        assert of_range[-1].end == one.end
        assert all(before.end == after.start for before, after in pairwise(of_range))


@split_arguments
def test_no_slice_is_empty_or_longer_than_the_maximum(ranges: list[OffsetRange], max_offsets: int) -> None:
    assert all(1 <= len(one) <= max_offsets for one in split(ranges, max_offsets))


@split_arguments
def test_slices_of_a_range_differ_by_one_offset_at_most(ranges: list[OffsetRange], max_offsets: int) -> None:
    for of_range in of_each_range(split(ranges, max_offsets)).values():
        sizes = [len(one) for one in of_range]
        assert max(sizes) - min(sizes) <= 1


@split_arguments
def test_a_range_becomes_as_few_slices_as_the_maximum_allows(ranges: list[OffsetRange], max_offsets: int) -> None:
    pieces = of_each_range(split(ranges, max_offsets))
    for one in ranges:
        assert len(pieces.get(one.topic_partition, [])) == -(-len(one) // max_offsets)


@split_arguments
def test_indexes_are_consecutive_from_zero(ranges: list[OffsetRange], max_offsets: int) -> None:
    slices = split(ranges, max_offsets)
    assert [one.index for one in slices] == list(range(len(slices)))


@given(ranges=offset_ranges(), slice_offsets=st.integers(1, 350), task_offsets=st.integers(0, 350))
def test_tasks_share_slices_out_in_their_order(
    ranges: list[OffsetRange], slice_offsets: int, task_offsets: int
) -> None:
    slices = split(ranges, slice_offsets)
    tasks = pack(slices, task_offsets)
    assert [one for task in tasks for one in task] == slices
    assert all(len(task) == 1 or sum(map(len, task)) <= task_offsets for task in tasks)
    # As few as that allows.
    for task, following in pairwise(tasks):
        assert len(task) == 64 or sum(map(len, task)) + len(following[0]) > task_offsets


def test_a_task_takes_so_many_slices_at_most() -> None:
    slices = split([offset_range("t", partition, 0, 1) for partition in range(130)], 10)
    assert [len(task) for task in pack(slices, 1000)] == [64, 64, 2]


def test_an_empty_range_gives_no_slice_and_takes_no_index() -> None:
    ranges = [offset_range("t", 0, 5, 5), offset_range("t", 1, 3, 4), offset_range("t", 2, 0, 0)]
    assert split(ranges, 10) == [Slice(0, "t", 1, 3, 4)]


def test_no_ranges_give_no_slices() -> None:
    assert split([], 10) == []


@pytest.mark.parametrize("max_offsets", [0, -1])
def test_a_maximum_below_one_is_refused_with_its_value(max_offsets: int) -> None:
    with pytest.raises(ValueError, match=f"got {max_offsets}"):
        split([offset_range("t", 0, 0, 10)], max_offsets)


def test_a_range_spans_end_minus_start_offsets() -> None:
    assert len(offset_range("t", 0, 7, 10)) == 3


def test_texts_name_topic_partition_and_offsets() -> None:
    assert str(offset_range("orders", 3, 7, 10)) == "orders[3] 7..10"
    assert str(TopicPartition("orders", 3)) == "orders[3]"
