"""Who may see what: Airflow's own login and its auth manager decide. Without them nothing here can be imported, and
there is no app.

* Every route needs read access to the view of plugins.
* A group is shown to who may read a DAG whose tasks name it; a group that no DAG names, to who may read the connection
  of its database.
* What dead letters hold is data of tasks: it needs read access to the XComs of a DAG that loads the group, as its tasks
  say. To change the state of the group needs edit access to one.
* Where a connection belongs to a team, all of this needs access to the team.
"""

# No annotations of the future: as text, FastAPI of Airflow 3.1 could not read those of a class.

from collections.abc import Set
from functools import cache, cached_property
from typing import Annotated, Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from airflow.configuration import conf
from airflow.models import Connection  # noqa: TID251 - the page runs in the API server
from airflow.models.dag import DagModel  # noqa: TID251
from fastapi import Depends, HTTPException, status

from airflow_kafka_offsets.plugin.problems import Problem
from airflow_kafka_offsets.plugin.sources import Discovery, Source

Method = Literal["GET", "PUT"]

LOGIN = Depends(requires_access_view(AccessView.PLUGINS))
"""The dependency of the app: without it, routes of plugins are anonymous."""

READS_DAG = Depends(requires_access_dag(method="GET"))
"""The dependency of routes with a `dag_id` in their path."""


class Caller:
    """The user of a request, with answers that are asked for once."""

    def __init__(self, user: GetUserDep) -> None:
        self.user = user
        self.reads_connection = cache(self._reads_connection)
        self.shares_team = cache(self._shares_team)

    def may_dag(self, method: Method, dag_id: str, entity: DagAccessEntity | None = None) -> bool:
        """Return whether the user may read (GET) or edit (PUT) a DAG, or a kind of its data."""
        details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
        return bool(
            get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=self.user)
        )

    @cached_property
    def readable_dags(self) -> set[str]:
        """Return the DAGs that the user may read, of those that Airflow knows."""
        readable: set[str] = get_auth_manager().get_authorized_dag_ids(user=self.user, method="GET")
        return readable

    def _reads_connection(self, conn_id: str) -> bool:
        """Return whether the user may read a connection, as Airflow's own page of connections decides."""
        details = ConnectionDetails(conn_id=conn_id, team_name=_team_of(conn_id))
        return bool(get_auth_manager().is_authorized_connection(method="GET", details=details, user=self.user))

    def _shares_team(self, conn_id: str) -> bool:
        """Return whether the user is in the team that a connection belongs to; True where it belongs to none."""
        if (team := _team_of(conn_id)) is None:
            return True
        # Airflow 3.1 has no teams.
        from airflow.api_fastapi.auth.managers.models.resource_details import TeamDetails

        details = TeamDetails(name=team)
        return bool(get_auth_manager().is_authorized_team(method="GET", details=details, user=self.user))

    def sees_source(self, source: Source, discovery: Discovery) -> bool:
        """Return whether the user may see groups of state tables: the configuration names them, or a DAG that the user
        may read.
        """
        return self._sees(source, discovery.is_configured or not self.readable_dags.isdisjoint(discovery.dag_ids))

    def knows_source(self, source: Source, discovery: Discovery) -> bool:
        """Return whether the user may know the names of state tables: through a DAG that has them, or the connection.
        What the configuration names is known to those who see one of its groups.
        """
        return self._sees(source, not self.readable_dags.isdisjoint(discovery.dag_ids))

    def sees_group(self, source: Source, dag_ids: Set[str]) -> bool:
        """Return whether the user may see a group.

        :param dag_ids: the DAGs that name it
        """
        return self._sees(source, not self.readable_dags.isdisjoint(dag_ids))

    def sees_records(self, source: Source, dag_ids: Set[str]) -> bool:
        """Return whether the user may see what dead letters of a group hold, which these DAGs load."""
        readable = self.readable_dags & dag_ids
        return self._sees(source, any(self.may_dag("GET", dag_id, DagAccessEntity.XCOM) for dag_id in readable))

    def _sees(self, source: Source, through_dags: bool) -> bool:
        """Return whether the user may see something of a source: in its team, through a DAG or the connection."""
        return self.shares_team(source.conn_id) and (through_dags or self.reads_connection(source.conn_id))

    def edited_dags(self, source: Source, dag_ids: Set[str]) -> list[str]:
        """Return the DAGs that load a group, and that the user may edit: who changes its state needs one."""
        readable = self.readable_dags & dag_ids if self.shares_team(source.conn_id) else ()
        return [dag_id for dag_id in readable if self.may_dag("PUT", dag_id)]

    def text(self, problem: Problem) -> str:
        """Return what the user may know of a problem."""
        if problem.detail is None or problem.conn_id is None or not self.reads_connection(problem.conn_id):
            return problem.summary
        return f"{problem.summary}: {problem.detail}"


def _team_of(conn_id: str) -> Any:
    return Connection.get_team_name(conn_id) if conf.getboolean("core", "multi_team", fallback=False) else None


CallerDep = Annotated[Caller, Depends()]


def not_found(what: str) -> HTTPException:
    """Return the answer for what is not there, and for what the user may not see: the two look the same."""
    return HTTPException(status.HTTP_404_NOT_FOUND, what)
