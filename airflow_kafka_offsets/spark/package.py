"""Write the files that are submitted with a job: this package, the application that calls `main`, and the job itself."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from airflow_kafka_offsets.spark.job import StageJob

_APPLICATION = """\
import sys

from airflow_kafka_offsets.spark.main import main

sys.exit(main(sys.argv[1]))
"""


def write_job(directory: Path, job: StageJob) -> tuple[Path, Path]:
    """Write a job's files into a directory that only its owner can enter.

    Kafka's configuration is in `job.json`, and in no argument, environment variable or Spark property.

    :return: the application to submit, and the archive for `--py-files`
    """
    directory.chmod(0o700)
    descriptor = os.open(directory / "job.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(job.to_json())
    application = directory / "application.py"
    application.write_text(_APPLICATION, encoding="utf-8")
    return application, write_package(directory / "airflow_kafka_offsets.zip")


def write_package(path: Path) -> Path:
    """Write this package as an archive that Python can import from.

    The archive holds the whole package, although executors import only its Spark part. On the driver the archive comes before the
    installed package, and half of it would hide the other half from a transform that imports it. The same package gives the same
    bytes: Spark refuses a second file of the same name with other contents.
    """
    root = Path(__file__).resolve().parent.parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*.py")):
            info = zipfile.ZipInfo(str(Path(root.name) / file.relative_to(root)))
            # An entry does not inherit the compression of its archive.
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, file.read_bytes())
    return path
