"""When a condition that stays true is worth another event: a pure decision. No I/O."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import timedelta


class Edge:
    """Fires when a condition becomes true, and again when something was done about it that was not enough.

    A load is what an event asks for. So the condition is looked at anew once positions have moved, and after an interval
    in which nothing moved: the run may have failed. While a load is at work, the event would come too soon.

    :param rearm_after: how long after an event the next one may come though no position has moved
    """

    def __init__(self, rearm_after: timedelta) -> None:
        self._rearm_after = rearm_after.total_seconds()
        self._armed = True
        self._fired_at = 0.0
        self._positions: Hashable = None

    def fires(self, met: bool | None, positions: Hashable, *, busy: bool, now: float) -> bool:
        """Whether to fire after this look.

        :param met: whether the condition is true; None where nobody knows, which changes nothing
        :param positions: anything that differs after a position has moved
        :param busy: whether a load of the group is at work
        :param now: seconds of a clock that never goes back
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
