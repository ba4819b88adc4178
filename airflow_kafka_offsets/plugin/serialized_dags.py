"""What the tasks of DAGs name, as Airflow's metadata database has them. Only DAGs that changed are read again."""

from __future__ import annotations

import threading
from uuid import UUID

import sqlalchemy as sa
from airflow.models.serialized_dag import SerializedDagModel  # noqa: TID251 - the page runs in the API server
from airflow.utils.session import create_session  # noqa: TID251

from airflow_kafka_offsets.plugin.sources import Registered, of_serialized_dag


class SerializedDags:
    """The latest versions of all serialized DAGs, and what their tasks name."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Registered]] = {}
        self._lock = threading.Lock()

    def registered(self) -> dict[str, Registered]:
        """Return what the tasks of each DAG name; DAGs without tasks of this package are left out."""
        model = SerializedDagModel
        with self._lock, create_session() as session:
            latest: dict[str, tuple[UUID, str]] = {}
            rows = sa.select(model.dag_id, model.id, model.dag_hash).order_by(model.created_at)
            for dag_id, number, dag_hash in session.execute(rows):
                latest[dag_id] = (number, dag_hash)
            known = {}
            for dag_id, (number, dag_hash) in latest.items():
                before = self._known.get(dag_id)
                if before is not None and before[0] == dag_hash:
                    known[dag_id] = before
                    continue
                row = session.get(model, number)
                known[dag_id] = (dag_hash, of_serialized_dag((row.data if row is not None else None) or {}))
                session.expunge_all()
            self._known = known
        return {dag_id: names for dag_id, (_, names) in known.items() if names != Registered()}
