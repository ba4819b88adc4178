"""Warnings about connections, which sensors and tasks open again and again."""

from __future__ import annotations

import logging
from functools import cache


@cache
def warn_once(log: logging.Logger, text: str) -> None:
    """Log a warning, once a process."""
    log.warning("%s", text, stacklevel=2)
