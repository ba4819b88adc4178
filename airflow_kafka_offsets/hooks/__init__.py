"""Airflow connections as what the package works with."""
