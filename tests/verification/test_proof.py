"""What proves that every record was loaded exactly once, and what does not."""

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, PartitionLog, Position, Slice, TopicPartition
from airflow_kafka_offsets.exceptions import VerificationError, Violation
from airflow_kafka_offsets.rewinding.decision import PartitionRewind, decide
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.sink import Detail, RowCount
from airflow_kafka_offsets.verification.facts import BatchRecord, Findings, LoadedRange, Replaced, Span
from airflow_kafka_offsets.verification.proof import prove

T0 = TopicPartition("t", 0)
ID, OTHER_ID = "vVZ4aDWLQP2NkY0pxyHJYA", "Xw-aDWLQP2NkY0pxyHJYBQ"

Log = dict[int, int]  # offsets of records, and their timestamps in milliseconds


def proved(
    batches: list[BatchRecord], positions: dict[TopicPartition, Position], detail: Detail = "offsets"
) -> Findings:
    return prove(batches, positions, target="target", detail=detail)


def only(found: Findings) -> Violation:
    assert len(found.violations) == 1, found.violations
    return found.violations[0]


def tally(offsets: list[int], tp: TopicPartition = T0) -> RowCount:
    return RowCount(*tp, len(offsets), len(set(offsets)), min(offsets), max(offsets))


def loaded(
    batch_id: int, start: int, end: int, *, how: str = "stored", topic_id: str = ID, gap: Gap | None = None
) -> BatchRecord:
    """A batch of one partition whose every offset holds a record."""
    count = end - start
    return BatchRecord(
        batch_id,
        state="committed",
        target_table="target",
        row_count=count,
        ranges=(LoadedRange(OffsetRange(*T0, start, end, end, topic_id, how), count),),
        gaps=(gap,) if gap else (),
        rows=(tally(list(range(start, end))),) if count else (),
    )


FIRST, SECOND = loaded(1, 0, 10, how="earliest"), loaded(2, 10, 15)
AT_15 = {T0: Position(15, ID)}


# --- correct histories, made by a model of what a load does ---


@dataclass
class Model:
    """Loads logs as the package does, and keeps what a database would hold of it."""

    logs: dict[TopicPartition, Log]
    positions: dict[TopicPartition, Position]
    batches: list[BatchRecord]
    as_they_are: Counter[tuple[TopicPartition, int]]  # records of batches without a transform


def records_of(log: Log, one: OffsetRange) -> list[int]:
    return [offset for offset in sorted(log) if one.start <= offset < one.end]


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
            model.batches.append(BatchRecord(batch_id, state=state, ranges=ranges))
    assume(model.positions)
    return model


def draw_range(draw: st.DrawFn, position: Position | None, tp: TopicPartition) -> tuple[OffsetRange, Gap | None]:
    how = "earliest" if position is None else "stored"
    start = position.offset if position is not None else draw(st.integers(0, 3))
    gap = None
    if draw(st.integers(0, 4)) == 0:
        gap = Gap(*tp, start, start + draw(st.integers(1, 4)), "expired", "skipped")
        start, how = gap.end, "skipped-gap" if position is not None else how
    end = start + draw(st.integers(0, 8))
    return OffsetRange(*tp, start, end, end, ID, how), gap


