"""Whether history, positions, rows and dead letters of a group prove that every record was loaded exactly once. Pure.

A partition's history is a sequence of moves of its position: `position_history` follows it. `RowCounts` says whether
the target and `dead_letters` hold exactly what committed batches wrote: by counts, batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_kafka_offsets.core.history import OPEN_STATES, UNFINISHED_STATES
from airflow_kafka_offsets.core.offsets import OffsetRange, Position, TopicPartition
from airflow_kafka_offsets.sinks.target_rows import Detail, RowCount
from airflow_kafka_offsets.verification.facts import MOST_VIOLATIONS, BatchFacts, Findings, LoadedRange, RemovedOutput
from airflow_kafka_offsets.verification.position_history import LoadedOffsets, PositionHistories

# Of batches that are looked up again.
_MOST_UNCOMMITTED = 100_000


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Compares the counted rows and dead letters of each batch with what it wrote.

    :param target: the target's name, for violations
    :param detail: what the rows say of their origin
    """

    findings: Findings
    target: str
    detail: Detail
    # Of compacted batches, until it is known whether later batches replaced all of their rows.
    _wrong: list[tuple[str, int]] = field(default_factory=list, init=False)

    def check(self, batch: BatchFacts) -> None:
        """Check what a batch left, or did not leave."""
        if batch.state != "committed" or batch.is_rewind:
            self._refuse_leftovers(batch)
            return
        if batch.wrote_into(self.target):
            self._check_rows(batch)
        else:
            self._refuse_leftovers(replace(batch, dead_letters=()))
        self._check_dead_letters(batch)

    def _refuse_leftovers(self, batch: BatchFacts) -> None:
        """Report rows and dead letters of a batch that is not committed, or that wrote none."""
        not_ours = (
            ": the state tables were restored from an older backup, or another program wrote them. Restore both to the "
            "same moment, or delete them"
        )
        if batch.state is None:
            why = (
                "which the state tables do not know: they are older than the rows, or other state tables than those "
                "of the load"
            )
        elif batch.state != "committed":
            why = f"which is {batch.state} and not committed{not_ours}"
        elif batch.is_rewind:
            why = f"which moved positions and loaded nothing{not_ours}"
        else:
            why = f"a replay into table {batch.target_table!r}{not_ours}"
        of_rows = why
        if batch.state == "abandoned" and batch.is_publishing:
            of_rows = "which was published and is abandoned: the next load or replay of the group into it removes them"
        for counts, what, where, cause in (
            (batch.rows, "rows", f"table {self.target!r}", of_rows),
            (batch.dead_letters, "dead letters", "dead_letters", why),
        ):
            if counts:
                spread = f" in {len(counts)} partitions" if len(counts) > 1 else ""
                wrong = (
                    f"{where} holds {_total(counts):,} {what} of batch {batch.batch_id}{spread}, {cause}. Their "
                    "records may be loaded again"
                )
                place = (counts[0].topic_partition, counts[0].first, batch.batch_id)
                violation = self.findings.add_violation(wrong, *place)
                is_uncommitted = counts is batch.rows and batch.state in (None, *UNFINISHED_STATES)
                # Foreign rows may name as many as there are numbers.
                if is_uncommitted and len(self.findings.uncommitted) < _MOST_UNCOMMITTED:
                    self.findings.uncommitted[batch.batch_id] = violation

    def _check_rows(self, batch: BatchFacts) -> None:
        """Check that the target holds exactly the rows that a committed batch wrote, and no later batch replaced."""
        removed = _removed(batch)
        expected = (batch.row_count or 0) - removed
        if batch.is_compacted:
            self._check_compacted(batch)
            return
        if self.detail == "nothing":
            self.findings.rows += expected
            return
        total, before = _total(batch.rows), self.findings.count
        self._report_compacted(batch)
        self.findings.rows += total
        self.findings.by_number += self.detail != "offsets" or not batch.names_offsets
        if self.detail == "offsets":
            for loaded in batch.ranges if batch.names_offsets else ():
                self._check_range(batch, loaded)
            self._check_places(batch, batch.rows, f"table {self.target!r} holds rows of")
        # Where the rows of a partition are wrong, their sum is too.
        if total != expected and self.findings.count == before:
            self.findings.add_violation(self._wrong_total(batch, removed), batch_id=batch.batch_id)
        output = batch.outputs.get(self.target)
        if output is not None and output.is_each:
            self._check_repeated(batch)

    def _check_compacted(self, batch: BatchFacts) -> None:
        """Check the number of rows of a compacted batch; of which offsets they are is checked of all together."""
        removed = sum(part.rows for part in batch.replaced.values())
        if self.detail != "nothing":
            self.findings.by_number += self.detail != "offsets" or not batch.names_offsets
            if _total(batch.rows) != (batch.row_count or 0) - removed and len(self._wrong) < MOST_VIOLATIONS:
                self._wrong.append((self._wrong_total(batch, removed), batch.batch_id))

    def _report_compacted(self, batch: BatchFacts) -> None:
        """Report what is wrong with the compacted batches whose ranges a batch has."""
        for wrong, batch_id in () if all(loaded.is_replaced for loaded in batch.ranges) else self._wrong:
            self.findings.add_violation(wrong, batch_id=batch_id)
        self._wrong.clear()

    def _wrong_total(self, batch: BatchFacts, removed: int) -> str:
        return (
            f"table {self.target!r} holds {_total(batch.rows):,} rows of batch {batch.batch_id}, which wrote "
            f"{batch.row_count or 0:,}{_less(removed)}{self._elsewhere(batch)}"
        )

    def _check_repeated(self, batch: BatchFacts) -> None:
        """Check that no offset is in several rows of one of several targets, where each record is one row."""
        for count in batch.rows:
            if count.topic_partition is not None and count.distinct != count.count:
                wrong = (
                    f"table {self.target!r} holds {count.count:,} rows of {batch.name}, but only "
                    f"{count.distinct:,} different offsets: records are duplicated"
                )
                self.findings.add_violation(wrong, count.topic_partition, count.first, batch.batch_id)

    def _check_range(self, batch: BatchFacts, loaded: LoadedRange) -> None:
        """Check that each record is one row or one dead letter, as it is without a transform."""
        count, written = _count_of(batch.rows, loaded.range.topic_partition), loaded.rows
        removed = _removed_of(batch, loaded)
        if written is not None and count.count != written - removed:
            wrong = "rows are missing" if count.count < written - removed else "there are too many"
            wrong = f", which wrote {written:,}{_less(removed)}: {wrong}{self._elsewhere(batch)}"
        elif count.distinct != count.count:
            wrong = f", but only {count.distinct:,} different offsets: records are duplicated, or have no offset"
        else:
            return
        self._add_violation(f"table {self.target!r} holds {count.count:,} rows of", batch, loaded.range, wrong)

    def _check_dead_letters(self, batch: BatchFacts) -> None:
        """Check that exactly the dead letters of a committed batch are there that no later batch replaced."""
        for loaded in batch.ranges:
            written, tp = loaded.dead_letters, loaded.range.topic_partition
            count = _count_of(batch.dead_letters, tp).count
            self.findings.dead_letters += count
            removed = written if loaded.is_replaced else batch.replaced_of(tp).dead_letters
            if count != written - removed:
                wrong = f", which dead-lettered {written:,}{_less(removed)}"
                self._add_violation(f"dead_letters holds {count:,} records of", batch, loaded.range, wrong)
        self._check_places(batch, batch.dead_letters, "dead_letters holds records of")

    def _check_places(self, batch: BatchFacts, counts: Sequence[RowCount], what: str) -> None:
        """Check that nothing of a batch is from outside of its ranges. A transform may drop where rows are from."""
        ranges = {loaded.range.topic_partition: loaded.range for loaded in batch.ranges}
        for count in counts:
            tp, offset, last = count.topic_partition, count.first, count.last
            if tp is None or offset is None or last is None:
                if not batch.names_offsets:
                    continue
                offset, wrong = None, f" without topic, partition or offset ({count.count:,})"
            elif (range_ := ranges.get(tp)) is None:
                wrong = f", which loaded nothing of this partition by the history ({count.count:,})"
            elif offset < range_.start or last >= range_.end:
                offset = offset if offset < range_.start else last
                wrong = f" at offset {offset}, outside of what it loaded, {range_.start}..{range_.end}"
            else:
                continue
            self.findings.add_violation(f"{what} {batch.name}{wrong}", tp, offset, batch.batch_id)

    def _add_violation(self, what: str, batch: BatchFacts, range_: OffsetRange, wrong: str) -> None:
        text = f"{what} {batch.name}, offsets {range_.start}..{range_.end}{wrong}"
        self.findings.add_violation(text, range_.topic_partition, range_.start, batch.batch_id)

    def _elsewhere(self, batch: BatchFacts) -> str:
        if batch.target_table in (None, self.target):
            return ""
        return f" (into table {batch.target_table!r}, by the history)"


