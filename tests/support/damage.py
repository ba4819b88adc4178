"""Staged files that are damaged between staging and commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest, StagedFile
from tests.support.inline import InlineLauncher

Damage = Callable[[Path, Path], object]
"""Damages a file; the second path is that of another file of its kind."""


def cut(path: Path, other: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])


def flip(path: Path, other: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def remove(path: Path, other: Path) -> None:
    path.unlink()


def swap(path: Path, other: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(raw)


DAMAGES: Sequence[Damage] = (cut, flip, remove, swap)

KINDS = ("rows", "dead letters")


def staged_files(directory: Path, kind: str) -> Sequence[StagedFile]:
    """Return the files that the manifest names, in the order in which they are committed."""
    manifest = Manifest.from_json((directory / MANIFEST).read_text())
    rows = tuple(file for file in manifest.files if not file.is_final)
    return rows if kind == "rows" else tuple(manifest.staged_files())[len(rows) :]


def damage_last(directory: Path, kind: str, damage: Damage) -> str:
    """Damage the file that is committed last of its kind: those before it are written by then.

    :return: its name
    """
    *_, other, last = staged_files(directory, kind)
    damage(directory / last.name, directory / other.name)
    return last.name


class DamagingLauncher(InlineLauncher):
    """Damages what it staged, as often as it is asked to."""

    def __init__(self, kind: str, damage: Damage, times: int = 1) -> None:
        super().__init__()
        self.names: list[str] = []
        self._kind, self._damage, self._times = kind, damage, times

    def __call__(self, job: StageJob) -> None:
        super().__call__(job)
        if len(self.jobs) <= self._times:
            self.names.append(damage_last(Path(job.staging_uri), self._kind, self._damage))
