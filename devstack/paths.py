"""Where the development stack finds and keeps things."""

import importlib.util
import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# What was fetched or made once and can be made again; `make clean` removes it.
BUILD = REPOSITORY / ".build"


def package_folder(name: str) -> Path:
    """The folder of an installed package, without importing it: PySpark takes a second, others look around for state.

    :raises RuntimeError: it is not installed
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"the package {name} is not installed in this environment: run `make setup`")
    return Path(spec.submodule_search_locations[0])


def pyspark_home() -> Path:
    """PySpark's folder, which is also a SPARK_HOME."""
    return package_folder("pyspark")


def environment() -> dict[str, str]:
    """Our environment, made fit for Spark and Airflow below this Python.

    This Python's programs come first on PATH: ``spark-submit`` and ``airflow`` are found there, also where nobody
    activated the virtual environment, and Spark's Python workers are the ``python3`` of PATH. And Spark is told an
    address, because a machine's name may resolve to nothing, or to what cannot be reached.
    """
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    return os.environ | {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
