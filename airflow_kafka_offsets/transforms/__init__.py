"""Transforms that people write: between the decoded columns of records and the rows of the target."""
