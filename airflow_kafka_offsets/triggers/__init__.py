"""Airflow triggers: thin classes around `lag`."""
