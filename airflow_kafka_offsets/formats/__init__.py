"""Formats of records: the columns that they declare, and the decoders that fill them. Spark's tasks import them."""
