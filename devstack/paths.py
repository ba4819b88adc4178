"""The folders that the development stack reads and writes."""

import importlib.util
import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# Files that are fetched or built once and can be recreated; `make clean` removes them.
BUILD = REPOSITORY / ".build"


def package_folder(name: str) -> Path:
    """Return the folder of an installed package without importing it: importing PySpark takes a second.

    :raises RuntimeError: it is not installed
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"the package {name} is not installed in this environment: run `make setup`")
    return Path(spec.submodule_search_locations[0])


def pyspark_home() -> Path:
    """Return PySpark's folder, which is also a SPARK_HOME."""
    return package_folder("pyspark")


def environment() -> dict[str, str]:
    """Return our environment variables, adapted for Spark and Airflow as child processes.

    * This Python's programs come first on PATH: ``spark-submit`` and ``airflow`` are found there, even if the virtual
      environment is not activated, and Spark's Python workers are the ``python3`` of PATH.
    * Spark gets an address, because the machine's name may not resolve, or may resolve to an unreachable address.
    """
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    return os.environ | {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
