"""The words of the history: states and kinds of batches that several packages ask for."""

from __future__ import annotations

OPEN_STATES = ("planned", "staged")
"""States of a batch that is neither committed nor abandoned."""

PREFETCHED = "prefetched"
"""State of a load that follows a group's open one: planned from the positions after it, and staged while it is
committed.
"""

UNFINISHED_STATES = (*OPEN_STATES, PREFETCHED)
"""States of a batch that may still be committed."""

DEAD_LETTERS = "dead_letters"
"""Kind of a batch that replays dead letters of an earlier one."""

REPLAY_KINDS = ("replay", DEAD_LETTERS)
"""Kinds of batches that wrote rows of offsets, and moved no position."""

OUTPUT_KINDS = ("load", *REPLAY_KINDS)
"""Kinds of batches that may have written rows."""

REWIND_KINDS = ("rewind", "undo", "import")
"""Kinds of batches that moved positions on request, and loaded nothing."""
