"""The names of a table in other programs: the URI of its asset in Airflow, and its dataset in OpenLineage."""

from __future__ import annotations

from urllib.parse import quote, unquote

from sqlalchemy.engine import Engine

_PORTS = {"postgres": 5432, "mysql": 3306}

_SCHEMES = {"postgresql": "postgres", "mariadb": "mysql"}


def asset_uri(table: str, schema: str | None, engine: Engine) -> str:
    """Return the URI of a table, as Airflow's provider of its database defines it."""
    url = engine.url
    scheme = _SCHEMES.get(engine.dialect.name, engine.dialect.name)
    if scheme == "sqlite":
        return f"sqlite:///{quote((url.database or '').lstrip('/'))}/{quote(table, safe='')}"
    if scheme == "mysql":
        # A schema is a database there.
        path = [schema or url.database, table]
    else:
        # Known since the first connection of the load.
        path = [url.database, schema or engine.dialect.default_schema_name or "default", table]
    port = url.port or _PORTS.get(scheme)
    host = f"{url.host or 'localhost'}{f':{port}' if port else ''}"
    return f"{scheme}://{host}/{'/'.join(quote(name or '', safe='') for name in path)}"


def dataset_name(uri: str) -> tuple[str, str]:
    """Return the namespace and the name of a table in OpenLineage.

    :param uri: of its asset
    """
    if uri.startswith("sqlite:"):
        file, _, table = uri.rpartition("/")
        return unquote(file), unquote(table)
    scheme, _, rest = uri.partition("://")
    server, *path = rest.split("/")
    return f"{scheme}://{server}", ".".join(map(unquote, path))
