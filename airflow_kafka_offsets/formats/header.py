"""What of a record, beside its key and value, can be a column: its timestamp and its headers. A DAG file imports this
module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from airflow_kafka_offsets.core.templates import Templated

Which = Literal["last", "first", "all"]

HeaderType = Literal["STRING", "BINARY"]

TIMESTAMP_OF_RECORD = "timestamp"


@dataclass(frozen=True, slots=True)
class Header(Templated):
    """The value of a header, as a column; null where a record has no such header.

    A record is bad if the value is no UTF-8, unless the type is BINARY, and if the name of any of its headers is no
    UTF-8.

    :param name: of the header (templated)
    :param which: of several headers of the name: `last`, `first`, or `all`, an array, which a transform has to take
        apart for a table
    :param type: STRING or BINARY
    """

    template_fields: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    which: Which = "last"
    type: HeaderType = "STRING"

    @property
    def is_valid(self) -> bool:
        return isinstance(self.name, str) and self.which in get_args(Which) and self.type in get_args(HeaderType)


MetadataColumns = Mapping[str, str | Header]
"""Names of columns, with `"timestamp"` or a `Header`."""


def are_metadata_columns(value: Any) -> bool:
    """Return whether a value is a mapping as `MetadataColumns` describes it."""
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and bool(name)
        and (source == TIMESTAMP_OF_RECORD if not isinstance(source, Header) else source.is_valid)
        for name, source in value.items()
    )