def draw_commit(
    draw: st.DrawFn, model: Model, batch_id: int, planned: list[tuple[OffsetRange, Gap | None]]
) -> BatchRecord:
    has_transform = draw(st.integers(0, 3)) == 0
    ranges, rows, letters = [], [], []
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
        letters += [tally(aside, tp)] if aside else []
        model.positions[tp] = Position(one.end, one.topic_id)
    if has_transform and draw(st.booleans()):  # it dropped the columns
        rows = [RowCount(None, None, sum(row.count for row in rows))] if rows else []
    return BatchRecord(
        batch_id,
        state="committed",
        target_table="target",
        has_transform=has_transform,
        row_count=sum(row.count for row in rows),
        ranges=tuple(ranges),
        gaps=tuple(gap for _, gap in planned if gap is not None),
        rows=tuple(rows),
        dead_letters=tuple(letters),
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


# --- one thing broken ---

Broken = tuple[Model, TopicPartition | None, int | None]
"""The model with one thing broken, and the partition and batch that the first violation must name, where they are certain."""


def with_batch(model: Model, index: int, **values: object) -> Model:
    batches = list(model.batches)
    batches[index] = replace(batches[index], **values)  # type: ignore[arg-type]
    return replace(model, batches=batches)


def with_range(model: Model, index: int, which: int, **values: object) -> Model:
    ranges = list(model.batches[index].ranges)
    ranges[which] = replace(ranges[which], **values)  # type: ignore[arg-type]
    return with_batch(model, index, ranges=tuple(ranges))


def without(things: tuple[object, ...], which: int) -> tuple[object, ...]:
    return things[:which] + things[which + 1 :]


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
    for which, letter in enumerate(batch.dead_letters):
        less = without(batch.dead_letters, which)
        yield with_batch(model, index, dead_letters=less), letter.topic_partition, batch.batch_id
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
    unknown = BatchRecord(99, rows=(tally([1, 2]),))
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


# --- histories with rewinds, undos and replays ---


@dataclass
class Step:
    """A batch of the history, with the rows and dead letters that it left and that are still there."""

    record: BatchRecord
    rows: list[tuple[TopicPartition, int]] = field(default_factory=list)
    letters: list[tuple[TopicPartition, int]] = field(default_factory=list)
    gone: Counter[TopicPartition] = field(default_factory=Counter)
    gone_letters: Counter[TopicPartition] = field(default_factory=Counter)

    def as_record(self) -> BatchRecord:
        places = sorted(self.gone.keys() | self.gone_letters.keys())
        return replace(
            self.record,
            rows=tallies(self.rows),
            dead_letters=tallies(self.letters),
            replaced={tp: Replaced(self.gone[tp], self.gone_letters[tp]) for tp in places},
        )


def tallies(places: list[tuple[TopicPartition, int]]) -> tuple[RowCount, ...]:
    return tuple(
        tally([offset for at, offset in places if at == tp], tp) for tp in sorted({place for place, _ in places})
    )


class World:
    """Loads, rewinds and replays as the package does, and keeps what a database would hold of it."""

    def __init__(self, logs: dict[TopicPartition, Log]) -> None:
        self.logs = logs
        self.positions: dict[TopicPartition, Position] = {}
        self.steps: list[Step] = []
        self.undoable: tuple[PartitionRewind, ...] = ()
        self.replaced = False

    @property
    def records(self) -> list[BatchRecord]:
        return [step.as_record() for step in self.steps]

    @property
    def next_id(self) -> int:
        return len(self.steps) + 1

    @property
    def as_they_are(self) -> Counter[tuple[TopicPartition, int]]:
        """Rows and dead letters of batches without a transform."""
        plain = [step for step in self.steps if not step.record.has_transform]
        return Counter(place for step in plain for place in (*step.rows, *step.letters))

    def remove(self, spans: dict[TopicPartition, tuple[int, int]]) -> None:
        """Take the output of offsets back, and note how much of which batch that was."""
        for step in self.steps:
            for places, gone in ((step.rows, step.gone), (step.letters, step.gone_letters)):
                back = [(tp, at) for tp, at in places if tp in spans and spans[tp][0] <= at < spans[tp][1]]
                gone.update(tp for tp, _ in back)
                places[:] = [place for place in places if place not in back]
        self.replaced = self.replaced or bool(spans)

    def write(self, draw: st.DrawFn, kind: str, ranges: list[LoadedRange], gaps: tuple[Gap, ...], table: str) -> None:
        transformed = draw(st.integers(0, 3)) == 0
        step = Step(BatchRecord(self.next_id, kind, "committed", table, transformed, gaps=gaps))
        done, written = [], 0
        for found in ranges:
            tp = found.range.topic_partition
            records = records_of(self.logs[tp], found.range)
            aside = [offset for offset in records if draw(st.integers(0, 7)) == 0]
            rows = [offset for offset in records if offset not in aside]
            if transformed:
                rows = draw(st.lists(st.sampled_from(rows), max_size=6)) if rows else []
            written += len(rows)
            if table == "target":  # elsewhere, neither counts
                step.rows += [(tp, offset) for offset in rows]
            step.letters += [(tp, offset) for offset in aside]
            done.append(replace(found, records=None if transformed else len(records), dead_letters=len(aside)))
        step.record = replace(step.record, ranges=tuple(done), row_count=written)
        self.steps.append(step)

    def load(self, draw: st.DrawFn) -> None:
        chosen = draw(st.lists(st.sampled_from(sorted(self.logs)), min_size=1, unique=True))
        planned = [draw_range(draw, self.positions.get(tp), tp) for tp in sorted(chosen)]
        gaps = tuple(gap for _, gap in planned if gap is not None)
        self.write(draw, "load", [LoadedRange(one) for one, _ in planned], gaps, "target")
        for one, _ in planned:
            self.positions[one.topic_partition] = Position(one.end, one.topic_id)
        self.undoable = ()

    def replay(self, draw: st.DrawFn) -> None:
        table = draw(st.sampled_from(["target", "target", "elsewhere"]))
        ranges = []
        for tp in sorted(draw(st.lists(st.sampled_from(sorted(self.positions)), min_size=1, unique=True))):
            ends = draw(st.tuples(*[st.integers(0, self.positions[tp].offset)] * 2))
            one = OffsetRange(*tp, min(ends), max(ends), max(ends), ID, "replay")
            ranges.append(LoadedRange(one, replaced=(one.start, one.end) if table == "target" and len(one) else None))
        self.remove({found.range.topic_partition: found.replaced for found in ranges if found.replaced is not None})
        self.write(draw, "replay", ranges, (), table)

    def rewind(self, draw: st.DrawFn) -> None:
        chosen = sorted(draw(st.lists(st.sampled_from(sorted(self.positions)), min_size=1, unique=True)))
        wanted = {tp: draw(st.integers(0, 40)) for tp in chosen}
        found = {tp: Position(offset) for tp, offset in wanted.items()}
        self.move("rewind", Scenario.of("from-file", wanted), found, with_replace=draw(st.booleans()))

    def undo(self) -> None:
        self.move("undo", Scenario.of("undo"), {one.topic_partition: one.old for one in self.undoable}, False)

    def loaded_to(self, one: PartitionRewind) -> int | None:
        """How far there is output at the new position or beyond it."""
        assert one.new is not None
        there = [at for step in self.steps for tp, at in (*step.rows, *step.letters) if tp == one.topic_partition]
        return max(there) + 1 if there and max(there) >= one.new.offset else None

    def move(
        self, kind: str, scenario: Scenario, found: Mapping[TopicPartition, Position | None], with_replace: bool
    ) -> None:
        logs = {tp: PartitionLog(0, 1000, ID) for tp in found}
        decided = decide(scenario, sorted(found), self.positions, logs, found)
        if with_replace:
            decided = tuple(replace(one, loaded_to=self.loaded_to(one)) for one in decided)
        changed = [one for one in decided if one.changes or (with_replace and one.reread is not None)]
        if not changed:
            return
        spans = {one.topic_partition: one.reread for one in changed if with_replace and one.reread is not None}
        ranges = []
        for one in changed:
            assert one.old is not None
            assert one.new is not None
            tp = one.topic_partition
            self.positions[tp] = one.new
            moved = OffsetRange(*tp, one.old.offset, one.new.offset, one.new.offset, ID, "rewind")
            ranges.append(LoadedRange(moved, replaced=spans.get(tp)))
        table = "target" if with_replace else None
        gaps = tuple(gap for one in changed for span in one.skipped for gap in self.never_loaded(one, span))
        self.remove(spans)
        self.steps.append(Step(BatchRecord(self.next_id, kind, "committed", table, ranges=tuple(ranges), gaps=gaps)))
        self.undoable = () if spans else tuple(changed)

    def never_loaded(self, moved: PartitionRewind, span: tuple[int, int]) -> Iterator[Gap]:
        """What of a span no load left behind, or a rewind took back."""
        there: set[int] = set()
        for step in self.steps:
            for found in step.record.ranges:
                if found.range.topic_partition != moved.topic_partition or step.record.kind == "replay":
                    continue
                if step.record.kind == "load":
                    there.update(range(found.range.start, found.range.end))
                elif found.replaced is not None:
                    there.difference_update(range(*found.replaced))
        start = None
        for offset in range(span[0], span[1] + 1):
            missing = offset < span[1] and offset not in there
            if missing and start is None:
                start = offset
            elif not missing and start is not None:
                yield Gap(moved.topic, moved.partition, start, offset, "passed over", "moved forward")
                start = None


@st.composite
def rewound(draw: st.DrawFn) -> World:
    partitions = [TopicPartition(topic, partition) for topic in "ab" for partition in (0, 1)]
    world = World(
        {
            tp: draw(st.dictionaries(st.integers(0, 40), st.integers(0, 9), max_size=25))
            for tp in draw(st.lists(st.sampled_from(partitions), min_size=1, max_size=3, unique=True))
        }
    )
    world.load(draw)
    for _ in range(draw(st.integers(1, 6))):
        what = draw(st.sampled_from(["load", "load", "rewind", "rewind", "undo", "replay"]))
        if what == "undo" and world.undoable:
            world.undo()
        elif what == "rewind":
            world.rewind(draw)
        elif what == "replay":
            world.replay(draw)
        else:
            world.load(draw)
    return world


@given(rewound())
def test_a_history_with_rewinds_and_replays_is_proved(world: World) -> None:
    found = proved(world.records, world.positions)

    assert found.violations == []
    assert found.rows == sum(len(step.rows) for step in world.steps)
    assert found.dead_letters == sum(len(step.letters) for step in world.steps)
    assert (found.partitions, found.batches) == (len(world.positions), len(world.steps))


@given(rewound())
def test_reading_again_after_rewinds_expects_nothing_that_was_removed(world: World) -> None:
    """A record that is expected and was replaced would be told as lost."""
    seen: Counter[tuple[TopicPartition, int]] = Counter()
    left = {step.record.batch_id: Counter([*step.rows, *step.letters]) for step in world.steps}
    for span in proved(world.records, world.positions).spans:
        tp = TopicPartition(span.topic, span.partition)
        of_span = sum((left[one] for one in range(span.first_batch, span.last_batch + 1)), Counter())
        one = span.slice_within(0, 1000)
        assert one is not None
        for offset in world.logs[tp]:
            if one.start <= offset < one.end:
                assert of_span[tp, offset]
                seen[tp, offset] += 1

    elsewhere = any(step.record.target_table == "elsewhere" for step in world.steps)
    if not world.replaced and not elsewhere:
        assert seen == world.as_they_are


def broken_rewound(world: World) -> Iterator[tuple[list[BatchRecord], dict[TopicPartition, Position]]]:
    """The history with one thing broken, in each way."""
    records, positions = world.records, world.positions

    def changed(index: int, **values: object) -> tuple[list[BatchRecord], dict[TopicPartition, Position]]:
        copy = list(records)
        copy[index] = replace(copy[index], **values)  # type: ignore[arg-type]
        return copy, positions

    for tp, position in positions.items():
        for offset in (position.offset - 1, position.offset + 1):
            yield records, positions | {tp: replace(position, offset=offset)}
        yield records, {at: found for at, found in positions.items() if at != tp}
    for index, batch in enumerate(records):
        for which, row in enumerate(batch.rows):
            for fewer in ({"count": row.count - 1, "distinct": row.distinct - 1}, {"count": row.count + 1}):
                rows = list(batch.rows)
                rows[which] = replace(row, **fewer)  # type: ignore[arg-type]
                yield changed(index, rows=tuple(rows))
        for which in range(len(batch.dead_letters)):
            yield changed(index, dead_letters=without(batch.dead_letters, which))
        if batch.kind in ("rewind", "undo") or batch.target_table == "elsewhere":
            yield changed(index, rows=(tally([3], next(iter(world.logs))),))
        if batch.kind in ("rewind", "undo"):
            yield records[:index] + records[index + 1 :], positions
            yield changed(index, dead_letters=(tally([3], next(iter(world.logs))),))
            yield from (changed(index, ranges=ranges) for ranges in broken_moves(batch))
            for which, gap in enumerate(batch.gaps):
                yield changed(index, gaps=without(batch.gaps, which))
                shorter = replace(gap, end=gap.end - 1)
                yield changed(index, gaps=(*without(batch.gaps, which), shorter))
        elif batch.target_table == "target":
            for tp in {found.range.topic_partition for found in batch.ranges}:
                told = batch.replaced_of(tp)
                for wrong in (
                    Replaced(told.rows + 1, told.dead_letters),
                    Replaced(told.rows - 1, told.dead_letters),
                    Replaced(told.rows, told.dead_letters + 1),
                    Replaced(told.rows, told.dead_letters - 1),
                ):
                    yield changed(index, replaced={**batch.replaced, tp: wrong})


def broken_moves(batch: BatchRecord) -> Iterator[tuple[LoadedRange, ...]]:
    for which, found in enumerate(batch.ranges):
        one = found.range
        yield batch.ranges[:which] + batch.ranges[which + 1 :]
        for wrong in (
            replace(one, start=one.start - 1),
            replace(one, end=one.end + 1),
        ):
            yield (*batch.ranges[:which], replace(found, range=wrong), *batch.ranges[which + 1 :])


@given(rewound(), st.data())
def test_one_broken_thing_among_rewinds_is_found(world: World, data: st.DataObject) -> None:
    records, positions = data.draw(st.sampled_from(list(broken_rewound(world))))

    assert proved(records, positions).violations


def rewind(
    batch_id: int,
    start: int,
    end: int,
    *,
    how: str = "rewind",
    topic_id: str = ID,
    replaced: tuple[int, int] | None = None,
) -> BatchRecord:
    one = OffsetRange(*T0, start, end, end, topic_id, how)
    return BatchRecord(batch_id, "rewind", "committed", ranges=(LoadedRange(one, replaced=replaced),))


def test_rows_behind_a_position_that_was_moved_back_are_there_by_decision() -> None:
    assert proved([FIRST, SECOND, rewind(3, 15, 4)], {T0: Position(4, ID)}).violations == []


def test_a_rewind_starts_where_the_history_had_come_to() -> None:
    violation = only(proved([FIRST, rewind(2, 9, 4)], {T0: Position(4, ID)}))

    assert "batch 2 begins at offset 9, but the history is at offset 10 with batch 1" in violation.words


def test_a_move_forward_names_what_it_passes_over_unless_it_was_loaded() -> None:
    at_30 = {T0: Position(30, ID)}
    gap = Gap("t", 0, 15, 30, "passed over", "moved forward by somebody")
    forward = rewind(3, 15, 30)

    assert proved([FIRST, SECOND, replace(forward, gaps=(gap,))], at_30).violations == []
    violation = only(proved([FIRST, SECOND, forward], at_30))
    assert "batch 3 moved the position from offset 15 to 30, and offsets 15..30, which were never loaded, are" in (
        violation.words
    )
    assert (violation.offset, violation.batch_id) == (15, 3)
    # Of another partition, or too short.
    for wrong in (replace(gap, partition=1), replace(gap, topic="u")):
        assert only(proved([FIRST, SECOND, replace(forward, gaps=(wrong,))], at_30)).offset == 15
    assert only(proved([FIRST, SECOND, replace(forward, gaps=(replace(gap, end=28),))], at_30)).offset == 28


@pytest.mark.parametrize(
    ("replaced", "violations"), [(None, []), ((4, 10), ["offsets 4..10"]), ((8, 10), ["offsets 8..10"])]
)
def test_what_was_loaded_may_be_passed_over_unless_it_was_taken_back(
    replaced: tuple[int, int] | None, violations: list[str]
) -> None:
    gone = (replaced[1] - replaced[0]) if replaced is not None else 0
    first = replace(FIRST, rows=(tally([*range(10 - gone)]),), replaced={T0: Replaced(gone)} if gone else {})

    found = proved([first, rewind(2, 10, 4, replaced=replaced), rewind(3, 4, 10)], {T0: Position(10, ID)})

    assert len(found.violations) == len(violations)
    assert all(words in one.words for words, one in zip(violations, found.violations, strict=True))


def test_what_an_earlier_topic_left_is_not_what_the_next_one_passes_over() -> None:
    anew = rewind(2, 10, 3, how="recreated", topic_id=OTHER_ID)

    found = proved([FIRST, anew, rewind(3, 3, 9, topic_id=OTHER_ID)], {T0: Position(9, OTHER_ID)})

    assert "offsets 3..9, which were never loaded" in only(found).words


def replay_into_target(batch_id: int, start: int, end: int, after: frozenset[int] = frozenset()) -> BatchRecord:
    one = OffsetRange(*T0, start, end, end, ID, "replay")
    return BatchRecord(
        batch_id,
        "replay",
        "committed",
        "target",
        row_count=end - start,
        ranges=(LoadedRange(one, end - start, replaced=(start, end)),),
        rows=(tally(list(range(start, end))),),
        after=after,
    )


def test_a_replay_that_was_committed_late_replaces_what_was_loaded_before_that() -> None:
    """Planned before a rewind and a load that were committed before it."""
    first = replace(FIRST, rows=(), replaced={T0: Replaced(10)})
    late = replay_into_target(2, 0, 5, frozenset({4}))
    again = replace(loaded(4, 3, 10), rows=(tally(list(range(5, 10))),), replaced={T0: Replaced(2)})
    history = [first, late, rewind(3, 10, 3, replaced=(3, 10)), again]

    found = proved(history, {T0: Position(10, ID)})

    assert found.violations == []
    assert found.spans == [Span("t", 0, 5, 10, 1, 4), Span("t", 0, 0, 5, 2, 2)]
    # What comes after it goes on from what is there, and not from the replay.
    more = proved([*history, loaded(5, 10, 12)], {T0: Position(12, ID)})
    assert [(one.start, one.end) for one in more.spans] == [(5, 10), (0, 5), (10, 12)]


def test_replays_that_wait_for_each_other_are_taken_in_their_order() -> None:
    def left(batch: BatchRecord, offsets: list[int]) -> BatchRecord:
        gone = (batch.row_count or 0) - len(offsets)
        return replace(batch, rows=(tally(offsets),) if offsets else (), replaced={T0: Replaced(gone)})

    # 5 was committed first, then 4, which replaced rows of it, then 3, which replaced rows of 4; then 2.
    history = [
        left(FIRST, []),
        replay_into_target(2, 6, 10, frozenset({3})),
        left(replay_into_target(3, 4, 8, frozenset({4})), [4, 5]),
        left(replay_into_target(4, 2, 6, frozenset({5})), [2, 3]),
        left(replay_into_target(5, 0, 4), [0, 1]),
    ]

    found = proved(history, {T0: Position(10, ID)})

    assert found.violations == []
    assert [(one.start, one.end, one.first_batch, one.last_batch) for one in found.spans] == [
        (0, 2, 5, 5),
        (2, 4, 4, 4),
        (4, 6, 3, 3),
        (6, 10, 2, 2),
    ]


def test_a_row_in_the_name_of_a_rewind_is_found() -> None:
    back = replace(rewind(2, 10, 4), rows=(tally([5]),))

    violation = only(proved([FIRST, back], {T0: Position(4, ID)}))

    assert "holds 1 rows of batch 2, which moved positions and loaded nothing" in violation.words


def test_a_row_of_a_replay_into_another_table_is_found() -> None:
    one = OffsetRange(*T0, 0, 5, 5, ID, "replay")
    replay = BatchRecord(2, "replay", "committed", "elsewhere", row_count=5, ranges=(LoadedRange(one, 5),))

    assert proved([FIRST, replay], {T0: Position(10, ID)}).violations == []
    stray = replace(replay, rows=(tally([3]),))
    violation = only(proved([FIRST, stray], {T0: Position(10, ID)}))
    assert "holds 1 rows of batch 2, a replay into table 'elsewhere'" in violation.words


def appended(batch_id: int, start: int, end: int, topic_id: str = ID) -> BatchRecord:
    """A replay without replace, into the group's own table."""
    one = OffsetRange(*T0, start, end, end, topic_id, "replay")
    rows = (tally(list(range(start, end))),)
    return BatchRecord(
        batch_id,
        "replay",
        "committed",
        "target",
        row_count=end - start,
        ranges=(LoadedRange(one, end - start),),
        rows=rows,
    )


def test_what_a_replay_appended_is_not_loaded_by_the_group_too() -> None:
    first, second = replace(FIRST, batch_id=3), replace(SECOND, batch_id=4)
    at_15 = {T0: Position(15, ID)}

    # Two replays append twice, as they were asked to; so it is where records are of another topic.
    assert proved([appended(1, 15, 20), appended(2, 17, 20), first, second], at_15).violations == []
    assert proved([appended(1, 0, 20, OTHER_ID), first, second], at_15).violations == []
    assert (
        proved([replace(appended(1, 8, 12), target_table="elsewhere", rows=()), first, second], at_15).violations == []
    )
    # In whichever order, and whatever became of the topic since.
    for history in ([appended(1, 8, 12), first, second], [first, second, appended(5, 8, 12)]):
        violation = only(proved(history, at_15))
        assert "offsets 8..12 were appended to table 'target' by batch" in violation.words
        assert (violation.topic, violation.partition, violation.offset) == ("t", 0, 8)
        anew = rewind(6, 15, 3, how="recreated", topic_id=OTHER_ID)
        assert "offsets 8..12" in only(proved([*history, anew], {T0: Position(3, OTHER_ID)})).words
        assert prove(history, at_15, target="target", detail="nothing", replaces_rows=True).violations == []


def test_a_partition_that_was_removed_begins_anew() -> None:
    removed = rewind(2, 10, 10, how="removed")

    assert proved([FIRST, removed], {}).violations == []
    assert proved([FIRST, removed, loaded(3, 0, 4, how="earliest")], {T0: Position(4, ID)}).violations == []
    still = only(proved([FIRST, removed], {T0: Position(10, ID)}))
    assert "no committed batch ever moved it there" in still.words


def test_a_rewind_into_a_topic_that_was_made_anew_begins_its_history() -> None:
    anew = rewind(2, 10, 3, how="recreated", topic_id=OTHER_ID)

    found = proved([FIRST, anew, loaded(3, 3, 5, topic_id=OTHER_ID)], {T0: Position(5, OTHER_ID)})

    assert found.violations == []
    assert found.spans == [Span("t", 0, 3, 5, 3, 3)]


SPAN = Span("t", 0, 10, 20, 1, 2)


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [
        (0, 10, [SPAN]),
        (30, 40, [SPAN]),
        (20, 25, [SPAN]),
        (0, 15, [replace(SPAN, start=15)]),
        (15, 40, [replace(SPAN, end=15)]),
        (12, 15, [replace(SPAN, end=12), replace(SPAN, start=15)]),
        (10, 20, []),
        (0, 99, []),
    ],
)
def test_what_was_replaced_is_cut_out_of_a_span(start: int, end: int, left: list[Span]) -> None:
    assert list(SPAN.without(start, end)) == left


