"""Progress while Spark works: lines on standard output, which Airflow copies into the task's log."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.staging import StagingDirectory

# A log line a slice is useful for some; for hundreds the slowest ones say enough.
_MOST_SLICES = 8


class Progress:
    """Prints how many records were read of those planned, in total and for the slices that are being read."""

    def __init__(self, job: StageJob, staging: StagingDirectory) -> None:
        self._job = job
        self._staging = staging
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
            begun = {note["index"]: note for note in self._staging.notes("progress-")}
            finished = {note["index"]: note for note in self._staging.notes("slice-")}
        except (OSError, ValueError) as error:
            # Only a display: a store that does not answer now fails the batch where it matters.
            print(f"Progress is not known: {error}", flush=True)
            return
        reading = {index: note["records"] for index, note in begun.items()}
        records = sum(note["records"] for note in (begun | finished).values())
        dead = sum(note["dead_letters"] for note in (begun | finished).values())
        seconds = time.monotonic() - self._begun
        planned = self._job.offsets
        print(
            f"Batch {self._job.batch_id}: read {records:,} records of {planned:,} planned ({records / planned:.0%}), "
            f"{len(finished)} of {len(self._job.slices)} slices finished, {records / seconds:,.0f} records/s"
            f"{f', {dead:,} dead letters' if dead else ''}",
            flush=True,
        )
        running = sorted(set(reading) - set(finished), key=lambda index: reading[index])
        for index in running[:_MOST_SLICES]:
            one = self._job.slices[index]
            print(
                f"  slice {index}: {one.topic}[{one.partition}] {one.start}..{one.end}, "
                f"{reading[index]:,} records of {len(one):,} planned",
                flush=True,
            )
        if len(running) > _MOST_SLICES:
            print(f"  and {len(running) - _MOST_SLICES} more slices that are further", flush=True)
