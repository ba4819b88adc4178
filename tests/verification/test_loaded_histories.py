"""Histories of loads, made by a model of what a load does: they are proved, and one broken thing is named."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, Position, TopicPartition
from airflow_kafka_offsets.sinks.target_rows import RowCount
from airflow_kafka_offsets.verification.facts import BatchFacts, LoadedRange
from tests.support.histories import OTHER_ID, Log, draw_range, proved, records_of, tally, without


@dataclass
class Model:
    """Loads logs as the package does, and keeps what a database would hold of it."""

    logs: dict[TopicPartition, Log]
    positions: dict[TopicPartition, Position]
    batches: list[BatchFacts]
    as_they_are: Counter[tuple[TopicPartition, int]]  # records of batches without a transform


@st.composite
def histories(draw: st.DrawFn) -> Model:
    partitions = [TopicPartition(topic, partition) for topic in "ab" for partition in (0, 1)]
    logs = {
        tp: draw(st.dictionaries(st.integers(0, 40), st.integers(0, 9), max_size=25))
        for tp in draw(st.lists(st.sampled_from(partitions), min_size=1, unique=True))
    }
    model = Model(logs, {}, [], Counter())
    for batch_id in range(1, draw(st.integers(1, 6)) + 1):
        chosen = draw(st.lists(st.sampled_from(sorted(logs)), min_size=1, unique=True))
        planned = [draw_range(draw, model.positions.get(tp), tp) for tp in sorted(chosen)]
        state = draw(st.sampled_from(["committed"] * 4 + ["abandoned"]))
        if state == "committed":
            model.batches.append(draw_commit(draw, model, batch_id, planned))
        else:
            ranges = tuple(LoadedRange(one) for one, _ in planned)
            model.batches.append(BatchFacts(batch_id, state=state, ranges=ranges))
    assume(model.positions)
    return model


def draw_commit(
    draw: st.DrawFn, model: Model, batch_id: int, planned: list[tuple[OffsetRange, Gap | None]]
) -> BatchFacts:
    has_transform = draw(st.integers(0, 3)) == 0
    ranges, rows, dead_letters = [], [], []
    for one, _ in planned:
        tp = one.topic_partition
        records = records_of(model.logs[tp], one)
        aside = [offset for offset in records if draw(st.integers(0, 7)) == 0]
        written = [offset for offset in records if offset not in aside]
        if has_transform:
            written = draw(st.lists(st.sampled_from(written), max_size=6)) if written else []
        else:
            model.as_they_are.update((tp, offset) for offset in records)
        ranges.append(LoadedRange(one, None if has_transform else len(records), len(aside)))
        rows += [tally(written, tp)] if written else []
        dead_letters += [tally(aside, tp)] if aside else []
        model.positions[tp] = Position(one.end, one.topic_id)
    if has_transform and draw(st.booleans()):  # it dropped the columns
        rows = [RowCount(None, None, sum(row.count for row in rows))] if rows else []
    return BatchFacts(
        batch_id,
        state="committed",
        target_table="target",
        has_transform=has_transform,
        row_count=sum(row.count for row in rows),
        ranges=tuple(ranges),
        gaps=tuple(gap for _, gap in planned if gap is not None),
        rows=tuple(rows),
        dead_letters=tuple(dead_letters),
    )


@given(histories())
def test_a_correct_history_is_proved(model: Model) -> None:
    found = proved(model.batches, model.positions)

    assert found.violations == []
    committed = [batch for batch in model.batches if batch.state == "committed"]
    assert (found.partitions, found.batches) == (len(model.positions), len(committed))
    assert found.rows == sum(batch.row_count or 0 for batch in committed)
    assert found.dead_letters == sum(row.count for batch in committed for row in batch.dead_letters)
    assert found.gaps == sum(gap.end - gap.start for batch in committed for gap in batch.gaps)
    assert found.records == sum(one.records or 0 for batch in committed for one in batch.ranges)


@given(histories())
def test_reading_again_sees_exactly_what_batches_without_a_transform_loaded(model: Model) -> None:
    seen: Counter[tuple[TopicPartition, int]] = Counter()
    for span in proved(model.batches, model.positions).spans:
        tp = TopicPartition(span.topic, span.partition)
        one = span.slice_within(0, 1000)
        assert one is not None
        seen.update((tp, offset) for offset in model.logs[tp] if one.start <= offset < one.end)

    assert seen == model.as_they_are


Broken = tuple[Model, TopicPartition | None, int | None]
"""The model with one thing broken, and the partition and batch that the first violation must name, where they are
certain.
"""


def with_batch(model: Model, index: int, **values: object) -> Model:
    batches = list(model.batches)
    batches[index] = replace(batches[index], **values)  # type: ignore[arg-type]
    return replace(model, batches=batches)


def with_range(model: Model, index: int, which: int, **values: object) -> Model:
    ranges = list(model.batches[index].ranges)
    ranges[which] = replace(ranges[which], **values)  # type: ignore[arg-type]
    return with_batch(model, index, ranges=tuple(ranges))


def broken_batches(model: Model, index: int) -> Iterator[Broken]:
    batch = model.batches[index]
    if batch.state != "committed":
        return
    if batch.rows:
        for state in ("planned", "staged", "abandoned"):
            yield with_batch(model, index, state=state), None, batch.batch_id
    if batch.has_transform:
        yield with_batch(model, index, row_count=(batch.row_count or 0) + 1), None, batch.batch_id
    for which, row in enumerate(batch.rows):
        if (tp := row.topic_partition) is None:
            continue
        one = next(found.range for found in batch.ranges if found.range.topic_partition == tp)
        changes = [{"first": one.start - 1}, {"last": one.end}, {"count": row.count + 1}, {"count": row.count - 1}]
        changes += [{"distinct": row.distinct - 1}] if not batch.has_transform else []
        for change in changes:
            rows = list(batch.rows)
            rows[which] = replace(row, **change)  # type: ignore[arg-type]
            # Of a transform's rows, only the sum over all partitions is known.
            place = None if batch.has_transform and "count" in change else tp
            yield with_batch(model, index, rows=tuple(rows)), place, batch.batch_id
    for which, dead_letter in enumerate(batch.dead_letters):
        less = without(batch.dead_letters, which)
        yield with_batch(model, index, dead_letters=less), dead_letter.topic_partition, batch.batch_id
    for which, gap in enumerate(batch.gaps):
        tp = TopicPartition(gap.topic, gap.partition)
        one = next(found.range for found in batch.ranges if found.range.topic_partition == tp)
        if one.how == "skipped-gap":
            yield with_batch(model, index, gaps=without(batch.gaps, which)), tp, batch.batch_id


def broken_ranges(model: Model, index: int) -> Iterator[Broken]:
    batch = model.batches[index]
    if batch.state != "committed":
        return
    for which, found in enumerate(batch.ranges):
        one, tp = found.range, found.range.topic_partition
        if one.end > one.start:
            yield with_batch(model, index, ranges=without(batch.ranges, which)), tp, None
        yield with_range(model, index, which, range=replace(one, end=one.end + 1)), tp, None
        if one.how != "earliest":  # a start that was chosen may be anywhere
            for start in (one.start - 1, one.start + 1):
                yield with_range(model, index, which, range=replace(one, start=start)), tp, batch.batch_id
        if one.how == "stored":
            yield with_range(model, index, which, range=replace(one, topic_id=OTHER_ID)), tp, batch.batch_id
        if found.records is not None:
            yield with_range(model, index, which, records=found.records + 1), tp, batch.batch_id
        yield with_range(model, index, which, dead_letters=found.dead_letters + 1), tp, batch.batch_id


def broken_positions(model: Model) -> Iterator[Broken]:
    for tp, position in model.positions.items():
        others = {other: found for other, found in model.positions.items() if other != tp}
        yield replace(model, positions=others), tp, None
        for changed in (
            replace(position, offset=position.offset + 1),
            replace(position, offset=position.offset - 1),
            replace(position, topic_id=OTHER_ID),
        ):
            yield replace(model, positions=others | {tp: changed}), tp, None
    stranger = TopicPartition("stranger", 0)
    yield replace(model, positions=model.positions | {stranger: Position(5)}), stranger, None
    unknown = BatchFacts(99, rows=(tally([1, 2]),))
    yield replace(model, batches=[*model.batches, unknown]), None, 99


@given(histories(), st.data())
def test_one_broken_thing_is_named(model: Model, data: st.DataObject) -> None:
    ways = list(broken_positions(model))
    for index in range(len(model.batches)):
        ways += [*broken_batches(model, index), *broken_ranges(model, index)]
    broken, tp, batch_id = data.draw(st.sampled_from(ways))

    found = proved(broken.batches, broken.positions)

    assert found.violations
    first = found.violations[0]
    if tp is not None:
        assert TopicPartition(str(first.topic), int(first.partition or 0)) == tp
        assert first.words.startswith(f"{tp}: ")
    if batch_id is not None:
        assert first.batch_id == batch_id
        assert f"batch {batch_id}" in first.words