# --- what is said ---


def test_a_hole_names_its_offsets_and_the_batches_around_it() -> None:
    violation = only(proved([FIRST, loaded(3, 12, 15)], AT_15))

    assert violation == Violation(
        "t[0]: batch 3 begins at offset 12, but the history is at offset 10 with batch 1: offsets 10..12 are in no "
        "batch and in no recorded gap",
        "t",
        0,
        10,
        3,
    )


def test_an_overlap_names_its_offsets() -> None:
    violation = only(proved([FIRST, loaded(2, 8, 15)], AT_15))

    assert violation.words.endswith("offsets 8..10 were loaded already")
    assert (violation.offset, violation.batch_id) == (8, 2)


def test_a_range_that_goes_back_is_named() -> None:
    back = replace(loaded(3, 15, 15), ranges=(LoadedRange(OffsetRange(*T0, 15, 12, 12, ID), 0),))

    violation = proved([FIRST, SECOND, back], {T0: Position(12, ID)}).violations[0]

    assert "batch 3 goes from offset 15 back to 12" in violation.words


def test_a_gap_bridges_exactly_from_where_the_history_had_come_to_the_range() -> None:
    gap = Gap(*T0, 10, 12, "expired", "skipped")
    batch = loaded(2, 12, 15, how="skipped-gap", gap=gap)

    assert proved([FIRST, batch], AT_15).gaps == 2
    short = replace(batch, gaps=(replace(gap, end=11),))
    assert "offsets 11..12 are in no batch" in only(proved([FIRST, short], AT_15)).words
    late = replace(batch, gaps=(replace(gap, start=11),))
    assert "batch 2 skips offsets 11..12, but the history is at offset 10" in (only(proved([FIRST, late], AT_15)).words)


