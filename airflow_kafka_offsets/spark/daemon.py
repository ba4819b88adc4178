"""Where Spark's Python processes import PySpark from, and the daemon that forks Python workers on a master `local[…]`,
named by `spark.python.daemon.module`.

Spark puts `pyspark.zip` and py4j's archive before everything else, in the driver and in Python workers. Python keeps no
bytecode of what it imports from an archive. Each process would compile PySpark, which costs a load of 1,000 records 1.0
s of processor time.

PySpark's own daemon imports the code of workers in each forked worker. This daemon imports it once before it forks,
which saves a load of 1,000 records 0.6 s of wall and processor time. It imports nothing that starts threads, such as
pyarrow: a fork has only the thread that forks.
"""

from __future__ import annotations

import sys
from pathlib import Path

MODULE = __name__


def prefer_installed_pyspark() -> None:
    """Remove Spark's archives from the path if Spark's home is an installed package, which has the same PySpark."""
    for entry in list(sys.path):
        archive = Path(entry)
        if archive.suffix != ".zip" or archive.parts[-4:-1] != ("pyspark", "python", "lib"):
            continue
        site = archive.parents[3]
        if all((site / name / "__init__.py").is_file() for name in ("pyspark", "py4j")) and str(site) in sys.path:
            sys.path.remove(entry)


def main() -> None:
    """Fork workers until Spark ends."""
    prefer_installed_pyspark()
    from pyspark import worker  # noqa: F401
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
