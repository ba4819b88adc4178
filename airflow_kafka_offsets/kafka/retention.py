"""How long a topic keeps a record, read from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

SETTINGS = ("cleanup.policy", "retention.ms", "retention.bytes")
"""The settings that decide it."""

# A century. Some users configure unlimited retention with a number that no date reaches.
_FOREVER_MS = 36_500 * 24 * 3_600_000


def reports_retention(settings: Mapping[str, Any]) -> bool:
    """Return whether the broker reports what decides it."""
    # Proxies and managed clusters hide settings, or their values.
    return all(name in settings and settings[name].value is not None for name in SETTINGS)


def read_retention(settings: Mapping[str, Any]) -> timedelta | None:
    """Return how long a topic keeps a record, if time alone decides it."""
    policy, by_time, by_size = (settings[name].value for name in SETTINGS)
    if "delete" not in policy or not 0 <= int(by_time) < _FOREVER_MS or int(by_size) >= 0:
        return None
    return timedelta(milliseconds=int(by_time))