def test_a_gap_of_another_batch_bridges_nothing() -> None:
    other = replace(loaded(2, 10, 10), gaps=(Gap(*T0, 10, 12, "expired", "skipped"),), ranges=())

    assert "offsets 10..12 are in no batch" in only(proved([FIRST, other, loaded(3, 12, 15)], AT_15)).words


def test_a_history_cannot_begin_where_a_position_was_stored() -> None:
    violation = only(proved([SECOND], AT_15))

    assert "the history begins with batch 2 at offset 10, which was a stored position by then" in violation.words


@pytest.mark.parametrize(("offset", "effect"), [(12, "would be loaded again"), (20, "in between were never loaded")])
def test_a_position_that_was_moved_by_hand_is_told_with_its_effect(offset: int, effect: str) -> None:
    first = proved([FIRST, SECOND], {T0: Position(offset, ID)}).violations[0]

    assert f"position {offset} is stored, but the history ends at offset 15 with batch 2" in first.words
    assert effect in first.words
    assert first.offset == min(offset, 15)


def test_rows_that_the_position_has_not_passed_are_named() -> None:
    _, behind = proved([FIRST, SECOND], {T0: Position(12, ID)}).violations

    assert "holds a row of offset 14, which is not before position 12" in behind.words
    assert behind.offset == 14


