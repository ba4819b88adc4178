"""Groups of parameters, which operators and library functions share: frozen dataclasses, each field with its default
and its rule.

A DAG file imports this module: it must stay light. Groups of formats and Spark are in modules of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, ClassVar, Literal, cast, get_args

from airflow_kafka_offsets.core.addresses import URI_OPTIONS, holds_credentials, is_relative
from airflow_kafka_offsets.core.parameters import (
    COUNT,
    DURATION,
    FLAG,
    MAX_RECORD_BYTES,
    NAME,
    SHARE,
    TEXT,
    Rule,
    check,
    check_parsed,
    either,
    one_of,
    or_none,
)
from airflow_kafka_offsets.core.templates import Templated, as_json, holds_template
from airflow_kafka_offsets.exceptions import ConfigurationError

IsolationLevel = Literal["read_committed", "read_uncommitted"]

ISOLATION_LEVEL = one_of(*get_args(IsolationLevel))

OnBusy = Literal["wait", "skip", "fail"]

OtherGroups = Literal["refuse", "allow"]

_NO_LIMIT, _USUAL = " for no limit", " for the usual size"

MOST_RECORDS, MOST_BYTES = 2_000_000, 4 << 30
"""Of a batch without `Limits` that one transaction writes into the target, in a few seconds or tens of seconds."""

MOST_OF_PARTITION, MOST_OF_PARTITIONS = 25_000, 8_000_000
"""Many partitions make such a batch larger, up to a limit: a consumer starts in the time of some thousand records."""

MOST_FILE_RECORDS, MOST_FILE_BYTES = 128_000_000, 512 << 30
"""Of a batch without `Limits` whose files Spark's tasks write: 64 full files. Its commit only names them."""


def ruled(rule: Rule, *, templated: bool = False) -> dict[str, Any]:
    """Return the metadata of a group's field.

    :param rule: what a value must be
    :param templated: whether Airflow renders the field
    """
    return {"rule": rule, "templated": templated}


class Options(Templated):
    """A group of parameters: a frozen dataclass whose fields have the metadata of `ruled`.

    A value that breaks a rule is refused when the group is created, a template when it is rendered.
    """

    rules: ClassVar[Mapping[str, Rule]] = {}

    def __init_subclass__(cls) -> None:
        declared = {name: each for name, each in vars(cls).items() if isinstance(each, Field)}
        cls.rules = {name: each.metadata["rule"] for name, each in declared.items()}
        cls.template_fields = tuple(name for name, each in declared.items() if each.metadata["templated"])

    def __post_init__(self) -> None:
        check_parsed(vars(self), self.rules, self.template_fields, group=type(self).__name__)

    def __repr__(self) -> str:
        """Return the group with the fields that have other values than their defaults."""
        shown = (each for each in fields(cast("Any", self)) if each.repr and getattr(self, each.name) != each.default)
        given = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in shown)
        return f"{type(self).__name__}({given})"

    def check(self) -> None:
        """Refuse what `__post_init__` leaves to Airflow: a template.

        :raises ConfigurationError: names the group, the field, and the value received
        """
        check(vars(self), self.rules, group=type(self).__name__)

    def serialize(self) -> dict[str, Any]:
        """Return all fields, for the Rendered Templates tab."""
        return as_json({"type": type(self).__name__} | vars(self))

    def _read(self, declared: Field[Any], rendered: Any) -> Any:
        return self.rules[declared.name].read(rendered) if isinstance(rendered, str) else rendered


