"""SQLAlchemy's mappers of a library, configured without Airflow's.

SQLAlchemy calls who listens before it configures mappers, whosever they are. Airflow listens since its import, and
imports all its models then, for most of a second, which a task does not use.
"""

from __future__ import annotations

import sys
from functools import cache

from sqlalchemy import event
from sqlalchemy.orm import Mapper, registry

_EVENT = "before_configured"


@cache
def configure_alone(mappers: registry) -> None:
    """Configure the mappers of a registry, once, and leave it to Airflow to import its models before any of its own are
    used.
    """
    import_models = getattr(sys.modules.get("airflow.models"), "import_all_models", None)
    if import_models is None or not event.contains(Mapper, _EVENT, import_models):
        return
    event.remove(Mapper, _EVENT, import_models)
    try:
        mappers.configure()
    finally:
        event.listen(Mapper, _EVENT, import_models, once=True)
