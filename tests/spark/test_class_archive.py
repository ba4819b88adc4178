"""When a JVM writes an archive of Spark's classes, and which ones read it. That Java does so: `tests/hooks/test_quick_java.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_kafka_offsets.spark.class_archive import ClassArchive, has_own_options

ENDED = b"classes"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "classes"


def load(directory: Path, *kind: str, is_complete: bool = True, writes: bool = True) -> str:
    """Use the archive as a load does, with a JVM that writes one where it is told to; return the name of the option."""
    archive = ClassArchive(directory, kind)
    options = archive.java_options()
    name, _, path = options.partition(" ")[0].partition("=")
    assert archive.is_written == (name == "-XX:ArchiveClassesAtExit")
    if archive.is_written and writes:
        Path(path).write_bytes(ENDED)
    archive.end(is_complete=is_complete)
    return name


def test_the_second_load_writes_it_and_those_after_it_read_it(directory: Path) -> None:
    assert [load(directory, "java 17") for _ in range(4)] == [
        "",
        "-XX:ArchiveClassesAtExit",
        "-XX:SharedArchiveFile",
        "-XX:SharedArchiveFile",
    ]
    (archive,) = directory.glob("*.jsa")
    assert archive.read_bytes() == ENDED
    assert directory.stat().st_mode & 0o777 == 0o700


def test_another_java_has_another_archive(directory: Path) -> None:
    for _ in range(2):
        load(directory, "java 17", "jars")
    assert load(directory, "java 21", "jars") == ""
    assert load(directory, "java 17", "jars") == "-XX:SharedArchiveFile"


@pytest.mark.parametrize(
    "how", [{"is_complete": False}, {"writes": False}], ids=["the JVM was killed", "wrote nothing"]
)
def test_what_fails_is_tried_three_times(directory: Path, how: dict[str, bool]) -> None:
    tried = [load(directory, "java 17", **how) for _ in range(6)]
    assert tried == ["", *["-XX:ArchiveClassesAtExit"] * 3, "", ""]
    assert [file.suffix for file in directory.iterdir()] == [".attempts"]


def test_an_archive_that_nobody_used_for_a_month_is_removed(directory: Path) -> None:
    for kind in ("old", "used"):
        for _ in range(2):
            load(directory, kind)
    (directory / "left.partial").write_bytes(b"")
    long_ago = time.time() - 31 * 86_400
    for file in directory.iterdir():
        os.utime(file, (long_ago, long_ago))
    load(directory, "used")
    for _ in range(2):
        load(directory, "new")
    assert load(directory, "used") == load(directory, "new") == "-XX:SharedArchiveFile"
    assert load(directory, "old") == ""
    assert not list(directory.glob("*.partial"))


def others_may_write(directory: Path) -> None:
    directory.mkdir(parents=True)
    directory.chmod(0o770)


def it_is_a_file(directory: Path) -> None:
    directory.parent.mkdir()
    directory.write_text("")


def attempts_are_no_number(directory: Path) -> None:
    load(directory, "java 17")
    (attempts,) = directory.iterdir()
    attempts.write_text("many")


@pytest.mark.parametrize("spoil", [others_may_write, it_is_a_file, attempts_are_no_number])
def test_without_a_directory_of_its_own_it_is_not_used(directory: Path, spoil: Callable[[Path], None]) -> None:
    spoil(directory)
    assert [load(directory, "java 17") for _ in range(3)] == ["", "", ""]


def test_a_path_that_would_be_several_options_is_not_used(tmp_path: Path) -> None:
    assert [load(tmp_path / "-XX:OnError=rm now", "java 17") for _ in range(3)] == ["", "", ""]


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ("-Xshare:off", True),
        ("-Xmx1g -XX:SharedArchiveFile=/opt/spark.jsa", True),
        ("-XX:ArchiveClassesAtExit=/tmp/x.jsa", True),
        ("-XX:AOTCache=app.aot", True),
        ("-Xmx1g -Dshare=x", False),
    ],
)
def test_options_of_the_users_own_are_seen(options: str, own: bool) -> None:
    assert has_own_options(["", options]) is own
