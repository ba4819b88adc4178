"""Whether history, positions, rows and dead letters of a group prove that every record was loaded exactly once. Pure.

A partition's history is a sequence of moves of its position. `moves` says which moves a batch makes, so that a batch of a
new kind is a new case there; everything else asks only whether each move starts where the one before ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from airflow_kafka_offsets.coverage import BatchRecord, Detail, Findings, LoadedRange, Move, Span, Tally, Violation
from airflow_kafka_offsets.covered import Covered
from airflow_kafka_offsets.identity import differ
from airflow_kafka_offsets.offsets import Position, ReadAhead, TopicPartition

# Starts that carry on from a stored position; the others choose where a partition begins.
_CONTINUED = frozenset({"stored", "skipped-gap", "rewind", "removed"})
_REWINDS = frozenset({"rewind", "undo", "import"})


@dataclass(slots=True)
class _Chain:
    """The history of a partition so far: where its position should stand.

    :param highest: the highest offset of a row
    :param spans: of the offsets that can be read again; the last one is open where the position stands at its end
    """

    topic_id: str | None
    at: int
    batch_id: int
    ahead: ReadAhead | None = None
    highest: int = -1
    spans: list[Span] = field(default_factory=list)


def prove(
    batches: Iterable[BatchRecord], positions: Mapping[TopicPartition, Position], *, target: str, detail: Detail
) -> Findings:
    """Prove that committed batches cover every partition up to its position without a hole and without an overlap, and that
    exactly their rows and dead letters are there.

    :param batches: every batch of the group, and every unknown one that the target has rows of, in the order of their ids;
        taken one by one
    :param positions: the stored positions of the group
    :param target: the target's name, for the words of a violation
    :param detail: what the target's columns let a row be known by
    """
    proof = _Proof(target, detail)
    for batch in _as_committed(batches):
        proof.add(batch)
    return proof.finish(positions)


def _as_committed(batches: Iterable[BatchRecord]) -> Iterator[BatchRecord]:
    """Batches in the order in which they were committed, as far as that matters.

    What moves positions is committed in the order of the ids. A replay is planned beside that: it may be committed after
    batches with higher ids, and matters to these where it removed output of theirs.

    :param batches: in the order of their ids
    """
    late: list[tuple[BatchRecord, set[int]]] = []
    for batch in batches:
        if batch.after:
            late.append((batch, set(batch.after)))
            continue
        done = [batch]
        for one in done:  # grows meanwhile: a replay may have been waited for by another one
            yield one
            for waiting, others in late:
                others.discard(one.batch_id)
                if not others:
                    done.append(waiting)
            late = [(waiting, others) for waiting, others in late if others]
    yield from (batch for batch, _ in late)


def moves(batch: BatchRecord) -> Iterator[Move]:
    """The moves that a committed batch makes; a replay makes none."""
    if batch.kind == "replay":
        return
    for loaded in batch.ranges:
        one = loaded.one
        begins = one.how not in _CONTINUED
        if batch.kind in _REWINDS:
            yield Move(
                batch.batch_id,
                one.topic_partition,
                one.topic_id,
                one.start,
                one.end,
                begins,
                one.loaded,
                one.ahead,
                jump=True,
                removed=one.how == "removed",
            )
            continue
        for gap in sorted(batch.gaps, key=lambda gap: gap.start):
            if (gap.topic, gap.partition) == one.topic_partition:
                yield Move(batch.batch_id, one.topic_partition, one.topic_id, gap.start, gap.end, begins, gap=True)
        yield Move(
            batch.batch_id,
            one.topic_partition,
            one.topic_id,
            one.start,
            one.end,
            begins,
            one.loaded,
            one.ahead_after,
        )


class _Proof:
    """Goes through the batches once; holds something of every partition, and of no batch."""

    def __init__(self, target: str, detail: Detail) -> None:
        self._target = target
        self._detail = detail
        self._found = Findings()
        self._chains: dict[TopicPartition, _Chain] = {}
        self._covered = Covered()

    def add(self, batch: BatchRecord) -> None:
        if batch.state != "committed":
            if batch.kind == "load" and batch.state in ("planned", "staged"):
                self._found.open_batch = batch.batch_id
            self._refuse_leftovers(batch)
            return
        self._found.batches += 1
        for move in moves(batch):
            self._follow(move)
            if batch.kind in _REWINDS:
                self._check_passed_over(move, self._covered.never_loaded(move, batch.gaps))
        self._covered.follow(batch)
        for gap in batch.gaps:
            self._found.gaps += gap.end - gap.start
        for loaded in batch.ranges:
            self._cut(loaded)
        if batch.kind in _REWINDS:
            self._refuse_leftovers(batch)
            return
        for loaded in batch.ranges:
            self._note(batch, loaded)
        if batch.kind != "replay" or batch.target_table == self._target:
            self._check_rows(batch)
        else:
            self._refuse_leftovers(replace(batch, dead_letters=()))
        self._check_dead_letters(batch)

    def finish(self, positions: Mapping[TopicPartition, Position]) -> Findings:
        """Compare the ends of the histories with the stored positions."""
        found = self._found
        for tp in sorted(self._chains.keys() | positions.keys()):
            chain, position = self._chains.get(tp), positions.get(tp)
            if chain is not None and position is not None:
                self._check_position(tp, chain, position)
                found.partitions += 1
                found.spans += chain.spans
            elif position is not None:
                self._violated(
                    f"position {position.offset} is stored, but no committed batch ever moved it there: the history was "
                    "removed, or the position was stored without this package",
                    tp,
                    position.offset,
                )
            elif chain is not None:
                self._violated(
                    f"the history ends at offset {chain.at} with batch {chain.batch_id}, but no position is stored: the next "
                    "load would begin anew, and load records again. Put the position back",
                    tp,
                    chain.at,
                    chain.batch_id,
                )
        return found

    def _violated(
        self, words: str, tp: TopicPartition | None = None, offset: int | None = None, batch_id: int | None = None
    ) -> None:
        topic, partition = tp or (None, None)
        self._found.violations.append(Violation(f"{tp}: {words}" if tp else words, topic, partition, offset, batch_id))

    def _refuse_leftovers(self, batch: BatchRecord) -> None:
        """Rows and dead letters are there if and only if their batch is committed, and put them there."""
        if batch.state is None:
            why = "which the state tables do not know: these are older than the rows, or not those that the rows were loaded with"
        elif batch.state != "committed":
            why = f"which is {batch.state} and not committed: they were not put there by this package"
        elif batch.kind in _REWINDS:
            why = "which moved positions and loaded nothing: they were not put there by this package"
        else:
            why = f"a replay into table {batch.target_table!r}: they were not put there by this package"
        for tallies, what, where in (
            (batch.rows, "rows", f"table {self._target!r}"),
            (batch.dead_letters, "dead letters", "dead_letters"),
        ):
            if tallies:
                count = sum(tally.count for tally in tallies)
                self._violated(
                    f"{where} holds {count:,} {what} of batch {batch.batch_id}, {why}. Their records may be loaded again",
                    tallies[0].topic_partition,
                    tallies[0].first,
                    batch.batch_id,
                )

    def _follow(self, move: Move) -> None:
        """Make sure that a move starts where the one before ended."""
        tp = move.topic_partition
        chain = self._chains.get(tp)
        another = chain is not None and differ(chain.topic_id, move.topic_id)
        if chain is None or (another and move.begins):
            # A topic that was made anew begins a history of its own, once its old position was deleted on purpose.
            chain = self._chains[tp] = _Chain(move.topic_id, move.start, move.batch_id)
            if not move.begins:
                self._violated(
                    f"the history begins with batch {move.batch_id} at offset {move.start}, which was a stored position by "
                    "then: the batches that moved it there were removed",
                    tp,
                    move.start,
                    move.batch_id,
                )
        elif another:
            self._violated(
                f"batch {move.batch_id} carries on at offset {move.start} in topic id {move.topic_id}, where batch "
                f"{chain.batch_id} stopped in topic id {chain.topic_id}: another topic of the same name",
                tp,
                move.start,
                move.batch_id,
            )
        elif move.start != chain.at:
            self._violated(_break(chain, move), tp, min(move.start, chain.at), move.batch_id)
        elif not move.gap and move.loaded != _reaching(chain.ahead, move.start):
            self._violated(
                f"batch {move.batch_id} begins at offset {move.start} and takes {_ahead(move.loaded)} for loaded before it; "
                f"by the history that is {_ahead(_reaching(chain.ahead, move.start))}: records were left out, or loaded twice",
                tp,
                move.start,
                move.batch_id,
            )
        if move.removed:
            del self._chains[tp]
            return
        if move.jump and move.end < chain.at:
            # Rows behind the position are there by decision, or were removed.
            chain.highest = -1
        elif move.end < move.start and not move.jump:
            self._violated(
                f"batch {move.batch_id} goes from offset {move.start} back to {move.end}", tp, move.end, move.batch_id
            )
        chain.at, chain.batch_id = move.end, move.batch_id
        chain.topic_id = move.topic_id or chain.topic_id
        if not move.gap:
            chain.ahead = move.ahead

    def _check_passed_over(self, move: Move, spans: Iterable[tuple[int, int]]) -> None:
        for start, end in spans:
            self._violated(
                f"batch {move.batch_id} moved the position from offset {move.start} to {move.end}, and offsets {start}..{end}, "
                "which were never loaded, are in no recorded gap: the gap was removed",
                move.topic_partition,
                start,
                move.batch_id,
            )

    def _cut(self, loaded: LoadedRange) -> None:
        """Leave out of what is compared with Kafka what a batch took out of the target."""
        chain = self._chains.get(loaded.one.topic_partition)
        if loaded.replaced is not None and chain is not None:
            chain.spans = [piece for span in chain.spans for piece in span.without(*loaded.replaced)]

    def _note(self, batch: BatchRecord, loaded: LoadedRange) -> None:
        """Count a range, and remember it for comparing with Kafka."""
        one = loaded.one
        if batch.kind == "replay" and batch.target_table != self._target:
            return
        self._found.records += loaded.records or 0
        self._found.reads_ahead = self._found.reads_ahead or one.read_to > one.end
        if not batch.names_offsets or one.read_to <= one.start or one.topic_partition not in self._chains:
            return
        spans = self._chains[one.topic_partition].spans
        last = spans[-1] if spans else None
        # What was loaded ahead of this one is part of the span, unless a batch with a transform loaded it.
        if (
            last is not None
            and last.end == one.start
            and last.last_batch < batch.batch_id
            and _reaching(last.ahead, one.start) == one.loaded
        ):
            spans[-1] = replace(last, end=one.end, last_batch=batch.batch_id, ahead=one.ahead_after)
        else:
            spans.append(
                Span(
                    *one.topic_partition,
                    one.start,
                    one.end,
                    batch.batch_id,
                    batch.batch_id,
                    one.loaded,
                    one.ahead_after,
                )
            )

    def _check_rows(self, batch: BatchRecord) -> None:
        removed = _removed(batch)
        wrote = (batch.row_count or 0) - removed
        if self._detail == "nothing":
            self._found.rows += wrote
            return
        count, before = sum(tally.count for tally in batch.rows), len(self._found.violations)
        self._found.rows += count
        if self._detail == "offsets":
            if batch.names_offsets:
                self._check_each_row(batch)
            else:
                self._check_places(batch, batch.rows, f"table {self._target!r} holds rows of")
            self._note_highest(batch)
        # Where partitions were found wrong, the sum is too.
        if count != wrote and len(self._found.violations) == before:
            self._violated(
                f"table {self._target!r} holds {count:,} rows of batch {batch.batch_id}, which wrote {batch.row_count or 0:,}"
                f"{_less(removed)}{self._elsewhere(batch)}",
                batch_id=batch.batch_id,
            )

    def _check_each_row(self, batch: BatchRecord) -> None:
        """Without a transform, each record that is no dead letter is one row."""
        tallies = {tally.topic_partition: tally for tally in batch.rows}
        for loaded in batch.ranges:
            one = loaded.one
            tally = tallies.get(one.topic_partition, Tally(*one.topic_partition, 0))
            removed = _removed_of(batch, loaded)
            wanted = None if loaded.rows is None else loaded.rows - removed
            where = f"table {self._target!r} holds {tally.count:,} rows of batch {batch.batch_id}, offsets {one.start}..{one.read_to}"
            if wanted is not None and tally.count != wanted:
                wrong = "rows are missing" if tally.count < wanted else "there are too many"
                self._violated(
                    f"{where}, which wrote {wanted + removed:,}{_less(removed)}: {wrong}{self._elsewhere(batch)}",
                    one.topic_partition,
                    one.start,
                    batch.batch_id,
                )
            elif tally.distinct != tally.count:
                self._violated(
                    f"{where}, but only {tally.distinct:,} different offsets: records are there twice, or do not say their "
                    "offset",
                    one.topic_partition,
                    one.start,
                    batch.batch_id,
                )
        self._check_places(batch, batch.rows, f"table {self._target!r} holds rows of")

    def _check_dead_letters(self, batch: BatchRecord) -> None:
        tallies = {tally.topic_partition: tally for tally in batch.dead_letters}
        for loaded in batch.ranges:
            one = loaded.one
            tally = tallies.get(one.topic_partition, Tally(*one.topic_partition, 0))
            self._found.dead_letters += tally.count
            removed = batch.replaced_of(one.topic_partition).dead_letters
            if tally.count != loaded.dead_letters - removed:
                self._violated(
                    f"dead_letters holds {tally.count:,} records of batch {batch.batch_id}, offsets {one.start}..{one.read_to}, "
                    f"which set {loaded.dead_letters:,} aside{_less(removed)}",
                    one.topic_partition,
                    one.start,
                    batch.batch_id,
                )
        self._check_places(batch, batch.dead_letters, "dead_letters holds records of")

    def _check_places(self, batch: BatchRecord, tallies: Iterable[Tally], what: str) -> None:
        """Nothing of a batch is from outside of its ranges. What a transform made may not say where it is from."""
        ranges = {loaded.one.topic_partition: loaded.one for loaded in batch.ranges}
        for tally in tallies:
            tp = tally.topic_partition
            if tp is None:
                if batch.names_offsets:
                    self._violated(
                        f"{what} batch {batch.batch_id} that do not say their topic, partition or offset ({tally.count:,})",
                        batch_id=batch.batch_id,
                    )
                continue
            first, last, one = tally.first or 0, tally.last or 0, ranges.get(tp)
            if one is None:
                self._violated(
                    f"{what} batch {batch.batch_id}, which loaded nothing of this partition by the history ({tally.count:,})",
                    tp,
                    first,
                    batch.batch_id,
                )
            elif first < one.start or last >= one.read_to:
                self._violated(
                    f"{what} batch {batch.batch_id} at offset {first if first < one.start else last}, outside of what it "
                    f"loaded, {one.start}..{one.read_to}",
                    tp,
                    first if first < one.start else last,
                    batch.batch_id,
                )

    def _note_highest(self, batch: BatchRecord) -> None:
        for tally in batch.rows:
            tp = tally.topic_partition
            if tp is not None and tp in self._chains and tally.last is not None:
                self._chains[tp].highest = max(self._chains[tp].highest, tally.last)

    def _check_position(self, tp: TopicPartition, chain: _Chain, position: Position) -> None:
        if position.offset != chain.at:
            effect = (
                "the records before it would be loaded again"
                if position.offset < chain.at
                else "the records in between were never loaded"
            )
            self._violated(
                f"position {position.offset} is stored, but the history ends at offset {chain.at} with batch "
                f"{chain.batch_id}: {effect}. The position was changed without this package",
                tp,
                min(position.offset, chain.at),
                chain.batch_id,
            )
        elif differ(position.topic_id, chain.topic_id):
            self._violated(
                f"the position belongs to topic id {position.topic_id}, the history to topic id {chain.topic_id}",
                tp,
                position.offset,
                chain.batch_id,
            )
        elif position.ahead != chain.ahead:
            self._violated(
                f"behind position {position.offset}, {_ahead(position.ahead)} is stored as loaded; by the history that is "
                f"{_ahead(chain.ahead)}: records would be left out, or loaded twice",
                tp,
                position.offset,
                chain.batch_id,
            )
        reach = position.ahead.offset if position.ahead is not None else position.offset
        if chain.highest >= reach:
            self._violated(
                f"table {self._target!r} holds a row of offset {chain.highest}, which position {position.offset} has not "
                "passed: its record would be loaded again",
                tp,
                chain.highest,
            )

    def _elsewhere(self, batch: BatchRecord) -> str:
        if batch.target_table in (None, self._target):
            return ""
        return f" (into table {batch.target_table!r}, says the history)"


def _break(chain: _Chain, move: Move) -> str:
    before = f"batch {move.batch_id} {'skips offsets' if move.gap else 'begins at offset'} {move.start}"
    if move.gap:
        before += f"..{move.end}"
    told = f"{before}, but the history had come to offset {chain.at} with batch {chain.batch_id}"
    if move.start > chain.at:
        return f"{told}: offsets {chain.at}..{move.start} are in no batch and in no recorded gap"
    return f"{told}: offsets {move.start}..{chain.at} were loaded already"


def _removed(batch: BatchRecord) -> int:
    """How many rows of a batch are not there any more by decision."""
    replaced = [loaded.is_replaced for loaded in batch.ranges if loaded.one.read_to > loaded.one.start]
    if replaced and all(replaced):
        return batch.row_count or 0
    return sum(_removed_of(batch, loaded) for loaded in batch.ranges)


def _removed_of(batch: BatchRecord, loaded: LoadedRange) -> int:
    if loaded.is_replaced and loaded.rows is not None and not batch.has_transform:
        return loaded.rows
    return batch.replaced_of(loaded.one.topic_partition).rows


def _less(removed: int) -> str:
    return f", of which {removed:,} were replaced" if removed else ""


def _reaching(ahead: ReadAhead | None, offset: int) -> ReadAhead | None:
    """What is left of a read-ahead when the position has come to an offset."""
    return ahead if ahead is not None and ahead.offset > offset else None


def _ahead(ahead: ReadAhead | None) -> str:
    return "nothing" if ahead is None else f"everything before offset {ahead.offset} and {ahead.before_ms} ms"
