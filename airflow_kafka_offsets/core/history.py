"""The words of the history: states and kinds of batches that several packages ask for."""

from __future__ import annotations

OPEN_STATES = ("planned", "staged")
"""States of a batch that is neither committed nor abandoned."""

REWIND_KINDS = ("rewind", "undo", "import")
"""Kinds of batches that moved positions on request, and loaded nothing."""
