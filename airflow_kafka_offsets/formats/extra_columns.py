"""The columns of rows that do not come from the value of a record. A DAG file imports this module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

from airflow_kafka_offsets.core.options import Options, ruled
from airflow_kafka_offsets.core.parameters import Rule, one_of, or_none
from airflow_kafka_offsets.formats.header import MetadataColumns, are_metadata_columns
from airflow_kafka_offsets.formats.record_format import OnNewField, RecordFormat


def _is_format(value: Any) -> bool:
    # A class has the members of its instances.
    return isinstance(value, RecordFormat) and not isinstance(value, type)


FORMAT = Rule("a format, such as Json(…) or Raw(…)", _is_format)


@dataclass(frozen=True, kw_only=True, repr=False)
class ExtraColumns(Options):
    """The columns of rows besides those that `value_format` declares.

    :param key_format: the columns of a decoded key; None where the key is no column (templated)
    :param metadata: columns of the record itself: the names, each with `"timestamp"` or a `Header` (templated)
    :param on_new_field: what to do with fields of records that are no columns, where the format knows their schemas:
        ignore them, fail, or add the columns to the target in the transaction of the commit
    """

    key_format: RecordFormat | None = field(default=None, metadata=ruled(or_none(FORMAT), templated=True))
    metadata: MetadataColumns | None = field(
        default=None,
        metadata=ruled(
            or_none(Rule("a dictionary of column names, with 'timestamp' or Header(…)", are_metadata_columns)),
            templated=True,
        ),
    )
    on_new_field: OnNewField = field(default="ignore", metadata=ruled(one_of(*get_args(OnNewField))))
