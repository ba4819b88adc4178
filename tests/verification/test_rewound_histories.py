"""Histories with rewinds, undos and replays, made by a model: they are proved, and one broken thing is found."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.rewinding.preview import PartitionRewind, decide
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.target_rows import RowCount
from airflow_kafka_offsets.verification.facts import BatchFacts, LoadedRange, RemovedOutput
from tests.support.histories import ID, Log, draw_range, proved, records_of, tally, without


@dataclass
class Step:
    """A batch of the history, with the rows and dead letters that it left and that are still there."""

    record: BatchFacts
    rows: list[tuple[TopicPartition, int]] = field(default_factory=list)
    dead_letters: list[tuple[TopicPartition, int]] = field(default_factory=list)
    gone: Counter[TopicPartition] = field(default_factory=Counter)
    gone_dead_letters: Counter[TopicPartition] = field(default_factory=Counter)

    def as_record(self) -> BatchFacts:
        places = sorted(self.gone.keys() | self.gone_dead_letters.keys())
        return replace(
            self.record,
            rows=tallies(self.rows),
            dead_letters=tallies(self.dead_letters),
            replaced={tp: RemovedOutput(self.gone[tp], self.gone_dead_letters[tp]) for tp in places},
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
    def records(self) -> list[BatchFacts]:
        return [step.as_record() for step in self.steps]

    @property
    def next_id(self) -> int:
        return len(self.steps) + 1

    @property
    def as_they_are(self) -> Counter[tuple[TopicPartition, int]]:
        """Rows and dead letters of batches without a transform."""
        plain = [step for step in self.steps if not step.record.has_transform]
        return Counter(place for step in plain for place in (*step.rows, *step.dead_letters))

    def remove(self, spans: dict[TopicPartition, tuple[int, int]]) -> None:
        """Take the output of offsets back, and note how much of which batch that was."""
        for step in self.steps:
            for places, gone in ((step.rows, step.gone), (step.dead_letters, step.gone_dead_letters)):
                back = [(tp, at) for tp, at in places if tp in spans and spans[tp][0] <= at < spans[tp][1]]
                gone.update(tp for tp, _ in back)
                places[:] = [place for place in places if place not in back]
        self.replaced = self.replaced or bool(spans)

    def write(self, draw: st.DrawFn, kind: str, ranges: list[LoadedRange], gaps: tuple[Gap, ...], table: str) -> None:
        transformed = draw(st.integers(0, 3)) == 0
        step = Step(BatchFacts(self.next_id, kind, "committed", table, transformed, gaps=gaps))
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
            step.dead_letters += [(tp, offset) for offset in aside]
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
        there = [at for step in self.steps for tp, at in (*step.rows, *step.dead_letters) if tp == one.topic_partition]
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
        self.steps.append(Step(BatchFacts(self.next_id, kind, "committed", table, ranges=tuple(ranges), gaps=gaps)))
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
    assert found.dead_letters == sum(len(step.dead_letters) for step in world.steps)
    assert (found.partitions, found.batches) == (len(world.positions), len(world.steps))


@given(rewound())
def test_reading_again_after_rewinds_expects_nothing_that_was_removed(world: World) -> None:
    """A record that is expected and was replaced would be told as lost."""
    seen: Counter[tuple[TopicPartition, int]] = Counter()
    left = {step.record.batch_id: Counter([*step.rows, *step.dead_letters]) for step in world.steps}
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


def broken_rewound(world: World) -> Iterator[tuple[list[BatchFacts], dict[TopicPartition, Position]]]:
    """The history with one thing broken, in each way."""
    records, positions = world.records, world.positions

    def changed(index: int, **values: object) -> tuple[list[BatchFacts], dict[TopicPartition, Position]]:
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
                    RemovedOutput(told.rows + 1, told.dead_letters),
                    RemovedOutput(told.rows - 1, told.dead_letters),
                    RemovedOutput(told.rows, told.dead_letters + 1),
                    RemovedOutput(told.rows, told.dead_letters - 1),
                ):
                    yield changed(index, replaced={**batch.replaced, tp: wrong})


def broken_moves(batch: BatchFacts) -> Iterator[tuple[LoadedRange, ...]]:
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
