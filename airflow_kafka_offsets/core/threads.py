"""Work that may take longer than anybody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


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
