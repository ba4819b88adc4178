"""Airflow operators: thin classes around `loading`, `replaying`, `rewinding` and `verification`."""