def test_a_topic_that_was_made_anew_begins_a_history_of_its_own() -> None:
    anew = loaded(3, 0, 4, how="earliest", topic_id=OTHER_ID)

    found = proved([FIRST, SECOND, anew], {T0: Position(4, OTHER_ID)})

    assert found.violations == []
    # Offsets of the old topic cannot be read in the new one.
    assert found.spans == [Span("t", 0, 0, 4, 3, 3)]


def test_carrying_on_in_another_topic_of_the_same_name_is_a_violation() -> None:
    other = loaded(3, 15, 20, topic_id=OTHER_ID)

    violation = only(proved([FIRST, SECOND, other], {T0: Position(20, OTHER_ID)}))

    assert f"batch 3 carries on at offset 15 in topic id {OTHER_ID}" in violation.words


def test_ids_that_a_broker_told_only_later_are_no_change() -> None:
    untold = replace(FIRST, ranges=(LoadedRange(replace(FIRST.ranges[0].range, topic_id=None), 10),))

    assert proved([untold, SECOND], AT_15).violations == []


def test_an_id_that_was_told_is_not_forgotten() -> None:
    untold = replace(SECOND, ranges=(LoadedRange(replace(SECOND.ranges[0].range, topic_id=None), 5),))
    other = loaded(3, 15, 20, topic_id=OTHER_ID)

    violation = only(proved([FIRST, untold, other], {T0: Position(20, OTHER_ID)}))

    assert f"where batch 2 stopped in topic id {ID}" in violation.words


