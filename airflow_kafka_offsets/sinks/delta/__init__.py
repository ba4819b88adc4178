"""Tables of Delta Lake, written by Spark's tasks and committed by delta-rs."""
