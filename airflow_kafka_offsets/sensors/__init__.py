"""Airflow sensors: thin classes around `lag`."""
