"""The pipeline and the options of a load or a replay. The rules for their values are in `parameters`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import TypeVar

import pyarrow as pa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core import planning
from airflow_kafka_offsets.core.addresses import host_in_plain_text
from airflow_kafka_offsets.core.instants import Start, check_start, check_until
from airflow_kafka_offsets.core.options import (
    Coordination,
    DeadLetters,
    Limits,
    Reading,
    Staging,
    StateTables,
    check_rendered,
)
from airflow_kafka_offsets.core.text import can_be_stored
from airflow_kafka_offsets.core.warn import warn_once
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS, row_columns, spark_ddl
from airflow_kafka_offsets.formats.extra_columns import ExtraColumns, whole_record
from airflow_kafka_offsets.formats.read_schemas import ReadSchema, with_stored
from airflow_kafka_offsets.formats.record_format import Connections, RecordFormat
from airflow_kafka_offsets.formats.registry_format import RegistryFormat
from airflow_kafka_offsets.ledger.tables import NAME_LENGTH, Ledger, Tables
from airflow_kafka_offsets.loading.parameters import PIPELINE_RULES, OnBadRecord
from airflow_kafka_offsets.sinks.fan_out import as_sink, transform_of
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.transforms.fan_out import FanOutTransform
from airflow_kafka_offsets.transforms.transform import BatchTransform, DataFrameTransform, Transform, as_transform

F = TypeVar("F", bound=RecordFormat | None)

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """How the records of topics become rows, and where the rows are written: for `load` and `replay` alike.

    Plain data: `check` validates it. As for `KafkaBatchOperator`: `group_id`, `topics`, `value_format`,
    `extra_columns`, `sink`, `transform`, `on_bad_record`, `reading`, `staging`, `state_tables`. The connection of the
    sink is not used: the engine has its database. A list of sinks becomes a `FanOut`, and the transforms of its
    branches become the transform.
    """

    group_id: str
    topics: tuple[str, ...]
    value_format: RecordFormat
    sink: Sink
    extra_columns: ExtraColumns = ExtraColumns()
    transform: str | Transform | None = None
    on_bad_record: OnBadRecord = "fail"
    reading: Reading = Reading()
    staging: Staging = Staging()
    state_tables: StateTables = StateTables()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sink", as_sink(self.sink))
        object.__setattr__(self, "transform", transform_of(self.sink, self.transform))

    @property
    def tables(self) -> Tables:
        """The state tables."""
        return Tables.of(self.state_tables.schema, self.state_tables.prefix)

    @property
    def dead_letters(self) -> DeadLetters | None:
        """The options of dead letters; None if a bad record fails the batch."""
        return None if isinstance(self.on_bad_record, str) else self.on_bad_record

    def most_dead_letters(self, records: int) -> int | None:
        """Return how many dead letters a batch may have; None for any number.

        :param records: of the batch
        """
        return None if self.dead_letters is None else self.dead_letters.most_of(records)

    @property
    def key_format(self) -> RecordFormat | None:
        """The format of the key; None if the key is left out."""
        return self.extra_columns.key_format

    @property
    def record_format(self) -> RecordFormat:
        """How a record becomes the columns of a row: key, value and metadata."""
        return whole_record(self.value_format, self.key_format, self.extra_columns.metadata)

    @property
    def conn_ids(self) -> tuple[str, ...]:
        """The connections that the formats name. Those of the sink are `sink.conn_ids`."""
        connected = [each for each in self._formats if isinstance(each, RegistryFormat)]
        return tuple(conn_id for each in connected for conn_id in each.conn_ids)

    @property
    def _formats(self) -> list[RecordFormat]:
        return [self.value_format] if self.key_format is None else [self.value_format, self.key_format]

    @property
    def _transform(self) -> Transform | None:
        return as_transform(self.transform)

    def prepared(self, connections: Connections, engine: Engine) -> Pipeline:
        """Return the pipeline ready for Spark: the formats have their schemas, and the columns that these or the target
        decide; the transform has its code and its columns.

        :raises ConfigurationError: a parameter is wrong, or something is missing
        :raises TransformError: the transform cannot be imported, or does not return what it has to
        """
        check_rendered(vars(self), PIPELINE_RULES)
        on_new_field = self.extra_columns.on_new_field
        if on_new_field != "ignore" and not any(isinstance(each, RegistryFormat) for each in self._formats):
            raise ConfigurationError(
                f"on_new_field={on_new_field!r} needs a format whose records have schemas, such as Avro(…): a field "
                f"that {type(self.value_format).__name__}(…) does not declare has no type"
            )
        qualified = replace(self, sink=Ledger(engine, self.tables).qualified(self.sink))
        fetched = qualified._with_formats(
            lambda part, given: (
                given.prepared(self.topics, part, connections) if isinstance(given, RegistryFormat) else given
            )
        )
        value = fetched._with_fields(fetched.value_format, fetched.key_format, connections, engine)
        key = fetched._with_fields(fetched.key_format, value, connections, engine)
        pipeline = replace(fetched, value_format=value, extra_columns=replace(self.extra_columns, key_format=key))
        if self._transform is None:
            return pipeline
        made = replace(pipeline, transform=self._transform.prepared(row_columns(pipeline.record_format)))
        if not self.adds_columns or not (left_out := made._passed_on(fetched, connections, engine)):
            return made
        fewer = pipeline._with_formats(
            lambda _, given: given.without(left_out) if isinstance(given, RegistryFormat) else given
        )
        return replace(fewer, transform=self._transform.prepared(row_columns(fewer.record_format)))

    def _passed_on(self, fetched: Pipeline, connections: Connections, engine: Engine) -> dict[str, str]:
        """Return the fields of older schemas that the transform passes on and the target cannot have, with reasons.

        :param fetched: the pipeline whose formats have no such fields
        """
        columns, own = row_columns(self.record_format), set[str]()
        for given in fetched._formats:
            if not isinstance(given, RegistryFormat) or given.columns_from == "schema":
                own.update(given.columns().names)
        older = set(columns.names).difference(own, ORIGIN_COLUMNS.names, self.extra_columns.metadata or ())
        found = [column for column in self.result_columns(columns) or () if column.name in older]
        if not found:
            return {}
        check, left_out = self.sink.connect(engine, connections).added_check(), dict[str, str]()
        for column in found:
            try:
                check(column)
            except (ConfigurationError, TargetError) as error:
                left_out[column.name] = str(error).rstrip(".")
        return left_out

    @property
    def adds_columns(self) -> bool:
        """Whether a commit adds the columns that the target lacks."""
        return self.extra_columns.on_new_field == "add"

    @property
    def transform_name(self) -> str | None:
        """The name of the transform in messages, and in the history."""
        return None if self._transform is None else self._transform.name

    @property
    def needs_spark_sql(self) -> bool:
        """Whether the transform is a DataFrame transform."""
        return isinstance(self._transform, DataFrameTransform)

    @property
    def needs_path(self) -> bool:
        """Whether Spark's driver imports the transform."""
        return isinstance(self._transform, DataFrameTransform) and self._transform.needs_path

    def result_columns(self, columns: pa.Schema) -> pa.Schema | None:
        """Return the columns of the rows; None where the transform shows them later.

        :param columns: those of a decoded row
        """
        transform = self._transform
        if transform is None:
            return columns
        return transform.result(columns) if isinstance(transform, BatchTransform) else None

    def _with_fields(self, given: F, other: RecordFormat | None, connections: Connections, engine: Engine) -> F:
        """Return a format with the columns that its schemas and the target give it.

        :param other: the format of the other part of records
        """
        on_new_field = self.extra_columns.on_new_field
        if not isinstance(given, RegistryFormat) or (on_new_field == "ignore" and given.columns_from == "schema"):
            return given
        others = [*(self.extra_columns.metadata or ()), *(other.columns().names if other is not None else ())]

        table = cache(lambda: self.sink.connect(engine, connections))
        is_plain = self._transform is None or isinstance(self._transform, FanOutTransform)
        return given.with_fields(
            on_new_field,
            self.sink.name,
            lambda: table().prepare(None).known,
            others,
            (lambda: table().added_check()) if is_plain else None,
        )

    def with_schemas(self, stored: Sequence[ReadSchema]) -> Pipeline:
        """Return the pipeline with formats that also know the schemas which earlier batches have read; a registry may
        have lost them.
        """
        return self._with_formats(lambda part, given: with_stored(given, part, stored))

    def _with_formats(self, changed: Callable[[str, RecordFormat], RecordFormat]) -> Pipeline:
        """Return the pipeline with other formats.

        :param changed: returns the other format of a part, `value` or `key`
        """
        value_format = changed("value", self.value_format)
        key_format = None if self.key_format is None else changed("key", self.key_format)
        extra_columns = replace(self.extra_columns, key_format=key_format)
        return replace(self, value_format=value_format, extra_columns=extra_columns)

    def check(self) -> pa.Schema:
        """Check the parameters, before any server is asked and Spark is launched.

        :return: the columns of a decoded row
        :raises ConfigurationError: a parameter is wrong; the message shows the value
        """
        check_rendered(vars(self), PIPELINE_RULES)
        if len(self.group_id) > NAME_LENGTH or not can_be_stored(self.group_id):
            raise ConfigurationError(
                f"group_id must have at most {NAME_LENGTH} characters, and no NUL or lone surrogate; got "
                f"{len(self.group_id)}, which begin with {self.group_id[:40]!r}"
            )
        if self.dead_letters is not None and self.dead_letters.topic in self.topics:
            raise ConfigurationError(
                "DeadLetters.topic must not be one of the loaded topics, because each dead letter would become "
                f"another one; got topic={self.dead_letters.topic!r}"
            )
        if host := host_in_plain_text(self.staging.dir or ""):
            warn_once(log, f"Staging.dir: staged rows cross the network to {host} in plain text: use https")
        columns = row_columns(self.record_format)
        spark_ddl(columns)  # refuses a type that Spark does not have
        return columns

    def fingerprint(self, columns: pa.Schema) -> str:
        """Return a digest of everything that decides the rows of a range, including the code of the transform.

        :param columns: those of a decoded row
        """
        reading = [self.reading.isolation_level, self.reading.every_offset]
        decoding = [self.record_format.fingerprint(), spark_ddl(columns), *reading]
        code = [self._transform.kind, self._transform.fingerprint()] if self._transform is not None else []
        bad_records = [self.dead_letters is not None, self.reading.max_record_bytes]
        parts = [*decoding, *code, *bad_records, self.extra_columns.on_new_field]
        return hashlib.sha256(repr(parts).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Where a load begins, how far it goes, and what it does about other runs. A replay has none of these options.

    As for `KafkaBatchOperator`: `start`, `until`, `limits`, `on_data_loss`, `coordination`.
    """

    start: Start = "earliest"
    until: str | datetime | None = None
    limits: Limits = Limits()
    on_data_loss: planning.OnDataLoss = "fail"
    coordination: Coordination = Coordination()

    def check(self) -> None:
        """Check the options, before any server is asked and Spark is launched.

        :raises ConfigurationError: an option is wrong; the message shows the value
        """
        check_rendered(vars(self), PIPELINE_RULES)
        check_start(self.start)
        check_until(self.until)
