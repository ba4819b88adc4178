"""What happens in the background: nobody waits for it, and nothing of it stays."""

from __future__ import annotations

import gc
import weakref

from airflow_kafka_offsets.core.threads import in_background
from devstack.process import wait_until


def test_an_error_in_the_background_holds_nothing_of_the_work() -> None:
    class Resource: ...

    resource = Resource()
    ends = weakref.ref(resource)

    def work(used: Resource = resource) -> None:
        raise ValueError(type(used).__name__)

    gc.disable()
    try:
        failed = in_background(work)
        assert str(failed.exception(30)) == "Resource"
        del work, resource, failed
        wait_until(lambda: ends() is None, 30, "the thread to end")
    finally:
        gc.enable()
