"""Check declared columns when a DAG file is parsed, which happens every few seconds: this module is light."""

from __future__ import annotations

import re

from airflow_kafka_offsets.core.templates import holds_template
from airflow_kafka_offsets.exceptions import ConfigurationError

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

_NAMES = re.compile(rf"(?:^|,)\s*({_NAME})")

_COLUMNS = re.compile(rf"{_COLUMN}(?:,{_COLUMN})*", re.IGNORECASE)


def check_literal(ddl: str, *, binary: bool = False) -> None:
    """Refuse what is neither DDL nor a template. The parser is loaded only for what may be wrong.

    :param binary: see `parse_ddl`
    :raises ConfigurationError: see `parse_ddl`
    """
    if not isinstance(ddl, str):
        raise ConfigurationError(f"Columns are declared as Spark DDL, such as 'id BIGINT, name STRING'; got {ddl!r}")
    if not holds_template(ddl) and not _is_plain(ddl):
        from airflow_kafka_offsets.formats.columns import parse_ddl

        parse_ddl(ddl, binary=binary)


def _is_plain(ddl: str) -> bool:
    """Return whether a text is a list of different columns of known types. Of another text, only a parser can tell."""
    shorter, length = ddl, None
    while length != len(shorter):
        length = len(shorter)
        # A nested type has the form of any other.
        shorter = _NESTED.sub("INT", shorter)
    names = _NAMES.findall(shorter.lower())
    return _COLUMNS.fullmatch(shorter) is not None and len(set(names)) == len(names)
