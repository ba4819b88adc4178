"""Airflow connections as engines, Kafka configurations and launchers, and Airflow's metrics."""
