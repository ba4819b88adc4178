"""Which kind a Spark session is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_connect(spark: SparkSession) -> bool:
    """Return whether it is a session of Spark Connect, whose module is not imported, since it needs gRPC."""
    return any(kind.__module__ == "pyspark.sql.connect.session" for kind in type(spark).__mro__)
