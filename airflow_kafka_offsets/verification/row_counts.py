"""Whether the target and `dead_letters` hold exactly what committed batches put there: by counts, batch by batch. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_kafka_offsets.verification.facts import BatchRecord, Detail, LoadedRange, RowCount
from airflow_kafka_offsets.verification.findings import Findings
from airflow_kafka_offsets.verification.position_moves import REWINDS


class RowCounts:
    """Compares what is there of each batch with what it wrote.

    :param found: where violations go, and what was counted
    :param target: the target's name, for the words of a violation
    :param detail: what the target's columns let a row be known by
    """

    def __init__(self, found: Findings, target: str, detail: Detail) -> None:
        self._found = found
        self._target = target
        self._detail = detail

    def refuse_leftovers(self, batch: BatchRecord) -> None:
        """Rows and dead letters are there if and only if their batch is committed, and put them there."""
        if batch.state is None:
            why = "which the state tables do not know: these are older than the rows, or not those that the rows were loaded with"
        elif batch.state != "committed":
            why = f"which is {batch.state} and not committed: they were not put there by this package"
        elif batch.kind in REWINDS:
            why = "which moved positions and loaded nothing: they were not put there by this package"
        else:
            why = f"a replay into table {batch.target_table!r}: they were not put there by this package"
        for tallies, what, where in (
            (batch.rows, "rows", f"table {self._target!r}"),
            (batch.dead_letters, "dead letters", "dead_letters"),
        ):
            if tallies:
                count = sum(tally.count for tally in tallies)
                self._found.violated(
                    f"{where} holds {count:,} {what} of batch {batch.batch_id}, {why}. Their records may be loaded again",
                    tallies[0].topic_partition,
                    tallies[0].first,
                    batch.batch_id,
                )

    def check_rows(self, batch: BatchRecord) -> None:
        """Make sure that exactly the rows are there that a committed batch wrote, and no later one replaced."""
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
        # Where partitions were found wrong, the sum is too.
        if count != wrote and len(self._found.violations) == before:
            self._found.violated(
                f"table {self._target!r} holds {count:,} rows of batch {batch.batch_id}, which wrote {batch.row_count or 0:,}"
                f"{_less(removed)}{self._elsewhere(batch)}",
                batch_id=batch.batch_id,
            )

    def _check_each_row(self, batch: BatchRecord) -> None:
        """Without a transform, each record that is no dead letter is one row."""
        tallies = {tally.topic_partition: tally for tally in batch.rows}
        for loaded in batch.ranges:
            one = loaded.one
            tally = tallies.get(one.topic_partition, RowCount(*one.topic_partition, 0))
            removed = _removed_of(batch, loaded)
            wanted = None if loaded.rows is None else loaded.rows - removed
            where = f"table {self._target!r} holds {tally.count:,} rows of batch {batch.batch_id}, offsets {one.start}..{one.end}"
            if wanted is not None and tally.count != wanted:
                wrong = "rows are missing" if tally.count < wanted else "there are too many"
                self._found.violated(
                    f"{where}, which wrote {wanted + removed:,}{_less(removed)}: {wrong}{self._elsewhere(batch)}",
                    one.topic_partition,
                    one.start,
                    batch.batch_id,
                )
            elif tally.distinct != tally.count:
                self._found.violated(
                    f"{where}, but only {tally.distinct:,} different offsets: records are there twice, or do not say their "
                    "offset",
                    one.topic_partition,
                    one.start,
                    batch.batch_id,
                )
        self._check_places(batch, batch.rows, f"table {self._target!r} holds rows of")

    def check_dead_letters(self, batch: BatchRecord) -> None:
        """Make sure that exactly the dead letters are there that a committed batch set aside, and no later one replaced."""
        tallies = {tally.topic_partition: tally for tally in batch.dead_letters}
        for loaded in batch.ranges:
            one = loaded.one
            tally = tallies.get(one.topic_partition, RowCount(*one.topic_partition, 0))
            self._found.dead_letters += tally.count
            replaced = batch.replaced_of(one.topic_partition).dead_letters
            removed = loaded.dead_letters if loaded.is_replaced else replaced
            if tally.count != loaded.dead_letters - removed:
                self._found.violated(
                    f"dead_letters holds {tally.count:,} records of batch {batch.batch_id}, offsets {one.start}..{one.end}, "
                    f"which set {loaded.dead_letters:,} aside{_less(removed)}",
                    one.topic_partition,
                    one.start,
                    batch.batch_id,
                )
        self._check_places(batch, batch.dead_letters, "dead_letters holds records of")

    def _check_places(self, batch: BatchRecord, tallies: Iterable[RowCount], what: str) -> None:
        """Nothing of a batch is from outside of its ranges. What a transform made may not say where it is from."""
        ranges = {loaded.one.topic_partition: loaded.one for loaded in batch.ranges}
        for tally in tallies:
            tp = tally.topic_partition
            if tp is None:
                if batch.names_offsets:
                    self._found.violated(
                        f"{what} batch {batch.batch_id} that do not say their topic, partition or offset ({tally.count:,})",
                        batch_id=batch.batch_id,
                    )
                continue
            first, last, one = tally.first or 0, tally.last or 0, ranges.get(tp)
            if one is None:
                self._found.violated(
                    f"{what} batch {batch.batch_id}, which loaded nothing of this partition by the history ({tally.count:,})",
                    tp,
                    first,
                    batch.batch_id,
                )
            elif first < one.start or last >= one.end:
                self._found.violated(
                    f"{what} batch {batch.batch_id} at offset {first if first < one.start else last}, outside of what it "
                    f"loaded, {one.start}..{one.end}",
                    tp,
                    first if first < one.start else last,
                    batch.batch_id,
                )

    def _elsewhere(self, batch: BatchRecord) -> str:
        if batch.target_table in (None, self._target):
            return ""
        return f" (into table {batch.target_table!r}, says the history)"


def _removed(batch: BatchRecord) -> int:
    """How many rows of a batch are not there any more by decision."""
    replaced = [loaded.is_replaced for loaded in batch.ranges if loaded.one.end > loaded.one.start]
    if replaced and all(replaced):
        return batch.row_count or 0
    return sum(_removed_of(batch, loaded) for loaded in batch.ranges)


def _removed_of(batch: BatchRecord, loaded: LoadedRange) -> int:
    if loaded.is_replaced and loaded.rows is not None and not batch.has_transform:
        return loaded.rows
    return batch.replaced_of(loaded.one.topic_partition).rows


def _less(removed: int) -> str:
    return f", of which {removed:,} were replaced" if removed else ""