def test_rows_too_many_are_counted() -> None:
    batch = replace(SECOND, ranges=(replace(SECOND.ranges[0], records=4),))

    assert only(proved([FIRST, batch], AT_15)).words.endswith("which wrote 4: there are too many")


@pytest.mark.parametrize("aside", [[], [11, 12]])
def test_dead_letters_are_counted(aside: list[int]) -> None:
    ranges = (replace(SECOND.ranges[0], dead_letters=1, records=6),)
    batch = replace(SECOND, ranges=ranges, dead_letters=(tally(aside),) if aside else ())

    violation = only(proved([FIRST, batch], AT_15))

    assert (
        f"dead_letters holds {len(aside)} records of batch 2, offsets 10..15, which dead-lettered 1" in violation.words
    )


def test_missing_rows_are_counted() -> None:
    batch = replace(SECOND, rows=(tally([10, 11, 14]),))

    violation = only(proved([FIRST, batch], AT_15))

    assert violation.words == (
        "t[0]: table 'target' holds 3 rows of batch 2, offsets 10..15, which wrote 5: rows are missing"
    )


def test_a_row_that_took_the_place_of_another_is_seen() -> None:
    batch = replace(SECOND, rows=(tally([10, 11, 11, 13, 14]),))

    assert "holds 5 rows of batch 2, offsets 10..15, but only 4 different offsets" in (
        only(proved([FIRST, batch], AT_15)).words
    )


