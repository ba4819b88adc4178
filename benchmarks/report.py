"""Measurements as text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from statistics import median

from benchmarks.bars import Bar
from benchmarks.measured import PACKAGE, START, Measured

# Characters of a line before the processor seconds.
_WITHOUT_PROCESSOR = 100


def as_text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def print_lines(*lines: str) -> None:
    """Print lines and flush them, also into a file."""
    sys.stdout.write(as_text(lines))
    sys.stdout.flush()


def table(measured: Measured) -> Iterator[str]:
    """Return a row for each contender: rates with and without the start, the package's ratio to it, processor seconds,
    and their ratio.
    """
    yield f"{measured.dataset.title}"
    yield (
        f"  {'':34} {'median':>8}  {'of rounds':>14} {'rows/s':>10} {'no start':>10} {'package is':>16} "
        f"{'processor':>10} {'package is':>10}"
    )
    for name in measured.names:
        seconds = measured.seconds[name]
        line = f"  {name:34} {measured.median(name):6.1f} s  {min(seconds):6.1f} to {max(seconds):4.1f}"
        if name != START:
            line += f" {measured.rate(name):10,.0f} {measured.rate(name, with_start=False):10,.0f}"
        if name not in (START, PACKAGE):
            whole, without = (measured.ratio(PACKAGE, name, with_start=start) for start in (True, False))
            line += f" {f'{whole:.2f} ({without:.2f}) x':>16}"
        if name in measured.processor:
            processor = median(measured.processor[name])
            line = f"{line:{_WITHOUT_PROCESSOR}} {processor:8.1f} s"
            if name not in (START, PACKAGE) and PACKAGE in measured.processor:
                line += f" {processor / median(measured.processor[PACKAGE]):8.2f} x"
        yield line


def verdict(bar: Bar) -> str:
    """Return whether a bar is met, and by how much it is missed."""
    asked = f"{'at most' if bar.at_most else 'at least'} {bar.asked:g}"
    found = f"{bar.found:.2f}"
    if bar.without_start is not None:
        found += f", {bar.without_start:.2f} without the start"
    how = "met" if bar.met else f"missed by {abs(bar.found - bar.asked):.2f}"
    return f"  {how:15} {bar.title:71} {asked:14} found {found}"