def check_rendered(given: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Refuse what `check` refuses, and what the rules of groups refuse: templates, too.

    :param given: parameters by name, groups among them
    :raises ConfigurationError: says which parameter, what it must be, and which value was received
    """
    check(given, rules)
    for value in given.values():
        if isinstance(value, Options):
            value.check()


def group_of(options: type[Options]) -> Rule:
    """Return the rule for a parameter that is a group."""
    return Rule(f"{options.__name__}(…)", lambda value: isinstance(value, options))


@dataclass(frozen=True, kw_only=True, repr=False)
class Limits(Options):
    """How much a batch holds, how long a run begins new ones, and how much history is kept.

    Without `max_records` and `max_bytes` a batch has at most 2,000,000 offsets and about 4 GiB, up to 8,000,000 offsets
    of many partitions; one that appends files to a lake table has 128,000,000 and 512 GiB.

    :param max_records: the maximum number of offsets in a batch; a larger range is loaded in several batches
        (templated)
    :param max_bytes: the maximum size of the keys and values in a batch, in bytes, estimated from earlier batches;
        loads only (templated)
    :param time_budget: how long after its start a run plans further batches; it finishes the planned ones, and the next
        run loads the rest; loads only
    :param history_retention: the age from which a run compacts committed batches: they stay, and their ranges become
        one range a partition; None keeps the ranges of each batch; loads only
    """

    max_records: int | None = field(default=None, metadata=ruled(or_none(COUNT, _USUAL), templated=True))
    max_bytes: int | None = field(default=None, metadata=ruled(or_none(COUNT, _USUAL), templated=True))
    time_budget: timedelta | None = field(default=None, metadata=ruled(or_none(DURATION, _NO_LIMIT)))
    history_retention: timedelta | None = field(default=None, metadata=ruled(or_none(DURATION, _NO_LIMIT)))

    @property
    def are_chosen(self) -> bool:
        """Whether the user says how large a batch is."""
        return self.max_records is not None or self.max_bytes is not None

    def of_batch(self, partitions: int, *, appends_files: bool) -> Limits:
        """Return the limits of a batch: those that the user chose, or else those of the target.

        :param partitions: the number of partitions that are loaded
        :param appends_files: whether Spark's tasks write the files of the target, and the commit appends them
        """
        if self.are_chosen:
            return self
        if appends_files:
            return replace(self, max_records=MOST_FILE_RECORDS, max_bytes=MOST_FILE_BYTES)
        most = min(max(partitions * MOST_OF_PARTITION, MOST_RECORDS), MOST_OF_PARTITIONS)
        return replace(self, max_records=most, max_bytes=MOST_BYTES)


@dataclass(frozen=True, kw_only=True, repr=False)
class DeadLetters(Options):
    """Bad records are written to the table `dead_letters`, and the batch is committed.

    :param limit: the maximum number of dead letters in a batch, or their maximum share of its records, such as 0.01;
        with more the batch fails, None allows any number (templated)
    :param topic: a topic in Kafka to which dead letters are also written after the commit, at least once; an error
        there is logged, and the next run writes them (templated)
    :param retention: how long the contents of dead letters are kept; a later commit deletes them; None is forever
    """

    limit: int | float | None = field(
        default=1000,
        metadata=ruled(or_none(either(COUNT, SHARE, " for a share of the batch"), " for any number"), templated=True),
    )
    topic: str | None = field(default=None, metadata=ruled(or_none(NAME), templated=True))
    retention: timedelta | None = field(default=None, metadata=ruled(or_none(DURATION, " to keep them for ever")))

    def most_of(self, records: int) -> int | None:
        """Return how many dead letters a batch may have; None for any number.

        :param records: of the batch
        """
        return int(self.limit * records) if isinstance(self.limit, float) else self.limit


@dataclass(frozen=True, kw_only=True, repr=False)
class Reading(Options):
    """How Spark's tasks read records from Kafka.

    :param isolation_level: read_committed or read_uncommitted
    :param max_record_bytes: the maximum size of a record's key, value and headers, uncompressed, in bytes; a larger
        record is bad, and its dead letter holds none of them (templated)
    :param every_offset: whether a load fails where an offset has no record. In a topic without compaction and
        transactions each has one, and only so can no producer hide the records of others (templated)
    :param idle_timeout: how long a read may wait for a record or the end of the log
    :param decode_timeout: how long a task may take to decode and transform the records that it reads at once, up to
        10,000; a record that takes longer is bad
    """

    isolation_level: IsolationLevel = field(default="read_committed", metadata=ruled(ISOLATION_LEVEL))
    max_record_bytes: int = field(default=MAX_RECORD_BYTES, metadata=ruled(COUNT, templated=True))
    every_offset: bool = field(default=False, metadata=ruled(FLAG, templated=True))
    idle_timeout: timedelta = field(default=timedelta(seconds=120), metadata=ruled(DURATION))
    decode_timeout: timedelta = field(default=timedelta(minutes=5), metadata=ruled(DURATION))


@dataclass(frozen=True, kw_only=True, repr=False)
class Staging(Options):
    """Where Spark's tasks stage the files of a batch, and how many tasks there are.

    :param dir: a location for staged files that workers and executors share; not needed where Spark runs on the worker
        (templated)
    :param slice_offsets: the maximum number of offsets that a Spark task reads; for a lake table, up to eight times as
        many in a large batch (templated)
    :param retention: the age at which staged files are deleted, unless an open batch needs them
    """

    dir: str | None = field(default=None, metadata=ruled(or_none(TEXT), templated=True))
    slice_offsets: int = field(default=250_000, metadata=ruled(COUNT, templated=True))
    retention: timedelta = field(default=timedelta(days=7), metadata=ruled(DURATION))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.dir or holds_template(self.dir):
            return
        if holds_credentials(self.dir):
            raise ConfigurationError(
                "Staging.dir must not hold credentials, which the history of batches would store, and takes only the "
                f"options {', '.join(sorted(URI_OPTIONS))}"
            )
        if is_relative(self.dir):
            raise ConfigurationError(f"Staging.dir must be an absolute path or a URI; got dir={self.dir!r}")


@dataclass(frozen=True, kw_only=True, repr=False)
class StateTables(Options):
    """Where the state tables are.

    :param schema: their database schema; None is the connection's default (templated)
    :param prefix: the prefix of their names (templated)
    """

    schema: str | None = field(default=None, metadata=ruled(or_none(TEXT), templated=True))
    prefix: str = field(default="", metadata=ruled(TEXT, templated=True))


@dataclass(frozen=True, kw_only=True, repr=False)
class Coordination(Options):
    """What a load does about other runs of its group, other groups, and consumer groups in Kafka.

    :param on_busy: what to do while another run holds the group: wait, skip this task, or fail; the function `load`
        raises the same error for skip and fail
    :param lease: how long without a renewal until other runs consider a run dead
    :param other_groups: "allow" in all loads of a table in which several groups load the same offsets, each with a
        transform that takes other records; by default, a load is refused if another group has loaded its records into
        the table, unless the sink has an `upsert_key`
    :param mirror_to: a consumer group in Kafka, for this load only and without consumers, to which the positions are
        committed after each batch, for tools that monitor lag; an error there is logged as a warning (templated)
    """

    on_busy: OnBusy = field(default="wait", metadata=ruled(one_of(*get_args(OnBusy))))
    lease: timedelta = field(default=timedelta(seconds=60), metadata=ruled(DURATION))
    other_groups: OtherGroups = field(default="refuse", metadata=ruled(one_of(*get_args(OtherGroups))))
    mirror_to: str | None = field(default=None, metadata=ruled(or_none(NAME), templated=True))
