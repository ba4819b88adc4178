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

DELETE = "delete"
"""Kind of the batch that deleted a group: it removed all positions."""

REWIND_KINDS = ("rewind", "undo", "import", DELETE)
"""Kinds of batches that moved positions on request, and loaded nothing."""

RENAME = "rename"
"""Kind of the batch that says in the history of a group which name it had before."""

RENAMED = "renamed"
"""Kind of the batch that stays under the earlier name of a group, and says the new one."""