def _total(counts: Sequence[RowCount]) -> int:
    return sum(count.count for count in counts)


def _count_of(counts: Sequence[RowCount], tp: TopicPartition) -> RowCount:
    return next((count for count in counts if count.topic_partition == tp), RowCount(*tp, 0))


def _removed(batch: BatchFacts) -> int:
    """Return how many rows of a batch later batches removed."""
    replaced = [loaded.is_replaced for loaded in batch.ranges if loaded.range.start < loaded.range.end]
    if replaced and all(replaced):
        return batch.row_count or 0
    return sum(_removed_of(batch, loaded) for loaded in batch.ranges)


def _removed_of(batch: BatchFacts, loaded: LoadedRange) -> int:
    if loaded.is_replaced and loaded.rows is not None and not batch.has_transform:
        return loaded.rows
    return batch.replaced_of(loaded.range.topic_partition).rows


def _less(removed: int) -> str:
    return f", of which {removed:,} were replaced" if removed else ""


def prove(
    batches: Iterable[BatchFacts],
    positions: Mapping[TopicPartition, Position],
    *,
    target: str,
    detail: Detail,
    replaces_rows: bool = False,
) -> Findings:
    """Prove that committed batches cover every partition up to its position without a hole and without an overlap, and
    that exactly their rows and dead letters are there.

    :param batches: every batch of the group, and every unknown one that the target has rows of, in the order of their
        ids; iterated once
    :param positions: the stored positions of the group
    :param target: the target's name, for violations
    :param detail: what the rows say of their origin
    :param replaces_rows: whether a record that is written again replaces its row, as with an upsert key
    """
    findings = Findings()
    histories = PositionHistories(findings, target, positions)
    offsets = LoadedOffsets(findings, target, replaces_rows)
    counts = RowCounts(findings, target, detail)
    for batch in _as_committed(_with_compacted(batches)):
        if batch.state == "committed":
            findings.batches += 1
            findings.gaps += sum(gap.end - gap.start for gap in batch.gaps)
            # The batch that dead-lettered records has counted them.
            if batch.wrote_into(target) and not batch.replays_dead_letters:
                findings.records += sum(loaded.records or 0 for loaded in batch.ranges)
            if not batch.is_compacted:
                histories.follow(batch)
                offsets.follow(batch)
        elif batch.kind == "load" and batch.state in OPEN_STATES:
            findings.open_batch = batch.batch_id
        counts.check(batch)
    histories.finish()
    offsets.finish()
    return findings


