"""Work that may take longer than anybody waits for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import finalize

T = TypeVar("T")

_lock = threading.Lock()
_emptied: dict[int, SimpleQueue[list[Any]]] = {}


def in_background(work: Callable[[], T], name: str = "kafka-offsets") -> Future[T]:
    """Run work in a thread of its own that does not keep the process, however long it takes.

    :param name: of the thread
    """
    future: Future[T] = Future()
    threading.Thread(target=_run, args=(work, future), name=name, daemon=True).start()
    return future


def _run(work: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
    finally:
        # Otherwise the error would hold itself, with what the work has, by the frame in its traceback.
        del work, future


def emptied_in_background(owner: object) -> list[Any]:
    """Return a list for things that may take long to end. When its owner has ended, it is emptied in a thread of its
    own: a garbage collection ends things in whichever thread it happens to run in.

    A forked child does not end what its parent made.

    :param owner: the only one that holds the list, which alone holds the things
    """
    with _lock:
        if (queue := _emptied.get(os.getpid())) is None:
            queue = _emptied[os.getpid()] = SimpleQueue()
            threading.Thread(target=_empty, args=(queue,), name="kafka-offsets-end", daemon=True).start()
    held: list[Any] = []
    # A finalizer may run anywhere, also where a lock is held that a new thread would need.
    finalize(owner, queue.put, held).atexit = False
    return held


def _empty(queue: SimpleQueue[list[Any]]) -> None:
    while True:
        in_background(queue.get().clear)
