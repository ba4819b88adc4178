"""What the servers themselves allow on this machine: reading without decoding, writing without preparing."""

from __future__ import annotations

import re
import tempfile
import time

from benchmarks.load import Load

# Start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s; among the client's own words.
_FIGURES = re.compile(
    r"^[\d: -]+, [\d: -]+, [\d.]+, [\d.]+, (?P<records>\d+), [\d.]+, \d+, (?P<fetch_ms>\d+), [\d.]+, [\d.]+$",
    re.MULTILINE,
)


def seconds_of_reading(load: Load) -> float:
    """Read all records with Kafka's own ConsumerPerformance, by its own clock: without the JVM's start and the group's."""
    told = load.kafka.run_class(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", load.kafka.bootstrap_servers),
        *("--topic", load.dataset.topic),
        *("--num-records", str(load.dataset.records)),
        "--hide-header",
        timeout=600,
    )
    found = _FIGURES.search(told)
    assert found, told
    assert int(found["records"]) == load.dataset.records, found[0]
    return int(found["fetch_ms"]) / 1000


def seconds_of_writing(load: Load) -> float:
    """COPY the rows of a loaded table, ready in a file in Postgres' binary form, into an empty table that is like it."""
    with load.connect(autocommit=True) as conn, conn.cursor() as cursor, tempfile.TemporaryFile() as file:
        with cursor.copy("COPY orders TO STDOUT (FORMAT binary)") as rows:
            for block in rows:
                file.write(block)
        file.seek(0)
        conn.execute("CREATE TABLE again (LIKE orders INCLUDING ALL)")
        conn.execute("CHECKPOINT")
        begun = time.monotonic()
        with cursor.copy("COPY again FROM STDIN (FORMAT binary)") as copy:
            while block := file.read(1 << 18):
                copy.write(block)
        seconds = time.monotonic() - begun
        assert cursor.rowcount == load.dataset.records
        return seconds