def test_rows_of_a_partition_that_the_batch_did_not_load_are_named() -> None:
    batch = replace(SECOND, rows=(*SECOND.rows, tally([3], TopicPartition("t", 1))))

    violation = only(proved([FIRST, batch], AT_15))

    assert "which loaded nothing of this partition" in violation.words
    assert (violation.partition, violation.offset) == (1, 3)


def test_rows_without_an_offset_are_told_where_others_have_one() -> None:
    batch = replace(SECOND, rows=(*SECOND.rows, RowCount(None, None, 2)))

    violation = only(proved([FIRST, batch], AT_15))

    assert (
        violation.words == "table 'target' holds rows of batch 2 that do not say their topic, partition or offset (2)"
    )


def test_rows_older_than_the_columns_are_only_counted() -> None:
    older = replace(FIRST, rows=(RowCount(None, None, 10),))

    found = proved([older, SECOND], AT_15)

    assert found.violations == []
    assert found.spans == [Span("t", 0, 10, 15, 2, 2)]
    fewer = replace(FIRST, rows=(RowCount(None, None, 9),))
    assert "holds 9 rows of batch 1, which wrote 10" in only(proved([fewer, SECOND], AT_15)).words


def test_a_batch_in_another_table_is_told_as_such() -> None:
    batch = replace(SECOND, rows=(), target_table="elsewhere")

    assert only(proved([FIRST, batch], AT_15)).words.endswith(
        "rows are missing (into table 'elsewhere', by the history)"
    )


