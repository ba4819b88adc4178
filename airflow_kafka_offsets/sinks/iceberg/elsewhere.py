"""An Iceberg table in a catalog elsewhere: rows are committed there, with the number of the batch, and then the
positions.

pyiceberg's own retry of a commit goes past what was looked at before, and would append a batch a second time. So each
attempt here loads the table, looks, and makes one commit that fails where the table's current snapshot is another one
by then.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import (
    CommitUnknownError,
    ConfigurationError,
    DatabaseBusyError,
    StagedFileError,
    TargetError,
)
from airflow_kafka_offsets.sinks.iceberg.sink import IcebergSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from sqlalchemy.engine import Connection, Engine

    from airflow_kafka_offsets.sinks.iceberg.publication import Publication
    from airflow_kafka_offsets.sinks.iceberg.target import Changes
    from airflow_kafka_offsets.sinks.table import Output, Target
    from airflow_kafka_offsets.sinks.target_rows import Removed
    from airflow_kafka_offsets.staging.rows import TargetColumns

log = logging.getLogger(__name__)

_ATTEMPTS = 20

_FIRST_PAUSE_SECONDS = 0.05

_LONGEST_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class ElsewhereIcebergTable(IcebergSink):
    """An `IcebergTable` with a catalog: it commits externally."""

    @property
    def commits_externally(self) -> bool:
        return True

    def prepare(self, engine: Engine, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        """Check the table as `IcebergSink.prepare` does, and that batches can be published in it and taken back.

        :raises ConfigurationError: the catalog is the file that the transaction of the positions locks
        :raises TargetError: the table does not say which batch a row is of
        """
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = self._catalog()
        if isinstance(catalog, SqlCatalog) and _is_same_file(catalog.engine, engine):
            raise ConfigurationError(
                f"The catalog of {self.name} is in the SQLite file of the positions, which takes one writer at a time: "
                "leave catalog= out, for one commit of both"
            )
        target = super().prepare(engine, columns, may_grow=may_grow)
        if target.known is not None and BATCH_ID not in target.known:
            raise TargetError(
                f"{self.name} has no column {BATCH_ID!r}, by which the rows of an abandoned batch are taken back: add "
                f"it (ALTER TABLE … ADD COLUMN {BATCH_ID} BIGINT)"
            )
        return target

    def is_published(self, engine: Engine, output: Output) -> bool:
        """Return whether the table has the rows of a batch."""
        table = self._load()
        return table is not None and _done(table, output) is not None

    def retire(self, engine: Engine, output: Output) -> list[Removed]:
        """Take the rows of an abandoned batch back, and see to it that it never is published; see
        `Table.retire`.
        """
        from airflow_kafka_offsets.sinks.iceberg.publication import published
        from airflow_kafka_offsets.sinks.iceberg.removal import Search, of_output
        from airflow_kafka_offsets.sinks.iceberg.target import Changes
        from airflow_kafka_offsets.sinks.lake.replaced import as_removed

        table = self._load()
        if table is None:
            return []
        for attempt in range(_ATTEMPTS):
            last = published(table, output)
            # What rows of a batch replaced by key would be gone with them: they stay, until a load of their records
            # replaces them.
            rows = None if self.upsert_key else of_output(table, output)
            changes = Changes(output, search=Search(rows))
            removal = changes.find(table)
            if last is not None and last.batch >= output.batch_id and removal.is_empty:
                return []
            if last is not None and last.batch > output.batch_id:
                changes.kept = last
            # Also without rows: a commit that is on its way is based on the snapshot before, and fails.
            if self._commit(changes, table):
                return as_removed(removal.counts)
            table = self._reload(attempt)
        raise self._busy()

    @contextmanager
    def _opened(self, conn: Connection, output: Output) -> Iterator[Target]:  # type: ignore[override]
        from airflow_kafka_offsets.sinks.iceberg.publication import refuse_rollback
        from airflow_kafka_offsets.sinks.iceberg.target import Changes, IcebergTarget, PublishedTarget

        table = self._load()
        if table is not None:
            refuse_rollback(table, output.group_id)
            if (done := _done(table, output)) is not None:
                yield PublishedTarget(done)
                return
        target = IcebergTarget(conn, self.name, table, Changes(output), self.upsert_key)
        yield target
        if table is not None:
            self._publish(target.changes, table)

    def _publish(self, changes: Changes, table: Table) -> None:
        """Commit what a block did. Where somebody else committed meanwhile: look again, check again, commit again."""
        from airflow_kafka_offsets.sinks.iceberg.publication import refuse_rollback

        expected = changes.publication()
        for attempt in range(_ATTEMPTS):
            if self._commit(changes, table):
                return
            table = self._reload(attempt)
            if (done := _done(table, changes.output)) is not None:
                self._check_done(done, expected)
                return
            refuse_rollback(table, changes.output.group_id)
            if changes.removal is not None:
                changes.find(table)
                if changes.publication() != expected:
                    raise DatabaseBusyError(
                        f"Rows of {self.name} that are to be replaced were removed by another writer at the same "
                        "moment, or it wrote newer ones of the same keys. Nothing of the batch was written; run the "
                        "task again"
                    )
        raise self._busy()

    def _commit(self, changes: Changes, table: Table) -> bool:
        """Make one commit, and return whether it was made; not, where somebody else was first.

        :raises CommitUnknownError: it is not known, and the table does not show it
        """
        from pyiceberg.exceptions import CommitFailedException

        try:
            changes.commit(table, always=True)
            return True
        except CommitFailedException:
            return False
        except FileNotFoundError:
            # Nothing was sent yet. Others removed manifests of the snapshot that the commit goes on from, as they
            # expired it.
            found = self._load()
            if found is not None and found.metadata_location != table.metadata_location:
                return False
            raise
        except (StagedFileError, TargetError):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {shortened(str(error))}"
            log.warning(
                "Whether batch %d was published in %s is not known: %s", changes.output.batch_id, self.name, reason
            )
        # Outside of the handler: its error may hold what is no message's business.
        found = self._load()
        done = None if found is None else _done(found, changes.output)
        if done is None:
            raise CommitUnknownError(
                f"Catalog {self.catalog_name!r} did not say whether it committed to {self.name} ({reason}), and the "
                "table does not show it. Nothing is committed twice: the next attempt looks first"
            )
        self._check_done(done, changes.publication())
        return True

    def _check_done(self, done: Publication, expected: Publication) -> None:
        """Check that a publication that is there did what this block reports: another attempt may have made it.

        :raises CommitUnknownError: it did something else
        """
        if (done.batch, done.rows, done.added, done.removed) != (
            expected.batch,
            expected.rows,
            expected.added,
            expected.removed,
        ):
            raise CommitUnknownError(
                f"Another attempt published batch {expected.batch} in {self.name} meanwhile, with {done.rows:,} rows"
            )

    def _busy(self) -> DatabaseBusyError:
        return DatabaseBusyError(
            f"Other writers of {self.name} committed first {_ATTEMPTS} times in a row. Nothing of the batch was "
            "written; run the task again"
        )

    def _reload(self, attempt: int) -> Table:
        pause = min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS)
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        table = self._load()
        if table is None:
            raise TargetError(f"{self.name} disappeared; nothing was written")
        return table

    def _load(self) -> Table | None:
        from airflow_kafka_offsets.sinks.iceberg.catalogs import find_table

        try:
            return find_table(self._catalog(), self.identifier)
        except Exception as error:
            raise TargetError(
                f"{self.name} cannot be read: {type(error).__name__}: {shortened(str(error))}. Nothing was written"
            ) from None

    def _catalog(self) -> Catalog:
        return _opened_catalog(
            self.catalog_name, tuple(sorted((key, str(value)) for key, value in self.catalog_properties().items()))
        )

    def find(self, engine: Engine) -> Table | None:
        """Return the table as it is now; None where there is none."""
        return self._load()

    def find_over(self, conn: Connection, *, lock: bool = False) -> Table | None:
        """Return the table as it is now: the transaction does not concern it."""
        return self._load()

    def create(self, engine: Engine, columns: pa.Schema) -> Table:
        """Create the table, and its namespace where it is missing."""
        from sqlalchemy.exc import IntegrityError

        try:
            return self._created(self._catalog(), columns)
        except IntegrityError:
            # The catalog is a database, in which another process created the namespace at the same moment: it is there
            # by now.
            return self._created(self._catalog(), columns)

    def storage_options(self) -> dict[str, Any]:
        """Return what Spark's tasks need to reach the files; the catalog may lend credentials for the table."""
        from airflow_kafka_offsets.sinks.iceberg.catalogs import storage_of

        table = self._load()
        return storage_of(self.catalog_properties() if table is None else table.io.properties)


def _done(table: Table, output: Output) -> Publication | None:
    """Return the publication of a batch, or of a later one of its series."""
    from airflow_kafka_offsets.sinks.iceberg.publication import published

    last = published(table, output)
    return last if last is not None and last.batch >= output.batch_id else None


def _is_same_file(one: Engine, other: Engine) -> bool:
    """Return whether two engines are of one SQLite file."""
    paths = [str(Path(each.url.database or "").absolute()) for each in (one, other) if each.dialect.name == "sqlite"]
    return len(paths) == 2 and paths[0] == paths[1]


@lru_cache(maxsize=16)
def _opened_catalog(name: str, properties: tuple[tuple[str, str], ...]) -> Catalog:
    from airflow_kafka_offsets.sinks.iceberg.catalogs import open_catalog

    return open_catalog(name, dict(properties))
