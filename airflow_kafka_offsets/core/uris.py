"""What the URI of a directory may hold."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit


def holds_credentials(uri: str) -> bool:
    """Return whether the URI of a directory holds a login, or a part of one."""
    parts = urlsplit(uri)
    if parts.scheme in ("abfs", "abfss"):  # the container of Azure is before the @
        return parts.password is not None or "sig" in parse_qs(parts.query)
    # By this name pyarrow does not log in to Google's store.
    anonymous = parts.scheme in ("gs", "gcs") and parts.username == "anonymous"
    return parts.password is not None or (parts.username is not None and not anonymous)
