"""Errors in the user's code: their message, and the frames of the traceback that are the user's."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from pathlib import Path

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import TransformError

_THIS_PACKAGE = str(Path(__file__).resolve().parent.parent)

# What calls the user's code: this package, as it is installed or in the archive that travels, Spark, and what calls it
# back.
_FOREIGN = re.compile(
    r"airflow_kafka_offsets\.zip|[/\\](pyspark|py4j|pyarrow|sqlalchemy)[/\\]|[/\\]py(spark|4j)[^/\\]*\.zip|^<frozen"
)

_FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line [0-9]+, in .+$')

_EXCEPTION = re.compile(r"^(?:[\w<>]+\.)*(?P<type>\w+)(?:: (?P<message>.*))?$")


def user_error(what: str, error: Exception) -> TransformError:
    """Return the error for an exception that the code of a transform raised.

    :param what: which code, and of what
    """
    return TransformError(described(what, error))


def described(what: str, error: Exception, message: str | None = None) -> str:
    """Return what the user's code raised, and where.

    :param what: which code, and of what
    :param message: instead of the exception's own
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    lines = [line.rstrip("\n") for line in traceback.format_list(frames)]
    return _text(what, type(error).__name__, str(error) if message is None else message, lines)


def from_text(what: str, text: str) -> TransformError | None:
    """Return the error for an exception in the user's code that ran on an executor; None where none of the frames is
    the user's.

    :param text: Spark's, with the traceback of the Python worker
    """
    _, header, trace = text.rpartition("Traceback (most recent call last):\n")
    if not header:
        return None
    frames: list[str] = []
    is_users, lines = False, iter(trace.splitlines())
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None:
            is_users = _is_users(frame["file"])
        elif not line.startswith(" "):
            raised = _EXCEPTION.match(line)
            if raised is None or not frames:
                return None
            message = "\n".join([raised["message"] or "", *_until_blank(lines)]).strip()
            return TransformError(_text(what, raised["type"], message, frames))
        if is_users:
            frames.append(line)
    return None


def _until_blank(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        if not line.strip() or line.startswith("\tat "):
            return
        yield line


def _text(what: str, kind: str, message: str, frames: list[str]) -> str:
    reason = f"{kind}: {shortened(message)}" if message else kind
    return "\n".join([f"{what} raised {reason}", *frames])


def _is_users(file: str) -> bool:
    return not file.startswith(_THIS_PACKAGE) and _FOREIGN.search(file) is None
