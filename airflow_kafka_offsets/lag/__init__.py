"""How far a group lags behind its topics, when that is worth acting upon, and the poll that many watchers share.

Nothing of Airflow is in here: sensors, triggers and commands call this package.
"""
