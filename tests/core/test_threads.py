"""What happens in the background: nobody waits for it, and nothing of it stays."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from queue import SimpleQueue
from typing import Any

import pytest

from airflow_kafka_offsets.core.threads import emptied_in_background, in_background
from devstack.process import wait_until

ended: SimpleQueue[int] = SimpleQueue()


class Slow:
    """Something whose end waits."""

    def __del__(self) -> None:
        ended.put(threading.get_ident())


class Owner:
    def __init__(self) -> None:
        self.held = emptied_in_background(self)
        self.held.append(Slow())


@pytest.mark.parametrize("is_cycle", [False, True])
def test_what_an_owner_holds_ends_in_another_thread(is_cycle: bool) -> None:
    owner: Any = Owner()
    if is_cycle:
        owner.itself = owner

    del owner
    if is_cycle:
        gc.collect()

    assert ended.get(timeout=30) != threading.get_ident()


def test_a_forked_child_does_not_end_what_its_parent_made() -> None:
    owner = Owner()
    child = os.fork()
    if not child:
        del owner
        gc.collect()
        own = Owner()
        del own
        ended.get(timeout=30)
        os._exit(0 if ended.empty() else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ended.empty()
    del owner
    ended.get(timeout=30)


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
