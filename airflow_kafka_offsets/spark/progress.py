"""Progress while Spark works: lines on standard output, which Airflow copies into the task's log."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.slice_notes import SliceNotes

# A log line a slice is useful for some; for hundreds the slowest ones say enough.
_MOST_SLICES = 8


class Progress:
    """Prints how many records were read of those planned, in total and for the slices that are being read."""

    def __init__(self, job: StageJob, notes: SliceNotes) -> None:
        self._job = job
        self._notes = notes
        self._begun = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if error is None:
            self.report()

    def _run(self) -> None:
        while not self._stop.wait(self._job.progress_interval):
            self.report()

    def report(self) -> None:
        """Print where the slices are, from the notes that their readers leave."""
        try:
            found = self._notes.find()
            reading = self._notes.progress(found.begun - found.finished.keys())
        except (OSError, ValueError) as error:
            # Only a display: a store that does not answer now fails the batch where it matters.
            print(f"Progress is not known: {error}", flush=True)
            return
        reads = [*found.finished.values(), *reading.values()]
        records = sum(read.records or 0 for read in reads)
        dead = sum(read.dead_letters for read in reads)
        seconds = time.monotonic() - self._begun
        planned = self._job.offsets
        print(
            f"Batch {self._job.batch_id}: read {records:,} records of {planned:,} planned ({records / planned:.0%}), "
            f"{len(found.finished)} of {len(self._job.slices)} slices finished, {records / seconds:,.0f} records/s"
            f"{f', {dead:,} dead letters' if dead else ''}",
            flush=True,
        )
        running = sorted(reading, key=lambda index: reading[index].records or 0)
        for index in running[:_MOST_SLICES]:
            one = self._job.slices[index]
            print(
                f"  slice {index}: {one.topic}[{one.partition}] {one.start}..{one.end}, "
                f"{reading[index].records:,} records of {len(one):,} planned",
                flush=True,
            )
        if len(running) > _MOST_SLICES:
            print(f"  and {len(running) - _MOST_SLICES} more slices that are further", flush=True)
