"""The targets of a fan-out in one transaction, and their rows as `verify` reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.sinks.table import Dataset, Output, Table, Target
from airflow_kafka_offsets.sinks.target_rows import BranchOutput, Detail, Removed, ReplacedOffsets, TargetRows
from airflow_kafka_offsets.staging.rows import StagedRows, TargetColumns, columns_of
from airflow_kafka_offsets.writers.row_writer import ArrowWriter

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection

    from airflow_kafka_offsets.sinks.fan_out import FanOut


@dataclass(frozen=True)
class FanOutTable(Table):
    """The targets of a fan-out; see `Table`.

    :param tables: one for each branch
    """

    sink: FanOut
    tables: tuple[Table, ...]

    def prepare(self, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        """Prepare each branch; see `Table.prepare`.

        :param columns: as `staging.branches.combined` returns them
        """
        prepared = [
            table.prepare(columns_of(columns, number), may_grow=may_grow) for number, table in enumerate(self.tables)
        ]
        # Of those that take rows as they are decoded: the columns of the records may be those of the target.
        pairs = zip(self.sink.branches, prepared, strict=True)
        plain = [target.known for branch, target in pairs if branch.transform is None]
        names = dict.fromkeys(name for known in plain for name in known or ())
        known = tuple(names) if plain and None not in plain else None
        return TargetColumns(self.sink.name, known, may_grow=may_grow)

    def added_check(self) -> Callable[[pa.Field], None]:
        """Return the checks of each target that takes rows as they are decoded."""
        branches = zip(self.sink.branches, self.tables, strict=True)
        checks = [table.added_check() for branch, table in branches if branch.transform is None]

        def check(column: pa.Field) -> None:
            for each in checks:
                each(column)

        return check

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, output: Output) -> None:
        """Raise if a target holds rows of a batch that the state tables do not know."""
        for table in self.tables:
            table.refuse_unknown_rows(conn, batches, output)

    def check_removal(self) -> None:
        """Check each target."""
        for table in self.tables:
            table.check_removal()

    def check_replaced(self, conn: Connection, replaced: ReplacedOffsets) -> None:
        """Check each target."""
        for table in self.tables:
            table.check_replaced(conn, replaced)

    def writer(self, columns: pa.Schema | None, output: Output) -> ArrowWriter:
        """Return the writer of files for each branch."""
        return ArrowWriter(is_fan_out=True)

    @contextmanager
    def publish(self, conn: Connection, output: Output) -> Iterator[FanOutTarget]:
        """Open all targets within the transaction."""
        with ExitStack() as stack:
            yield FanOutTarget(self.sink, [stack.enter_context(table.publish(conn, output)) for table in self.tables])

    def rows(self, conn: Connection) -> FanOutRows:
        """Return the rows of all branches."""
        pairs = zip(self.sink.branches, self.tables, strict=True)
        return FanOutRows({branch.sink.name: table.rows(conn) for branch, table in pairs})

    def datasets(self) -> list[Dataset]:
        return [dataset for table in self.tables for dataset in table.datasets()]


class FanOutTarget(Target):
    """The targets of a fan-out; see `Target`."""

    def __init__(self, sink: FanOut, targets: Sequence[Target]) -> None:
        self.written: dict[str, BranchOutput] = {}
        self.removed: Counter[tuple[int, str]] = Counter()
        self._branches = list(zip(sink.branches, targets, strict=True))

    def add_columns(self, columns: pa.Schema) -> list[str]:
        """Add the columns that targets lack.

        :return: their names, after those of the branches
        """
        added = []
        for number, (branch, target) in enumerate(self._branches):
            of_branch = columns_of(columns, number)
            if of_branch is not None:
                added += [f"{branch.sink.name}.{name}" for name in target.add_columns(of_branch)]
        return added

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        """Delete the rows of replaced offsets from all targets."""
        rows = Counter[tuple[int, TopicPartition]]()
        for branch, target in self._branches:
            for removed in target.remove(replaced):
                rows[removed.batch_id, removed.topic_partition] += removed.rows
                self.removed[removed.batch_id, branch.sink.name] += removed.rows
        return [Removed(batch_id, tp, count) for (batch_id, tp), count in rows.items()]

    def write(self, rows: StagedRows) -> int:
        """Write the rows of each branch into its target.

        If one of them refuses a record, others may already have its rows: the caller writes everything again without
        it, in a savepoint.
        """
        self.written, rows.left_out = {}, 0
        for number, (branch, target) in enumerate(self._branches):
            of_branch = rows.of_branch(number)
            count = target.write(of_branch)
            rows.left_out += of_branch.left_out
            self.written[branch.sink.name] = BranchOutput(count, branch.transform is None)
        return sum(output.rows for output in self.written.values())


@dataclass(frozen=True)
class FanOutRows(TargetRows):
    """The rows of all branches; see `TargetRows`. `verify` counts the rows of each branch separately.

    :param of_branches: the rows by branch name
    """

    of_branches: Mapping[str, TargetRows]

    @property
    def branches(self) -> Mapping[str, TargetRows]:
        return self.of_branches

    @property
    def exists(self) -> bool:
        return all(rows.exists for rows in self.branches.values())

    @property
    def detail(self) -> Detail:
        return "nothing" if any(rows.detail == "nothing" for rows in self.branches.values()) else "batches"

    @property
    def limit(self) -> str:
        limits = (rows.limit for rows in self.branches.values())
        return next(filter(None, limits), "Rows of several sinks are counted by branch")
