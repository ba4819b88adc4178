"""Where rows go."""

from __future__ import annotations

__all__ = ["SqlTable"]
