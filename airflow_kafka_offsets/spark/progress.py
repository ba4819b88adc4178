"""Print progress while Spark works: Airflow copies standard output into the task's log."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.slice_notes import SliceNotes

# A line for each slice helps if there are few. Of hundreds, the slowest are enough.
_MAX_SLICES = 8


class Progress:
    """Prints how many of the planned records are read, in total and for each slice that is being read."""

    def __init__(self, job: StageJob, notes: SliceNotes) -> None:
        self._job = job
        self._notes = notes
        self._started = time.monotonic()
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
        """Print how far the slices are, from the notes that their readers leave."""
        try:
            found = self._notes.find()
            reading = self._notes.progress(found.started - found.finished.keys())
        except (OSError, ValueError) as error:
            # This is only a display. A store that fails now fails the batch where it matters.
            print(f"Progress is not known: {error}", flush=True)
            return
        job, reads = self._job, [*found.finished.values(), *reading.values()]
        records = sum(read.records or 0 for read in reads)
        dead_letters = sum(read.dead_letters for read in reads)
        seconds = time.monotonic() - self._started
        lines = [
            f"Batch {job.batch_id}: read {records:,} records of {job.offsets:,} planned ({records / job.offsets:.0%}), "
            f"{len(found.finished)} of {len(job.slices)} slices finished, {records / seconds:,.0f} records/s"
            f"{f', {dead_letters:,} dead letters' if dead_letters else ''}"
        ]
        slowest = sorted(reading.values(), key=lambda read: read.records or 0)
        lines += [
            f"  slice {read.index}: {read.topic}[{read.partition}] {read.start}..{read.end}, "
            f"{read.records:,} records of {read.end - read.start:,} planned"
            for read in slowest[:_MAX_SLICES]
        ]
        if len(slowest) > _MAX_SLICES:
            lines.append(f"  and {len(slowest) - _MAX_SLICES} more slices that are further")
        print("\n".join(lines), flush=True)
