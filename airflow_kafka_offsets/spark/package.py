"""Write the files that are submitted: this package, and the application that calls `main`. Jobs come over the `job_socket`."""

from __future__ import annotations

import struct
import zipfile
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path

# What drivers and workers import; more would take longer to send than it saves.
_IMPORTED = ("__init__.py", "core", "exceptions.py", "formats", "kafka", "spark", "staging", "transforms", "writers")

_32_BITS = 0xFFFFFFFF

# Flags of bytecode (PEP 552).
_UNCHECKED_HASH = 1

_APPLICATION = """\
import sys

from airflow_kafka_offsets.spark.main import main

sys.exit(main(sys.argv[1]))
"""


def write_application(directory: Path) -> tuple[Path, Path]:
    """Write what is submitted into a directory that only its owner can enter.

    :return: the application, and the archive for `--py-files`
    """
    directory.chmod(0o700)
    application = directory / "application.py"
    application.write_text(_APPLICATION, encoding="utf-8")
    return application, write_package(directory / "airflow_kafka_offsets.zip")


def write_package(path: Path) -> Path:
    """Write this package as an archive that Python can import from.

    The archive holds the whole package, although executors import only its Spark part. On the driver the archive comes before the
    installed package, and half of it would hide the other half from a transform that imports it. Python keeps no bytecode of what it
    imports from an archive, and would compile it in every process: so the archive has the bytecode of the installed package.
    """
    root = Path(__file__).resolve().parent.parent
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(root.rglob("*.py")):
            name, source = str(Path(root.name) / file.relative_to(root)), file.read_bytes()
            _add(archive, name, source)
            is_imported = file.relative_to(root).parts[0] in _IMPORTED
            if is_imported and (bytecode := _bytecode(file, source)) is not None:
                # Another version of Python takes the source.
                _add(archive, f"{name}c", bytecode)
    return path


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    # Without a time of its own the same package gives the same bytes.
    info = zipfile.ZipInfo(name)
    # An entry does not inherit the compression of its archive.
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, content, compresslevel=1)


def _bytecode(file: Path, source: bytes) -> bytes | None:
    """Return the bytecode that Python has cached of a module, in a form that is not compared with a file's time; None where it has none."""
    try:
        cached = Path(cache_from_source(file)).read_bytes()
        state = file.stat()
    except (OSError, NotImplementedError):
        return None
    stamp = struct.pack("<4sIII", MAGIC_NUMBER, 0, int(state.st_mtime) & _32_BITS, state.st_size & _32_BITS)
    if cached[: len(stamp)] != stamp:
        return None
    return struct.pack("<4sI8s", MAGIC_NUMBER, _UNCHECKED_HASH, source_hash(source)) + cached[len(stamp) :]
