"""Columns that follow the schemas of the records: which fields become columns, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import ConfigurationError, NewFieldError, NewSchemaError
from airflow_kafka_offsets.formats.record_format import OnNewField, RecordFormat, SchemaFormat


def with_fields(
    record_format: SchemaFormat,
    on_new_field: OnNewField,
    target: str,
    target_columns: Callable[[], Sequence[str] | None],
) -> RecordFormat:
    """Return a format with the columns that its schemas, the target and the user's choice give it.

    :param target: its name, for messages
    :param target_columns: returns the names of its columns, or None if it does not exist
    :raises ConfigurationError: the target, which is to decide the columns, does not exist, has none of the fields, or
        has a column whose name is that of a field but for the case
    """
    known = record_format.field_names()
    if record_format.columns_from == "target":
        of_target = target_columns()
        if of_target is None:
            raise ConfigurationError(
                f"The columns of the records are to be those of {target!r}, which does not exist: create it, or "
                "declare the columns"
            )
        names = [name for name in of_target if name in known]
        by_lower = {name.lower(): name for name in known}
        if alike := [
            (name, by_lower[name.lower()]) for name in of_target if name not in known and name.lower() in by_lower
        ]:
            raise ConfigurationError(
                f"Column {alike[0][0]!r} of {target!r} would stay null: its name and that of field {alike[0][1]!r} "
                "differ in case only. Rename the column, or the field by a transform"
            )
        if not names:
            raise ConfigurationError(
                f"The columns of the records are to be those of {target!r}, which has none of their fields: "
                f"{first_few(map(repr, known))}"
            )
    else:
        names = record_format.columns().names
    if on_new_field == "add":
        names += [name for name in known if name not in names]
    return record_format.with_columns(names, on_new_field)


def new_field_error(schema: str, fields: Sequence[str], on_new_field: OnNewField) -> NewFieldError:
    """Return the error for records with fields that are no columns.

    :param schema: theirs, for the message
    """
    names = first_few(map(repr, fields))
    if on_new_field == "add":
        return NewSchemaError(
            f"{schema} has fields that are no columns yet: {names}. The schema was not known when the load was "
            "planned: run the task again, which looks for new schemas of the subject. If it is of another subject, "
            "name that one; if the subject has it no more, or behind many newer ones, declare the fields"
        )
    return NewFieldError(
        f"{schema} has fields that are no columns: {names}. Nothing of this batch was written and no position moved; "
        "declare them, or leave such fields out with on_new_field='ignore'"
    )
