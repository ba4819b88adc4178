"""The processor seconds of a block: of its own process and of all below it, however they end."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from benchmarks.processor_time import ProcessorTime
from devstack.process import wait_until

_BURN = """
import os, signal, sys, time

def burn(seconds):
    while time.process_time() < seconds:
        pass
"""


def test_own_work_counts() -> None:
    with ProcessorTime() as processor:
        _burn(0.5)

    assert processor.seconds == pytest.approx(0.5, abs=0.2)


@pytest.mark.long
def test_work_before_and_after_the_block_does_not_count() -> None:
    child = _start("burn(1.0); print('burnt', flush=True); sys.stdin.read(); burn(2.0)")
    assert child.stdout is not None
    child.stdout.readline()
    with ProcessorTime() as processor:
        pass
    child.communicate()

    assert processor.seconds < 0.3


@pytest.mark.long
def test_processes_that_live_shorter_than_a_pause_count() -> None:
    with ProcessorTime() as processor:
        for _ in range(8):
            _start("burn(0.15)").communicate()

    assert processor.seconds >= 8 * 0.15


def test_processes_that_still_run_count() -> None:
    with ProcessorTime() as processor:
        child = _start("burn(0.5); print('burnt', flush=True); sys.stdin.read()")
        assert child.stdout is not None
        child.stdout.readline()
    child.communicate()

    assert processor.seconds >= 0.5


def test_a_process_that_outlives_its_parent_counts() -> None:
    with ProcessorTime() as processor:
        output, _ = _start(
            """
            parent = os.getpid()
            if (pid := os.fork()) == 0:
                os.close(1)
                while os.getppid() == parent:
                    pass
                burn(0.5)
            else:
                print(pid, flush=True)
            """
        ).communicate()
        pid = int(output)
        wait_until(lambda: _state(pid) == "Z", 30, "the end of the process")

    assert processor.seconds >= 0.5
    assert not Path("/proc", str(pid)).exists()


def test_a_process_that_is_not_waited_for_counts() -> None:
    """As the workers of PySpark's daemon are not."""
    with ProcessorTime() as processor:
        _start(
            """
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            if pid := os.fork():
                try:
                    os.waitpid(pid, 0)
                except ChildProcessError:
                    pass
            else:
                burn(1.5)
            """
        ).communicate()

    assert processor.seconds >= 1.0


def test_a_process_of_before_that_is_not_waited_for_may_end_at_once() -> None:
    child = _start(
        """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if os.fork():
            sys.stdin.read()
        else:
            burn(1.0)
            print(os.getpid(), flush=True)
            signal.pause()
        """
    )
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    with ProcessorTime() as processor:
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not Path("/proc", str(pid)).exists(), 30, "the end of the process")
    child.communicate()

    assert 0 <= processor.seconds < 0.3


def _start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _BURN + textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def _state(pid: int) -> str:
    return Path("/proc", str(pid), "stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
