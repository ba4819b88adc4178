"""What Spark's tasks write: rows that the worker commits, or the final files of a target. Executors import it."""
