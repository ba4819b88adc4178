"""Write the files that are submitted: this package, and the application that calls `main`. Jobs come over a
socket (`job`).
"""

from __future__ import annotations

import zipfile
from pathlib import Path

_ARCHIVE = "airflow_kafka_offsets.zip"

_APPLICATION = """\
import sys

from airflow_kafka_offsets.spark.driver import main

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
    before the installed package, and half of it would hide the other half from a transform that imports it. It has no
    bytecode, which would save less than 0.1 s of each process.
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
