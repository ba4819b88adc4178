"""The archives of Spark's classes that loads of this package start from, as on a worker that was set up as
docs/speed.md says.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_DIRECTORY = "AIRFLOW__KAFKA_OFFSETS__CLASS_ARCHIVES"


@contextmanager
def class_archives(env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Have Java write the archives, for the duration of the block.

    :param env: of Airflow, and of the Spark whose classes they are
    :return: the variable that names their directory
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-classes-") as directory:
        named = {_DIRECTORY: directory}
        command = [str(Path(sys.executable).with_name("airflow")), "kafka-offsets", "archive-classes"]
        subprocess.run(command, env=os.environ | dict(env) | named, check=True, stdout=subprocess.DEVNULL)
        yield named
