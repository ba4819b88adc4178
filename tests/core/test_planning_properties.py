"""What is true of every plan, whatever is stored and whatever the logs have. The ids (P08, P19, …) are those of the
cases in `docs/semantics.md`.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Gap, PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.planning import OnDataLoss, Plan, Start, decide
from airflow_kafka_offsets.core.slices import split
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, PlanningError
from tests.support.examples import examples
from tests.support.plans import ID, OTHER_ID, T0, T1, offsets


@examples(2000)
@given(
    timestamps=st.lists(st.integers(0, 20), min_size=1, max_size=40),
    loads=st.lists(
        st.tuples(
            st.integers(0, 40),  # how many records are there by then
            st.none() | st.integers(0, 22),  # until
            st.none() | st.integers(1, 9),  # max_records
        ),
        min_size=1,
        max_size=8,
    ),
)
@example(timestamps=[2, 0], loads=[(1, 2, None), (2, 1, None)])
@example(timestamps=[1, 3, 2], loads=[(2, 3, None), (3, 3, None), (3, 4, None)])
def test_loads_up_to_instants_load_every_record_once_and_late_ones_with_the_next(
    timestamps: list[int], loads: list[tuple[int, int | None, int | None]]
) -> None:
    """A model of reader and commit beside the real decision: what Kafka calls the offset of a time, and positions."""

    def offset_of(instant: int, end: int) -> int:
        return next((o for o, timestamp in enumerate(timestamps[:end]) if timestamp >= instant), end)

    position = Position(0)
    loaded: list[int] = []
    written = 0
    for more, until, max_records in loads:
        written = max(written, min(more, len(timestamps)))
        start = position.offset
        targets = {T0: offset_of(until, written)} if until is not None else None
        for _ in range(written + 2):
            plan = decide({T0: position}, {T0: PartitionLog(0, written)}, targets=targets, max_records=max_records)
            if not plan.ranges:
                break
            (one,) = plan.ranges
            loaded += [offset for piece in split(plan.ranges, 3) for offset in range(piece.start, piece.end)]
            position = Position(one.end)
        else:
            pytest.fail("the load does not come to an end")
        if until is None:
            assert position.offset == written
        else:
            # The first record at or after the instant is left, with all that arrived after it, however old.
            assert position.offset == max(start, offset_of(until, written))
            assert all(timestamps[offset] < until for offset in loaded if offset >= start)
    assert loaded == list(range(position.offset)), "a record was loaded twice, or passed over"
    # A load without a bound loads what was left.
    loaded += [
        o
        for one in decide({T0: position}, {T0: PartitionLog(0, len(timestamps))}).ranges
        for o in range(one.start, one.end)
    ]
    assert loaded == list(range(len(timestamps)))


# Everything that can be true of a cluster and of what is stored, without any relation between the two.

_topic_ids = st.sampled_from([None, ID, OTHER_ID])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, PartitionLog]]:
    positions: dict[TopicPartition, Position] = {}
    logs: dict[TopicPartition, PartitionLog] = {}
    for topic in draw(st.sampled_from([["a"], ["a", "b"], ["b", "a", "c"]])):
        topic_id, stored_id = draw(st.sampled_from([(ID, ID)] * 4 + [(None, ID), (ID, None), (ID, OTHER_ID)]))
        for partition in range(draw(st.integers(1, 4))):
            beginning = draw(st.integers(0, 30))
            end = beginning + draw(st.integers(0, 30))
            logs[TopicPartition(topic, partition)] = PartitionLog(beginning, end, topic_id)
            if draw(st.booleans()):
                offset = draw(st.integers(beginning, end) | st.integers(0, 70))
                positions[TopicPartition(topic, partition)] = Position(offset, stored_id)
    return positions, logs


@st.composite
def sound_worlds(draw: st.DrawFn) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, PartitionLog]]:
    """Positions that fit their logs, apart from records that are gone."""
    positions, logs = draw(worlds())
    positions = {tp: replace(at, offset=min(at.offset, logs[tp].end), topic_id=None) for tp, at in positions.items()}
    return positions, logs


options = {
    "start": st.sampled_from(["earliest", "latest", "none"]),
    "on_data_loss": st.sampled_from(["fail", "skip"]),
    "max_records": st.none() | st.integers(1, 60),
}


@examples(1500)
@given(
    world=worlds(),
    targets=st.none() | st.dictionaries(st.sampled_from([T0, T1]), st.integers(0, 70)),
    **options,
)
def test_a_plan_is_within_the_logs_and_starts_at_the_position_or_by_a_documented_decision(
    world: tuple[dict[TopicPartition, Position], dict[TopicPartition, PartitionLog]],
    targets: dict[TopicPartition, int] | None,
    start: Start,
    on_data_loss: OnDataLoss,
    max_records: int | None,
) -> None:
    positions, logs = world
    try:
        plan = decide(positions, logs, start=start, on_data_loss=on_data_loss, max_records=max_records, targets=targets)
    except PlanningError:
        return
    gaps = {TopicPartition(gap.topic, gap.partition): gap for gap in plan.gaps}
    planned = [one.topic_partition for one in (*plan.ranges, *plan.initial)]
    assert len(set(planned)) == len(planned)
    for one in (*plan.ranges, *plan.initial):
        tp, log = one.topic_partition, logs[one.topic_partition]
        assert log.beginning <= one.start <= one.end <= one.target <= log.end
        assert one.topic_id == log.topic_id
        starts = {
            "stored": positions[tp].offset if tp in positions else None,
            "earliest": log.beginning,
            "new-partition": log.beginning,
            "latest": log.end,
            "skipped-gap": log.beginning,
        }
        assert one.start == starts[one.how]
        assert (one.how == "skipped-gap") == (tp in gaps)
    for tp, gap in gaps.items():
        assert on_data_loss == "skip"
        assert tp in planned
        assert (gap.start, gap.end) == (positions[tp].offset, logs[tp].beginning)
        assert gap.start < gap.end
    assert all(one.topic_partition not in positions and len(one) == 0 for one in plan.initial)
    assert set(logs) - set(positions) <= set(planned), "a partition stays without a position"


@examples(1000)
@given(world=sound_worlds(), cap=st.integers(1, 150))
def test_P19_a_capped_plan_spans_the_cap_or_all_there_is(
    world: tuple[dict[TopicPartition, Position], dict[TopicPartition, PartitionLog]], cap: int
) -> None:
    positions, logs = world
    everything = decide(positions, logs, on_data_loss="skip")
    capped = decide(positions, logs, on_data_loss="skip", max_records=cap)
    assert offsets(capped) == min(cap, offsets(everything))
    assert [(one.topic_partition, one.start, one.target) for one in capped.ranges] == [
        (one.topic_partition, one.start, one.end) for one in everything.ranges
    ]
    if cap >= sum(1 for one in everything.ranges if len(one)):
        assert [len(one) > 0 for one in capped.ranges] == [len(one) > 0 for one in everything.ranges]


@examples(500)
@given(world=worlds(), **options)
def test_the_same_input_gives_the_same_plan_in_any_order(
    world: tuple[dict[TopicPartition, Position], dict[TopicPartition, PartitionLog]],
    start: Start,
    on_data_loss: OnDataLoss,
    max_records: int | None,
) -> None:
    def outcome(
        positions: Mapping[TopicPartition, Position], logs: Mapping[TopicPartition, PartitionLog]
    ) -> Plan | tuple[type[KafkaOffsetsError], str]:
        try:
            return decide(positions, logs, start=start, on_data_loss=on_data_loss, max_records=max_records)
        except PlanningError as error:
            return type(error), str(error)

    positions, logs = world
    reordered = dict(reversed(positions.items())), dict(reversed(logs.items()))
    assert outcome(positions, logs) == outcome(*reordered)


@examples(1000)
@given(
    world=sound_worlds(),
    max_records=st.none() | st.integers(1, 25),
    growth=st.lists(st.integers(0, 9), min_size=1, max_size=8),
)
def test_successive_plans_load_everything_exactly_once_up_to_the_captured_targets(
    world: tuple[dict[TopicPartition, Position], dict[TopicPartition, PartitionLog]],
    max_records: int | None,
    growth: list[int],
) -> None:
    positions, logs = world
    expected = decide(positions, logs, on_data_loss="skip")
    assume(expected.ranges)
    loaded: dict[TopicPartition, list[int]] = {one.topic_partition: [] for one in expected.ranges}
    skipped: list[Gap] = []
    targets: dict[TopicPartition, int] | None = None
    # Each batch loads an offset, or is the one that records the gaps.
    for batch in range(offsets(expected) + 2):
        plan = decide(positions, logs, on_data_loss="skip", max_records=max_records, targets=targets)
        if not plan.ranges:
            break
        if targets is None:
            targets = {one.topic_partition: one.target for one in plan.ranges}
        skipped += plan.gaps
        for one in plan.ranges:
            loaded[one.topic_partition] += range(one.start, one.end)
            positions[one.topic_partition] = Position(one.end, one.topic_id)
        # Producers do not wait for the load.
        added = growth[batch % len(growth)]
        logs = {tp: replace(log, end=log.end + added) for tp, log in logs.items()}
    else:
        pytest.fail("the load does not come to an end")
    assert loaded == {one.topic_partition: list(range(one.start, one.end)) for one in expected.ranges}
    assert skipped == list(expected.gaps)