def _with_compacted(batches: Iterable[BatchFacts]) -> Iterator[BatchFacts]:
    """Return batches, and with the last one of each run of compacted ones the rows of all.

    Their rows of a partition follow one another as their ranges did: where they do not, offsets are duplicated.

    :param batches: in the order of their ids
    """
    rows: dict[TopicPartition | None, RowCount] = {}
    removed: dict[TopicPartition, RemovedOutput] = {}
    written = 0
    for batch in batches:
        if not batch.is_compacted and batch.compacted_from is None:
            yield batch
            continue
        for count in batch.rows:
            before = rows.get(count.topic_partition)
            rows[count.topic_partition] = count if before is None else before.followed_by(count)
        for tp, part in batch.replaced.items():
            before_it = removed.get(tp, RemovedOutput())
            removed[tp] = RemovedOutput(before_it.rows + part.rows, before_it.dead_letters + part.dead_letters)
        written += batch.row_count or 0
        if batch.is_compacted:
            yield batch
        else:
            yield replace(batch, rows=tuple(rows.values()), replaced=removed, row_count=written)
            rows, removed, written = {}, {}, 0


def _as_committed(batches: Iterable[BatchFacts]) -> Iterator[BatchFacts]:
    """Return batches in the order in which they were committed, as far as that matters.

    Batches that move positions are committed in the order of their ids. A replay may be committed after batches with
    higher ids, and has to follow those whose output it removed.

    :param batches: in the order of their ids
    """
    waiting: list[tuple[BatchFacts, set[int]]] = []
    for batch in batches:
        if batch.after:
            waiting.append((batch, set(batch.after)))
            continue
        ready = [batch]
        for committed in ready:  # grows meanwhile: a replay may be what another one waits for
            yield committed
            for _, others in waiting:
                others.discard(committed.batch_id)
            ready += [replay for replay, others in waiting if not others]
            waiting = [(replay, others) for replay, others in waiting if others]
    yield from (batch for batch, _ in waiting)
