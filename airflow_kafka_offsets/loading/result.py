"""What a load did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple


class Commit(NamedTuple):
    """What a batch did, once it is committed.

    :param kind: `load` or `replay`
    :param records: those that were loaded, by topic, dead letters among them
    :param dead_letters: those that were set aside, by topic
    :param rows: those that were written
    :param duration: from the plan of the batch, or from where this attempt took it up, to the end of the commit
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
    """What a load did.

    :param batches: the ids of the batches that it committed, in order; another run's open batch may be the first
    :param records: how many records were read, dead letters among them
    :param rows: how many rows were written
    :param dead_letters: how many records were set aside
    :param complete: False where the time budget ended before everything was loaded
    """

    batches: tuple[int, ...] = ()
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    complete: bool = True

    def __add__(self, other: LoadResult) -> LoadResult:
        """Both, one after the other."""
        return LoadResult(
            (*self.batches, *other.batches),
            self.records + other.records,
            self.rows + other.rows,
            self.dead_letters + other.dead_letters,
            self.complete and other.complete,
        )
