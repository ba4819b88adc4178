"""Recognise DDL that needs no closer look when a DAG file is parsed. The file imports this module: it is light."""

from __future__ import annotations

import re

_TYPE = (
    r"(?:BOOLEAN|TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|STRING|DATE|TIMESTAMP|TIMESTAMP_NTZ"
    r"|DECIMAL(?:\(\s*\d+\s*(?:,\s*\d+\s*)?\))?)"
)

_NAME = r"[a-z_]\w*"

_NESTED = re.compile(
    rf"ARRAY\s*<\s*{_TYPE}\s*>|STRUCT\s*<\s*{_NAME}(?:\s*:\s*|\s+){_TYPE}"
    rf"(?:\s*,\s*{_NAME}(?:\s*:\s*|\s+){_TYPE})*\s*>",
    re.IGNORECASE,
)

_COLUMN = rf"\s*{_NAME}\s+{_TYPE}(?:\s+NOT\s+NULL)?\s*"

_COLUMNS = re.compile(rf"{_COLUMN}(?:,{_COLUMN})*", re.IGNORECASE)


def is_plain_ddl(ddl: str) -> bool:
    """Return whether a text is a list of columns of known types. Of another text, only a parser can tell."""
    shorter, length = ddl, None
    while length != len(shorter):
        length = len(shorter)
        # A nested type has the form of any other.
        shorter = _NESTED.sub("INT", shorter)
    return _COLUMNS.fullmatch(shorter) is not None
