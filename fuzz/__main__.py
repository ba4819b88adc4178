"""Run the targets, each in processes of its own: `python -m fuzz --minutes 60 --seed 1 [target …]`.

A target fails if it raises what its reader must not raise, ends its process, takes ten seconds of the processor, or a
process with it has more than a gigabyte. What it was fed is then kept in `.build/fuzz`; `python -m fuzz --repeat FILE`
feeds it again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from fuzz.targets import TARGETS, Target

_KEPT = Path(".build/fuzz")
# Of the processor: another program on the machine is no fault of the target. And of a clock, for one that only waits.
_SECONDS, _WAIT_SECONDS = 10, 120
_MOST_BYTES = 1 << 30
# What a process may reserve: the machine must not end others.
_LIMIT = 4 << 30
_AT_ONCE = 2
# A target that fails all the time.
_MOST_FAILURES = 10
_MOST_CORPUS = 2_000


class Found(NamedTuple):
    """What the processes of a target did."""

    name: str
    executions: int
    failures: dict[str, Path]


def main() -> int:
    """Run targets, and return whether one failed."""
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", type=Path)
    parser.add_argument("--child", nargs=3, metavar=("SECONDS", "SEED", "DIRECTORY"))
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []])
    args = parser.parse_args()
    names = args.targets or list(TARGETS)
    if args.repeat is not None:
        _feed(TARGETS[args.repeat.name.partition("+")[0]], args.repeat.read_bytes())
        return 0
    if args.child is not None:
        seconds, seed, directory = args.child
        _run_child(TARGETS[names[0]], float(seconds), int(seed), Path(directory))
        return 0
    _KEPT.mkdir(parents=True, exist_ok=True)
    print(f"{len(names)} targets, {args.minutes:g} minutes, SEED={args.seed}", flush=True)
    share = args.minutes * 60 * min(_AT_ONCE, len(names)) / len(names)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda name: _run(name, share, args.seed), names))
    print("\n".join(f"{each.name:>18} {each.executions:>12,} executions" for each in found))
    failures = [(each.name, what, path) for each in found for what, path in each.failures.items()]
    for name, what, path in failures:
        print(f"\nFAILED {name}: {what}\n  python -m fuzz --repeat {path}")
    print(f"{sum(each.executions for each in found):,} executions, {len(failures)} failures, SEED={args.seed}")
    return int(bool(failures))


def _run(name: str, seconds: float, seed: int) -> Found:
    """Run processes with a target until its time is over; a process that ends is followed by another."""
    found, end, number = Found(name, 0, {}), time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0 and len(found.failures) < _MOST_FAILURES:
        directory = _KEPT / f"{name}-{seed}-{number}"
        directory.mkdir(exist_ok=True)
        child = subprocess.Popen(
            [sys.executable, "-m", "fuzz", "--child", str(left), f"{seed}{number:03}", str(directory), name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "TMPDIR": str(directory.absolute())},
        )
        _, said = child.communicate()
        counted, fed = directory / "executions", directory / "fed"
        executions = int(counted.read_text()) if counted.exists() else 0
        found = found._replace(executions=found.executions + executions)
        for note in directory.glob("*.failure"):
            plain = json.loads(note.read_text())
            found.failures.setdefault(plain["what"], _keep(name, note.with_suffix(".input").read_bytes()))
        if child.returncode:
            what = f"the process ended with {child.returncode}: {said[-2000:]}"
            if child.returncode in (-signal.SIGALRM, -signal.SIGPROF):
                what = f"it takes more than {_SECONDS} s of the processor, or waits for {_WAIT_SECONDS} s"
            found.failures.setdefault(what, _keep(name, fed.read_bytes() if fed.exists() else b""))
        number += 1
        shutil.rmtree(directory)
    print(f"{name:>18} {found.executions:>12,} executions, {len(found.failures)} failures", flush=True)
    return found


def _keep(name: str, data: bytes) -> Path:
    path = _KEPT / f"{name}+{sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path


def _run_child(target: Target, seconds: float, seed: int, directory: Path) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_LIMIT, _LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    rng = random.Random(seed)
    fed = os.open(directory / "fed", os.O_RDWR | os.O_CREAT)
    read, corpus = target.prepare()
    kept, outcomes, failed = list(corpus), set[str](), set[str]()
    executions, end, written = 0, time.monotonic() + seconds, 0.0
    base, first = _peak(), list(corpus)
    while (now := time.monotonic()) < end and len(failed) < _MOST_FAILURES:
        if now - written > 1:
            (directory / "executions").write_text(str(executions))
            written = now
        data = first.pop() if first else target.damage(rng, kept)
        os.pwrite(fed, data, 0)
        os.ftruncate(fed, len(data))
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        signal.alarm(_WAIT_SECONDS)
        try:
            outcome = _outcome(read(data))
            if outcome not in outcomes and len(kept) < _MOST_CORPUS and len(data) < 10_000:
                outcomes.add(outcome)
                kept.append(data)
            what = ""
        except BaseException as error:
            what = _failure(error)
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        executions += 1
        if (peak := _peak()) > max(base, _MOST_BYTES):
            what, base = f"the process has {peak >> 20:,} MiB", peak * 2
        if what and what not in failed:
            failed.add(what)
            (directory / f"{len(failed)}.failure").write_text(json.dumps({"what": what}))
            (directory / f"{len(failed)}.input").write_bytes(data)
    (directory / "executions").write_text(str(executions))
    sys.stdout.flush()
    # Without the end of the interpreter, for which threads of libraries may wait.
    os._exit(0)


def _feed(target: Target, data: bytes) -> None:
    read, _ = target.prepare()
    began = time.monotonic()
    print(read(data))
    print(f"{time.monotonic() - began:.1f} s, {_peak() >> 20:,} MiB")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _outcome(text: str) -> str:
    """Return what is the same for outcomes that differ in numbers and values only."""
    return "".join("0" if character.isdigit() else character for character in text)[:120]


def _failure(error: BaseException) -> str:
    """Return the error, and where it was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "airflow_kafka_offsets" in frame.filename]
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-3:]]
    return f"{type(error).__name__} {str(error)[:200]!r} at {' > '.join(places)}"


if __name__ == "__main__":
    sys.exit(main())
