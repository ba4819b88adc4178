"""Airflow's FAB auth manager in this process, with a user for each of `web.ROLES`."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

FAB = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"

ROLES = {
    "viewer": ["Viewer", "Pages"],
    "editor": ["User", "Pages"],
    "operator": ["Op"],
    "newcomer": ["User"],
    "reader": ["Readers of shop", "Pages"],
}
"""Who reads DAGs, who edits them, who reads connections, too; who edits DAGs with FAB's own role alone; and who reads
one DAG.

FAB's own roles below Op may not see plugins. An administrator has to allow it, as the documents say.
"""
_OWN = {"Pages": ["Plugins"], "Readers of shop": ["Website", "DAG:shop"]}


@cache
def fab_users() -> dict[str, Any]:
    """Return a user for each name of `ROLES`; Airflow's configuration names FAB's auth manager."""
    with warnings.catch_warnings():
        # FAB's own, of Starlette and Flask.
        warnings.simplefilter("ignore")
        from airflow.api_fastapi.app import create_auth_manager, get_auth_manager
        from airflow.providers.fab.www.app import create_app
        from airflow.providers_manager import ProvidersManager

        # Airflow 3.1 has the providers' configuration in its commands only.
        providers: Any = ProvidersManager()  # type: ignore[no-untyped-call]
        providers.initialize_providers_configuration()
        create_auth_manager()
        with create_app(enable_plugins=False).app_context():
            # Airflow 3.1 creates another one with each app, and only this one has what all need.
            manager: Any = get_auth_manager()
            type(manager).appbuilder = manager.appbuilder
            security = manager.security_manager
            for role, resources in _OWN.items():
                security.add_role(role)
                for resource in resources:
                    permission = security.create_permission("can_read", resource)
                    security.add_permission_to_role(security.find_role(role), permission)
            return {
                name: security.add_user(
                    name, name, name, f"{name}@example.org", [security.find_role(role) for role in roles], "password"
                )
                for name, roles in ROLES.items()
            }
