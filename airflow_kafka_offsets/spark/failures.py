"""Errors as notes in JSON, to send them between processes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets import exceptions
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, RecordError, StagingError
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.directory import StagingDirectory


def to_note(error: KafkaOffsetsError) -> dict[str, Any]:
    """Return the note of an error."""
    note: dict[str, Any] = {"error": type(error).__name__, "message": str(error), "about": error.about}
    if isinstance(error, RecordError):
        note |= {name: getattr(error, name) for name in ("reason", "topic", "partition", "offset")}
    return note


def from_note(note: Mapping[str, Any]) -> KafkaOffsetsError:
    """Return the error of a note; a StagingError if its class needs more than a message."""
    kind: Any = vars(exceptions).get(note["error"])
    if kind is RecordError:
        return RecordError(note["reason"], topic=note["topic"], partition=note["partition"], offset=note["offset"])
    is_known = isinstance(kind, type) and issubclass(kind, KafkaOffsetsError) and kind is not KafkaOffsetsError
    if not is_known or kind.__init__ is not Exception.__init__:
        return StagingError(f"{note['error']}: {note['message']}")
    error: KafkaOffsetsError = kind(note["message"])
    error.about = tuple(note.get("about", ()))
    return error


def report_failure(job: StageJob, error: KafkaOffsetsError) -> None:
    """Leave an error in the staging directory, where the worker finds it: Spark passes on a traceback as text."""
    name = f"{_prefix(job)}{uuid.uuid4().hex}.json"
    StagingDirectory(job.staging_uri).write_text(name, json.dumps(to_note(error)))


def reported_failures(job: StageJob) -> list[KafkaOffsetsError]:
    """Return the errors that this run of a job left in the staging directory."""
    return [from_note(note) for note in StagingDirectory(job.staging_uri).notes(_prefix(job))]


def _prefix(job: StageJob) -> str:
    return f"failure-{job.run}-"
