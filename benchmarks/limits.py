"""The limits of the servers on this machine: reading without decoding, writing prepared rows."""

from __future__ import annotations

import re
import tempfile
import time

from benchmarks.load import Load

# Start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s; between the client's
# log lines.
_FIGURES = re.compile(
    r"^[\d: -]+, [\d: -]+, [\d.]+, [\d.]+, (?P<records>\d+), [\d.]+, \d+, (?P<fetch_ms>\d+), [\d.]+, [\d.]+$",
    re.MULTILINE,
)


def seconds_of_reading(load: Load) -> float:
    """Return the fetch time that Kafka's ConsumerPerformance reports: without the start of the JVM and the group."""
    output = load.kafka.run_class(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", load.kafka.bootstrap_servers),
        *("--topic", load.dataset.topic),
        *("--num-records", str(load.dataset.records)),
        "--hide-header",
        timeout=600,
    )
    found = _FIGURES.search(output)
    assert found, output
    assert int(found["records"]) == load.dataset.records, found[0]
    return int(found["fetch_ms"]) / 1000


def seconds_of_writing(load: Load) -> float:
    """Return the time to COPY the rows of a loaded table from a file in binary form into an empty table like it."""
    with load.connect(autocommit=True) as conn, conn.cursor() as cursor, tempfile.TemporaryFile() as file:
        with cursor.copy("COPY orders TO STDOUT (FORMAT binary)") as rows:
            for block in rows:
                file.write(block)
        file.seek(0)
        conn.execute("CREATE TABLE again (LIKE orders INCLUDING ALL)")
        conn.execute("CHECKPOINT")
        began = time.monotonic()
        with cursor.copy("COPY again FROM STDIN (FORMAT binary)") as copy:
            while block := file.read(1 << 18):
                copy.write(block)
        seconds = time.monotonic() - began
        assert cursor.rowcount == load.dataset.records
        return seconds
