"""How often a lake table is read and committed to again, while others change it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from airflow_kafka_offsets.exceptions import DatabaseBusyError

# Writers that commit without a pause leave the table free for a moment only: a long pause wins no race.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 2.0

PATIENCE_SECONDS = 600.0
"""How long a table is read and committed to again."""


def attempts(name: str) -> Iterator[int]:
    """Yield the number of each attempt to read or commit to a table, with a pause before each but the first.

    :param name: of the table
    :raises DatabaseBusyError: others committed first each time, for `PATIENCE_SECONDS`
    """
    end, number = time.monotonic() + PATIENCE_SECONDS, 0
    while True:
        yield number
        number += 1
        if time.monotonic() > end:
            raise DatabaseBusyError(
                f"Other writers committed to {name!r} before each of {number} attempts, for "
                f"{PATIENCE_SECONDS:,.0f} seconds. Nothing of the batch was written; run the task again"
            )
        pause = min(_FIRST_PAUSE_SECONDS * 2 ** min(number, 10), _LONGEST_PAUSE_SECONDS)
        time.sleep(random.uniform(0, pause))  # noqa: S311 - no secret
