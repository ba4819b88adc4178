"""Airflow's connections: how they become a Kafka configuration, a database engine and a Spark launcher."""