def test_a_transform_decides_how_many_rows_but_not_their_offsets() -> None:
    batch = replace(SECOND, has_transform=True, row_count=2, rows=(tally([11, 11]),))

    assert proved([FIRST, batch], AT_15).violations == []
    violation = only(proved([FIRST, replace(batch, rows=(tally([9, 11]),))], AT_15))
    assert "holds rows of batch 2 at offset 9, outside of what it loaded, 10..15" in violation.words


@pytest.mark.parametrize(("count", "violations"), [(10, 0), (9, 1)])
def test_with_the_batch_alone_rows_are_counted(count: int, violations: int) -> None:
    batch = replace(FIRST, rows=(RowCount(None, None, count),))

    found = proved([batch], {T0: Position(10, ID)}, "batches")

    assert len(found.violations) == violations
    assert found.rows == count


def test_without_any_column_only_the_history_is_proved() -> None:
    bare = [replace(batch, rows=()) for batch in (FIRST, SECOND)]

    assert proved(bare, AT_15, "nothing").rows == 15
    assert proved([bare[0], replace(loaded(2, 11, 15), rows=())], AT_15, "nothing").violations


@pytest.mark.parametrize(("kind", "state", "is_open"), [("load", "planned", True), ("load", "abandoned", False)])
def test_an_open_batch_is_told_and_proves_nothing(kind: str, state: str, is_open: bool) -> None:
    batch = BatchRecord(3, kind, state, ranges=loaded(3, 15, 20).ranges)

    found = proved([FIRST, SECOND, batch], AT_15)

    assert found.violations == []
    assert found.open_batch == (3 if is_open else None)
    assert found.batches == 2


def test_rows_of_an_unknown_batch_are_told_as_such() -> None:
    violation = only(proved([FIRST, SECOND, BatchRecord(7, rows=(tally([15, 16]),))], AT_15))

    assert violation.words.startswith(
        "t[0]: table 'target' holds 2 rows of batch 7, which the state tables do not know"
    )


def test_dead_letters_of_a_batch_that_is_not_committed_are_a_violation() -> None:
    batch = BatchRecord(3, state="abandoned", dead_letters=(tally([15]),))

    violation = only(proved([FIRST, SECOND, batch], AT_15))

    assert "dead_letters holds 1 dead letters of batch 3, which is abandoned and not committed" in violation.words


def test_a_dead_letter_outside_of_its_range_is_named() -> None:
    ranges = (replace(SECOND.ranges[0], dead_letters=1, records=6),)
    batch = replace(SECOND, ranges=ranges, dead_letters=(tally([20]),))

    violation = only(proved([FIRST, batch], AT_15))

    assert "dead_letters holds records of batch 2 at offset 20, outside of what it loaded, 10..15" in violation.words


def test_a_slice_to_read_again_is_what_the_log_still_has() -> None:
    assert SPAN.slice_within(4, 15) == Slice(0, "t", 0, 10, 15)
    assert SPAN.slice_within(12, 30) == Slice(0, "t", 0, 12, 20)
    assert SPAN.slice_within(20, 30) is None


@pytest.mark.parametrize(
    ("count", "end"),
    [(1, "one."), (2, "one. There is 1 other violation."), (3, "one. There are 2 other violations.")],
)
def test_the_error_names_the_first_violation_and_counts_the_others(count: int, end: str) -> None:
    violations = (Violation("one", "t", 3, 7, 2), Violation("two"), Violation("three"))[:count]

    error: VerificationError = pickle.loads(pickle.dumps(VerificationError("loader", violations)))

    assert str(error) == f"The coverage of group 'loader' is violated: {end}"
    assert (error.topic, error.partition, error.offset, error.batch_id) == ("t", 3, 7, 2)
    assert (error.group_id, error.violations, error.retriable) == ("loader", violations, False)
