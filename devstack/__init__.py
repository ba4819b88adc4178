"""Real servers for the tests, the demo, the benchmarks and ``make airflow``: Kafka, Postgres, Spark and Airflow.

Everything comes from the Python environment and from Maven artifacts; nothing but Java comes from the operating
system, and no container is needed. Every server is a context manager that listens on 127.0.0.1 only, keeps its data in
a temporary directory, and is gone when the process that started it is gone, however that one ended.

Not part of the wheel.
"""
