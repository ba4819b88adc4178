"""Write the files that are submitted: this package, and the application that calls `main`. `jobs`
describes how jobs come.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DIRECTORY = "kafka-offsets-job-"
"""How the names of temporary directories begin."""

_ONE_DAY_SECONDS = 86_400

_ARCHIVE = "airflow_kafka_offsets.zip"

_APPLICATION = """\
import sys

# Of a service without --py-files.
for file in sys.argv[3:]:
    from pyspark import SparkContext

    SparkContext.getOrCreate().addPyFile(file)

from airflow_kafka_offsets.spark.driver import main

if status := main(sys.argv[1:3]):
    sys.exit(status)
"""


@contextmanager
def temporary_directory(parent: str | None = None) -> Iterator[Path]:
    """Create a directory for the block, and remove those that processes of this user have left.

    A process that is killed leaves its directory, and one that Airflow forked for a task ends without any clean-up. The
    directory of a running process is locked.
    """
    parent = parent or tempfile.gettempdir()
    for left in Path(parent).glob(f"{DIRECTORY}*"):
        with suppress(OSError), _opened(left) as descriptor:  # another user's, or locked
            status = os.fstat(descriptor)
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > _ONE_DAY_SECONDS:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=DIRECTORY, dir=parent) as name, _opened(Path(name)) as descriptor:
        # Where the file system has no locks, nothing is removed either.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Path(name)


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_application(directory: Path) -> tuple[Path, Path]:
    """Write what is submitted into a directory that only its owner can enter.

    :return: the application, and the archive for `--py-files`
    """
    directory.chmod(0o700)
    application = directory / "application.py"
    application.write_text(_APPLICATION, encoding="utf-8")
    return application, write_package(directory / _ARCHIVE)


def write_package(path: Path) -> Path:
    """Write this package as an archive that Python can import from.

    The archive holds the whole package, although executors import only its Spark part. On the driver the archive comes
    before the installed package, and a part would hide the rest from a transform that imports it. It has no bytecode,
    which would save each process less than 0.1 s.
    """
    root = Path(__file__).resolve().parent.parent
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(root.rglob("*.py")):
            # Without its own time the same package gives the same bytes.
            info = zipfile.ZipInfo(str(Path(root.name) / file.relative_to(root)))
            # An entry does not inherit the compression of its archive.
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, file.read_bytes(), compresslevel=1)
    return path
