"""When a condition that stays true is worth another event: a pure decision. No I/O."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import timedelta


class Edge:
    """Fires when a condition becomes true, and again if the load that followed was not enough, or did not follow.

    An event asks for a load. So it fires again if the condition is still true after positions have moved, and if no position
    has moved for an interval: the run may have failed. It does not fire while a run loads the group.

    :param rearm_after: how long after an event it fires again though no position has moved
    """

    def __init__(self, rearm_after: timedelta) -> None:
        self._rearm_after = rearm_after.total_seconds()
        self._armed = True
        self._fired_at = 0.0
        self._positions: Hashable = None

    def fires(self, met: bool | None, positions: Hashable, *, busy: bool, now: float) -> bool:
        """Decide whether to fire after a poll.

        :param met: whether the condition is true; None is not known, and changes nothing
        :param positions: any value that changes when a position moves
        :param busy: whether a run loads the group
        :param now: seconds of a monotonic clock
        """
        if met is None:
            return False
        if not met:
            self._armed = True
            return False
        if busy:
            return False
        if not self._armed and positions == self._positions and now - self._fired_at < self._rearm_after:
            return False
        self._armed, self._fired_at, self._positions = False, now, positions
        return True
