"""Write the files that are submitted with a job: this package, the application that calls `main`, and the job itself."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from airflow_kafka_offsets.spark.job import StageJob

_APPLICATION = """\
import sys

from airflow_kafka_offsets.spark.main import main

sys.exit(main(sys.argv[1]))
"""


# The files that hold secrets: Kafka's configuration is in that of the job.
JOB, SECRET_PROPERTIES = "job.json", "secret-properties.json"


def write_job(directory: Path, job: StageJob, secret_properties: Mapping[str, str]) -> tuple[Path, Path]:
    """Write a job's files into a directory that only its owner can enter.

    What is secret is in these files, and in no argument, environment variable or property of Spark's command line.

    :param secret_properties: Spark properties that the application sets itself
    :return: the application to submit, and the archive for `--py-files`
    """
    directory.chmod(0o700)
    for name, text in ((JOB, job.to_json()), (SECRET_PROPERTIES, json.dumps(dict(secret_properties)))):
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
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
