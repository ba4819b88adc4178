"""Real servers for the tests, the demo, the benchmarks and ``make airflow``: Kafka, Postgres, MariaDB, Spark
and Airflow.

Everything but Java and MariaDB comes from the Python environment and from Maven artifacts. No container is needed.
Every server is a context manager that listens on 127.0.0.1 only and keeps its data in a temporary directory. It ends
with the process that started it, however that process ends.

Not part of the wheel.
"""
