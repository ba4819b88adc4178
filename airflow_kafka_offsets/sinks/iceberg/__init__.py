"""Iceberg tables: Spark's tasks write the data files, and a commit is a pointer."""
