"""`make compat`: one program, run with other versions of Python, Airflow, Spark and the servers; each run is a cell of
the table in docs/compatibility.md.
"""
