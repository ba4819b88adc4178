"""The names of a lake table in other programs: the URI of its asset in Airflow, and its dataset in OpenLineage."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

_SCHEMES = {"s3a": "s3", "s3n": "s3"}


def asset_uri(uri: str) -> str:
    """Return the URI of a directory of files, as Airflow's assets have it.

    :param uri: of the table, or an absolute path
    """
    scheme, _, place = uri.rpartition("://")
    return f"{_SCHEMES.get(scheme, scheme)}://{place}" if scheme else f"file://{quote(place)}"


def dataset_name(uri: str) -> tuple[str, str]:
    """Return the namespace and the name of a directory: `file` and a path, or the bucket and the key."""
    parts = urlsplit(uri)
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    if scheme in ("", "file"):
        return "file", unquote(parts.path).rstrip("/") or "/"
    user, _, server = parts.netloc.rpartition("@")
    # The container of an Azure account is where other URIs have a login, of which nothing is shown.
    is_container = scheme.startswith(("abfs", "wasb")) and ":" not in user
    namespace = f"{scheme}://{parts.netloc if is_container else server}"
    path = parts.path.rstrip("/")
    return namespace, path if scheme == "hdfs" else path.lstrip("/") or "/"
