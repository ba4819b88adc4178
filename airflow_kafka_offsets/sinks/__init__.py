"""What a commit does with staged rows: one module a sink."""

from airflow_kafka_offsets.sinks.sql_table import SqlTable

__all__ = ["SqlTable"]
