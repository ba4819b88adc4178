"""Which archive of Spark's classes a JVM is told to read. That Java writes and reads it:
`tests/cli/test_archive_classes.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.java import ClassArchive, has_own_options


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    """The directory of a Spark."""
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark-core.jar").write_bytes(b"classes")
    return tmp_path / "spark"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    # As what pytest creates, which is below a directory that all may write to, and only owners may change.
    (tmp_path / "classes").mkdir(mode=0o755)
    return tmp_path / "classes"


def archive_of(directory: Path, spark: Path, java: str = "17", *, with_sql: bool = False) -> ClassArchive:
    return ClassArchive(directory, ["/usr/bin/java", java], spark, with_sql=with_sql)


def test_an_archive_is_read_where_there_is_one(directory: Path, spark: Path) -> None:
    archive = archive_of(directory, spark)
    assert archive.java_options() == ""
    archive.path.touch(mode=0o644)
    assert archive.java_options().split()[0] == f"-XX:SharedArchiveFile={archive.path}"


def test_each_set_of_dependencies_has_an_archive(directory: Path, spark: Path) -> None:
    paths = {archive_of(directory, spark).path, archive_of(directory, spark, with_sql=True).path}
    paths.add(archive_of(directory, spark, "21").path)
    (spark / "jars" / "spark-core.jar").write_bytes(b"other classes")
    paths.add(archive_of(directory, spark).path)
    (spark / "jars" / "more.jar").touch()
    paths.add(archive_of(directory, spark).path)
    assert len(paths) == 5


def others_may_write_the_file(path: Path) -> None:
    path.chmod(0o664)


def others_may_write_the_directory(path: Path) -> None:
    path.parent.chmod(0o775)


def others_may_write_above(path: Path) -> None:
    path.parent.parent.chmod(0o777)


def it_is_a_link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def another_user_owns_it(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 65534, -1)


@pytest.mark.parametrize(
    "spoil",
    [
        others_may_write_the_file,
        others_may_write_the_directory,
        others_may_write_above,
        it_is_a_link,
        another_user_owns_it,
    ],
)
def test_archive_that_others_may_write_is_not_read(directory: Path, spark: Path, spoil: Callable[[Path], None]) -> None:
    archive = archive_of(directory, spark)
    archive.path.touch(mode=0o644)
    assert archive.java_options()
    spoil(archive.path)
    assert archive.java_options() == ""


def test_a_path_that_would_be_several_options_is_not_used(tmp_path: Path, spark: Path) -> None:
    (tmp_path / "my classes").mkdir(mode=0o755)
    archive = archive_of(tmp_path / "my classes", spark)
    archive.path.touch(mode=0o644)
    assert archive.java_options() == ""


@pytest.mark.parametrize(
    ("script", "said"),
    [("echo 'no space left'; exit 3", r"\(exit code 3\): no space left"), ("true", r"\(exit code 0\): ")],
)
def test_an_application_that_writes_none_is_told_of(directory: Path, spark: Path, script: str, said: str) -> None:
    submit = spark / "spark-submit"
    submit.write_text(f"#!/bin/sh\n{script}\n")
    submit.chmod(0o755)
    with pytest.raises(ConfigurationError, match=said):
        archive_of(directory, spark).write(str(submit), {})
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ("-Xshare:off", True),
        ("-Xmx1g -XX:SharedArchiveFile=/opt/spark.jsa", True),
        ("-XX:-UseSharedSpaces", True),
        ("-XX:AOTCache=app.aot", True),
        ("-Xmx1g -Dshare=x", False),
    ],
)
def test_options_of_the_users_own_are_seen(options: str, own: bool) -> None:
    assert has_own_options(["", options]) is own
