"""What a load or a replay reports: each committed batch to its `on_commit` callback, and the sum of them to its caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple


class Commit(NamedTuple):
    """A committed batch.

    :param kind: `load` or `replay`
    :param records: number of loaded records by topic, dead letters included
    :param dead_letters: number of dead-lettered records by topic
    :param rows: number of written rows
    :param duration: from planning the batch, or from where this attempt resumed it, to the end of the commit
    """

    group_id: str
    kind: str
    records: Mapping[str, int]
    dead_letters: Mapping[str, int]
    rows: int
    duration: timedelta


OnCommit = Callable[[Commit], None]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load or a replay did.

    :param batches: the ids of the committed batches, in order; the first may be an open batch that another run planned
    :param records: how many records were read, dead letters included
    :param rows: how many rows were written
    :param dead_letters: how many records were dead-lettered
    :param complete: False where the time budget was used up before everything was loaded
    """

    batches: tuple[int, ...] = ()
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    complete: bool = True

    def __add__(self, other: LoadResult) -> LoadResult:
        """Return the sum of two results, the earlier one first."""
        return LoadResult(
            self.batches + other.batches,
            self.records + other.records,
            self.rows + other.rows,
            self.dead_letters + other.dead_letters,
            self.complete and other.complete,
        )
