"""Renews the lease of a claim while its attempt is running."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.ledger.claims import Claim, renew_lease
from airflow_kafka_offsets.ledger.tables import Tables

log = logging.getLogger(__name__)


class Heartbeat:
    """Renews the lease from a thread of its own, three times a lease, from `with` to the end of the block.

    A renewal that fails is not the end of the attempt: the lease is only how others learn that it lives, and the epoch
    keeps the data safe when it runs out. Only losing the group is final, and stops the renewals.
    """

    def __init__(self, engine: Engine, tables: Tables, claim: Claim) -> None:
        self._engine = engine
        self._tables = tables
        self._claim = claim
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease-{claim.group_id}", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._claim.lease.total_seconds() / 3):
            try:
                if not renew_lease(self._engine, self._tables, self._claim):
                    log.warning(
                        "Group %r was taken over by a later attempt; this one will not be able to commit",
                        self._claim.group_id,
                    )
                    return
            except (SQLAlchemyError, LedgerError) as error:
                log.warning("The lease of group %r could not be renewed: %s", self._claim.group_id, error)
