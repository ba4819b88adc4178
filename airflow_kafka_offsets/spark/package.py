"""Write the files that are submitted: this package, and the application that calls `main`. Jobs come over the
`job_socket`.
"""

from __future__ import annotations

import marshal
import struct
import zipfile
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path
from types import CodeType

_ARCHIVE = "airflow_kafka_offsets.zip"

# What drivers and workers import; more would take longer to send than it saves.
_IMPORTED = ("__init__.py", "core", "exceptions.py", "formats", "kafka", "spark", "staging", "transforms", "writers")

_32_BITS = 0xFFFFFFFF

# Flags of bytecode (PEP 552).
_UNCHECKED_HASH = 1

# A version of marshal's form. In later ones, what is written depends on how often an object is in use.
_WITHOUT_REFERENCES = 2

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
    return application, write_package(directory / _ARCHIVE)


def write_package(path: Path) -> Path:
    """Write this package as an archive that Python can import from.

    The archive holds the whole package, although executors import only its Spark part. On the driver the archive comes
    before the installed package, and half of it would hide the other half from a transform that imports it. Python
    keeps no bytecode of what it imports from an archive, and would compile it in every process: so the archive has the
    bytecode of the installed package.
    """
    root = Path(__file__).resolve().parent.parent
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(root.rglob("*.py")):
            name, source = str(Path(root.name) / file.relative_to(root)), file.read_bytes()
            _add(archive, name, source)
            is_imported = file.relative_to(root).parts[0] in _IMPORTED
            if is_imported and (code := _compiled(file)) is not None:
                # Another version of Python takes the source.
                _add(archive, f"{name}c", _bytecode(_renamed(code, f"{_ARCHIVE}/{name}"), source))
    return path


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    # Without a time of its own the same package gives the same bytes.
    info = zipfile.ZipInfo(name)
    # An entry does not inherit the compression of its archive.
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, content, compresslevel=1)


def _compiled(file: Path) -> CodeType | None:
    """Return what Python has cached of a module; None where it has nothing, or something older."""
    try:
        cached, state = Path(cache_from_source(file)).read_bytes(), file.stat()
    except (OSError, NotImplementedError):
        return None
    stamp = struct.pack("<4sIII", MAGIC_NUMBER, 0, int(state.st_mtime) & _32_BITS, state.st_size & _32_BITS)
    if cached[: len(stamp)] != stamp:
        return None
    # Python itself would run it.
    code: CodeType = marshal.loads(cached[len(stamp) :])  # noqa: S302
    return code


def _renamed(code: CodeType, name: str) -> CodeType:
    """Return code as of another file: tracebacks tell frames of the archive from those of the user."""
    constants = tuple(_renamed(each, name) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=name, co_consts=constants)


def _bytecode(code: CodeType, source: bytes) -> bytes:
    """Return code in the form of a file that is not compared with the time of another one."""
    return struct.pack("<4sI8s", MAGIC_NUMBER, _UNCHECKED_HASH, source_hash(source)) + marshal.dumps(
        code, _WITHOUT_REFERENCES
    )
