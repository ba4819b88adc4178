"""Run one server as a child, and kill it with all its descendants when the process that started us has ended.

:mod:`devstack.process` starts this file as a script. A test session that is killed with SIGKILL runs no clean-up code,
so another process must clean up. This one holds the read end of a pipe whose write end only the starter has. When the
starter dies for any reason, the kernel closes the pipe, and the supervisor ends the server. It uses no prctl, so that
it runs on Linux and macOS, and only the standard library, so that it starts in about 30 ms.

Protocol:

* A line on standard input names a signal. ``STOP``, ``CONT`` and ``KILL`` go to the whole tree, others to the server
  alone.
* The first line on standard output is the server's process id. After each signal ``ok`` follows.
* The server writes to our standard error.
* The exit status is the server's. All of its descendants have ended by then.

    supervise.py [--user NAME] [--scratch DIRECTORY] COMMAND [ARGUMENT ...]
"""

import argparse
import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

# These signals must reach the whole tree: Postgres' backends and some of Airflow's processes leave the process group of
# their parent and would go on.
WHOLE_TREE = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT}

POLL_SECONDS = 0.1
# A dozen servers run beside the tests, and each look reads the state of every process of the machine.
LOOK_AROUND_SECONDS = 5.0


class Process(NamedTuple):
    """A row of the process table. The start time distinguishes a process from a later one with the same id."""

    pid: int
    ppid: int
    pgid: int
    started: str


def process_table() -> list[Process]:
    """Return all running processes, without zombies."""
    table = []
    if Path("/proc/self/stat").exists():  # images without procps have no `ps`, macOS has no /proc
        # As plain as it gets: every supervisor comes here every few seconds.
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                file = os.open(f"/proc/{entry.name}/stat", os.O_RDONLY)
                try:
                    row = os.read(file, 4096)
                finally:
                    os.close(file)
            except OSError:
                continue  # ended meanwhile
            # The command stands in parentheses and may contain spaces and parentheses itself.
            fields = row.rpartition(b")")[2].split(None, 20)
            if fields[0] not in b"ZX":
                table.append(Process(int(entry.name), int(fields[1]), int(fields[2]), fields[19].decode()))
    else:
        command = ["ps", "-A", "-o", "pid=,ppid=,pgid=,state=,lstart="]
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
            pid, ppid, pgid, state, started = line.split(maxsplit=4)
            if not state.startswith("Z"):
                table.append(Process(int(pid), int(ppid), int(pgid), started))
    return table


class Supervisor:
    def __init__(self, command: list[str], user: str | None, scratch: str | None) -> None:
        self.scratch = scratch
        uid = gid = groups = None
        if user is not None:
            entry = pwd.getpwnam(user)
            uid, gid, groups = entry.pw_uid, entry.pw_gid, [entry.pw_gid]
        self.server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,  # Ctrl-C in a terminal is for the starter, who stops its servers in order
            user=uid,
            group=gid,
            extra_groups=groups,
        )
        # Kept between calls: when a parent dies, its children move to init, and the table no longer shows their
        # parent.
        self.known: set[tuple[int, str]] = set()
        self.looked = 0.0

    def tree(self) -> set[int]:
        """Return the ids of the server's process group, of its descendants, and of earlier members that still run."""
        table = process_table()
        root = self.server.pid
        members = {p.pid for p in table if root in (p.pid, p.pgid) or (p.pid, p.started) in self.known}
        while grown := {p.pid for p in table if p.ppid in members} - members:
            members |= grown
        self.known = {(p.pid, p.started) for p in table if p.pid in members}
        self.looked = time.monotonic()
        return members

    def deliver(self, number: signal.Signals) -> None:
        """Send a signal to the server or to its whole tree."""
        if number not in WHOLE_TREE:
            self.tree()  # after this signal parents may end before their children
            self.server.send_signal(number)
        elif number == signal.SIGCONT:
            self._send(self.tree(), number)
        else:
            # Stop the processes first, also before killing them: a process that forks meanwhile would escape.
            frozen: set[int] = set()
            while fresh := self.tree() - frozen:
                self._send(fresh, signal.SIGSTOP)
                frozen |= fresh
            if number == signal.SIGKILL:
                self._send(frozen, number)

    @staticmethod
    def _send(pids: set[int], number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def run(self) -> int:
        """Carry out signals until the server or the starter ends. Return when the server's tree has ended."""
        orphaned = True
        try:
            orphaned = self._obey()
        finally:  # also after an error here, for example a broken pipe when answering
            while self.tree():
                self.deliver(signal.SIGKILL)
                self.server.poll()
                time.sleep(0.01)
            if orphaned and self.scratch:
                shutil.rmtree(self.scratch, ignore_errors=True)
        status = self.server.wait()
        return status if status >= 0 else 128 - status

    def _obey(self) -> bool:
        """Carry out signals until the server has ended. Return True if the starter ended first."""
        starter = os.getppid()
        print(self.server.pid, flush=True)
        while self.server.poll() is None:
            readable, _, _ = select.select([0], [], [], POLL_SECONDS)
            if readable:
                line = os.read(0, 16).decode()
                if not line:
                    return True
                self.deliver(signal.Signals[f"SIG{line.strip()}"])
                print("ok", flush=True)
            # A forked child of the starter may hold the pipe open after the starter has ended.
            if os.getppid() != starter:
                return True
            if time.monotonic() - self.looked > LOOK_AROUND_SECONDS:
                self.tree()
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--user", help="run the server as this user (only root can)")
    parser.add_argument("--scratch", help="directory to remove when the starter dies without stopping the server")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    # Terminals, service managers and `kill` send signals to the starter. The supervisor ends after it. Not SIG_IGN: the
    # server would inherit it, and a JVM that ignores SIGTERM cannot be stopped in order.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return Supervisor(arguments.command, arguments.user, arguments.scratch).run()


if __name__ == "__main__":
    sys.exit(main())
