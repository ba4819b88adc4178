"""How many slices and Spark tasks a batch has."""

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import OffsetRange, Slice, TopicPartition
from airflow_kafka_offsets.core.slices import assign, split


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


split_arguments = given(ranges=offset_ranges(), slice_offsets=st.integers(1, 350))


def of_each_range(slices: list[Slice]) -> dict[TopicPartition, list[Slice]]:
    """Slices by partition, in the order in which they were returned."""
    pieces: dict[TopicPartition, list[Slice]] = defaultdict(list)
    for one in slices:
        pieces[TopicPartition(one.topic, one.partition)].append(one)
    return pieces


@split_arguments
def test_slices_tile_each_range_exactly(ranges: list[OffsetRange], slice_offsets: int) -> None:
    pieces = of_each_range(split(ranges, slice_offsets))
    for one in ranges:
        if not len(one):
            continue
        of_range = pieces[one.topic_partition]
        assert of_range[0].start == one.start
        assert of_range[-1].end == one.end
        assert all(before.end == after.start for before, after in pairwise(of_range))


@split_arguments
def test_what_expires_first_is_read_first(ranges: list[OffsetRange], slice_offsets: int) -> None:
    starts = {one.topic_partition: one.start for one in ranges}
    distances = [one.start - starts[TopicPartition(one.topic, one.partition)] for one in split(ranges, slice_offsets)]
    assert distances == sorted(distances)


@split_arguments
def test_no_slice_is_empty_or_longer_than_the_maximum(ranges: list[OffsetRange], slice_offsets: int) -> None:
    assert all(1 <= len(one) <= slice_offsets for one in split(ranges, slice_offsets))


@split_arguments
def test_slices_of_a_range_differ_by_one_offset_at_most(ranges: list[OffsetRange], slice_offsets: int) -> None:
    for of_range in of_each_range(split(ranges, slice_offsets)).values():
        sizes = [len(one) for one in of_range]
        assert max(sizes) - min(sizes) <= 1


@split_arguments
def test_a_range_becomes_as_few_slices_as_the_maximum_allows(ranges: list[OffsetRange], slice_offsets: int) -> None:
    pieces = of_each_range(split(ranges, slice_offsets))
    for one in ranges:
        assert len(pieces.get(one.topic_partition, [])) == -(-len(one) // slice_offsets)


@split_arguments
def test_indexes_are_consecutive_from_zero(ranges: list[OffsetRange], slice_offsets: int) -> None:
    slices = split(ranges, slice_offsets)
    assert [one.index for one in slices] == list(range(len(slices)))


@given(ranges=offset_ranges(), slice_offsets=st.integers(1, 350), writes_files=st.booleans())
def test_tasks_read_all_slices_in_their_order(
    ranges: list[OffsetRange], slice_offsets: int, writes_files: bool
) -> None:
    slices = split(ranges, slice_offsets, writes_files=writes_files)
    tasks = assign(slices, slice_offsets, writes_files=writes_files)
    assert [one for task in tasks for one in task] == slices
    assert all(tasks)


@given(ranges=offset_ranges(), slice_offsets=st.integers(1, 350))
def test_slices_share_a_task_up_to_an_eighth_of_the_offsets_of_a_slice(
    ranges: list[OffsetRange], slice_offsets: int
) -> None:
    tasks = assign(split(ranges, slice_offsets), slice_offsets)
    assert all(len(task) == 1 or sum(map(len, task)) <= slice_offsets // 8 for task in tasks)
    # As few tasks as that allows.
    for task, following in pairwise(tasks):
        assert len(task) == 64 or sum(map(len, task)) + len(following[0]) > slice_offsets // 8


def offsets_of_tasks(lengths: list[int], *, writes_files: bool = False) -> list[list[int]]:
    """Return how many offsets the slices of each task have, of a batch with default slices.

    :param lengths: the offsets of each partition
    """
    ranges = [offset_range("t", partition, 5, 5 + length) for partition, length in enumerate(lengths)]
    slices = split(ranges, 250_000, writes_files=writes_files)
    tasks = assign(slices, 250_000, writes_files=writes_files)
    return [[len(one) for one in task] for task in tasks]


@pytest.mark.parametrize("writes_files", [False, True])
@pytest.mark.parametrize(
    ("lengths", "tasks"),
    [
        pytest.param([1000], [[1000]], id="a small batch"),
        pytest.param([10_000, 20_000, 10_000, 5_000], [[10_000, 20_000], [10_000, 5_000]], id="small partitions"),
        pytest.param([100, 600_000, 100], [[100], [200_000], [100], [200_000], [200_000]], id="a skewed batch"),
        pytest.param([1] * 130, [[1] * 64, [1] * 64, [1, 1]], id="many partitions"),
        pytest.param([0, 0], [], id="nothing"),
    ],
)
def test_batches_of_less_than_24_large_slices(lengths: list[int], tasks: list[list[int]], writes_files: bool) -> None:
    assert offsets_of_tasks(lengths, writes_files=writes_files) == tasks


def test_a_large_batch_for_a_lake_table_has_larger_slices_rather_than_more() -> None:
    partitions = [12_000_000, 6_000_000, 6_000_000]

    # 24 million offsets, in files of a million each.
    assert offsets_of_tasks(partitions, writes_files=True) == [[1_000_000]] * 24
    assert offsets_of_tasks(partitions) == [[250_000]] * 96


def test_a_slice_for_a_lake_table_has_eight_times_the_offsets_at_most() -> None:
    assert offsets_of_tasks([240_000_000], writes_files=True) == [[2_000_000]] * 120


def test_partitions_of_a_large_batch_for_a_lake_table_share_files() -> None:
    # A task reads up to 24 million / 24 offsets: three partitions fit.
    tasks = offsets_of_tasks([300_000] * 80, writes_files=True)
    assert tasks == [[300_000] * 3] * 26 + [[300_000] * 2]


def test_an_empty_range_gives_no_slice_and_takes_no_index() -> None:
    ranges = [offset_range("t", 0, 5, 5), offset_range("t", 1, 3, 4), offset_range("t", 2, 0, 0)]
    assert split(ranges, 10) == [Slice(0, "t", 1, 3, 4)]


def test_no_ranges_give_no_slices() -> None:
    assert split([], 10) == []
