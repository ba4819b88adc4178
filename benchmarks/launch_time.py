"""How long a load takes until Spark would start."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.spark.job import Launcher, StageJob


def seconds_until_launch(load: Callable[[Launcher], object]) -> float:
    """Return the seconds from the call of a load until it launches Spark, which ends it.

    :param load: loads at least one batch with a launcher
    :raises AssertionError: there was nothing to load
    """
    launched: list[float] = []

    class Stopwatch:
        def check(self, staging_dir: str | None) -> None: ...

        def __call__(self, job: StageJob) -> None:
            launched.append(time.monotonic())
            raise StagingError("only the plan is measured")

        def cancel(self) -> None: ...

        def close(self) -> None: ...

    began = time.monotonic()
    try:
        load(Stopwatch())
    except StagingError:
        return launched[0] - began
    raise AssertionError("there was nothing to load")
