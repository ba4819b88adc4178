"""The columns of Avro values: which a schema has, and how values that another schema wrote become them, by Avro's
rules.

What is compared are names of fields; the names of records, enums and fixed types are only to tell the branches of
unions apart.
"""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.formats.avro_schema import TIMESTAMP_UNITS, Field, Type
from airflow_kafka_offsets.formats.columns import OUT_OF_YEARS, as_decimals, out_of_years, relisted, spark_type
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.room import named, repeated
from airflow_kafka_offsets.formats.schema_limits import MOST_CHARACTERS, Budget
from airflow_kafka_offsets.formats.wire_format import MismatchError, UnreadableError

_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
    "uuid": pa.string(),
    "date": pa.date32(),
    "time-millis": pa.string(),
    "time-micros": pa.string(),
    **{f"timestamp-{unit}": pa.timestamp("us", "UTC") for unit in TIMESTAMP_UNITS},
    **{f"local-timestamp-{unit}": pa.timestamp("us") for unit in TIMESTAMP_UNITS},
}

_EXACT = Context(prec=76)

_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""What Avro promotes the values of a type to."""

_NOT_OF_READER = "the reader's union does not have its branch"

_MEMBER = re.compile(r"member\d+", re.ASCII)

_PROMOTED = {("int", "long"): pa.int64(), ("float", "double"): pa.float64()}


def columns_of(kind: Type) -> pa.Schema:
    """Return the columns of a record. All are nullable: the values of tombstones are null.

    :raises SchemaError: there are none, or a type has no column
    """
    if not kind.fields:
        raise SchemaError(f"the record {kind.name!r} has no fields")
    return pa.schema([(part.name, column_type(part.type, part.name)) for part in kind.fields])


def fields_with_values(kind: Type) -> list[Field]:
    """Return the fields of a record that are not always null."""
    return [part for part in kind.fields if part.type.kind != "null" and part.type.branches]


def column_type(kind: Type, path: str) -> pa.DataType:
    """Return the type of the column for a type.

    :param path: of the field, for messages
    :raises SchemaError: no column can have it
    """
    if kind.kind == "union":
        return _union_type(kind, path)
    if kind.kind == "record":
        if not kind.fields:
            raise SchemaError(f"{path!r} is a record without fields, which cannot be a column; declare the columns")
        return pa.struct([(part.name, column_type(part.type, f"{path}.{part.name}")) for part in kind.fields])
    if kind.kind == "array":
        return pa.list_(column_type(kind.parts[0], path))
    if kind.kind == "map":
        return pa.list_(pa.struct([("key", pa.string()), ("value", column_type(kind.parts[0], path))]))
    if kind.logical == "decimal" and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    name = kind.logical or kind.kind
    if name not in _TYPES:
        what = f"a decimal of {kind.precision} digits" if name == "decimal" else f"of the type {name}"
        raise SchemaError(f"{path!r} is {what}, which cannot be a column; declare the columns")
    return _TYPES[name]


def _union_type(kind: Type, path: str) -> pa.DataType:
    branches = kind.branches
    if not branches:
        raise SchemaError(f"{path!r} is always null, and cannot be a column; declare the columns")
    if len(branches) == 1:
        return column_type(branches[0], path)
    if all(branch.logical is None for branch in branches):
        for kinds, promoted in _PROMOTED.items():
            if {branch.kind for branch in branches} == set(kinds):
                return promoted
    return pa.struct([(f"member{i}", column_type(branch, path)) for i, branch in enumerate(branches)])


Source = tuple[pa.Field, int | None, Field | None]
"""A column, the place of the field it is read from, and the field of the reader's schema."""


def sources(fields: Iterator[pa.Field] | pa.Schema, kind: Type, reader: Type | None) -> list[Source]:
    """Return where columns come from.

    :param kind: the record that was written
    :param reader: the record with aliases and defaults, if there is one
    """
    places = {part.name: place for place, part in enumerate(kind.fields)}
    wanted = {part.name: part for part in reader.fields} if reader is not None else {}
    found: list[Source] = []
    for field in fields:
        part = wanted.get(field.name)
        names = [field.name, *(part.aliases if part is not None else ())]
        found.append((field, next((places[name] for name in names if name in places), None), part))
    return found


def read_fields(kind: Type, fields: Iterator[pa.Field] | pa.Schema, reader: Type | None) -> pa.StructType:
    """Return what is read of a record for columns; see `read_type` and `sources`."""
    parts: dict[int, pa.DataType] = {}
    for field, place, part in sources(fields, kind, reader):
        if place is not None and not kind.fields[place].type.is_empty:
            source = kind.fields[place].type
            own = read_type(source, field.type, part.type if part is not None else None)
            # By an alias, two columns may have the same source.
            parts[place] = own if parts.get(place, own) == own else source.physical
    return pa.struct([(f"f{place}", parts[place]) for place in sorted(parts)])


def read_type(kind: Type, declared: pa.DataType, reader: Type | None = None) -> pa.DataType:
    """Return the part of the physical type of values that a column needs: in Arrow, a null has room for all of it.

    :param declared: the type of the column; of nulls, where no value can become one
    :param reader: as for `converted`
    """
    if kind.physical is None or not kind.branches:
        return pa.null()
    wanted = reader.branches if reader is not None else kind.branches
    if max(len(kind.branches), len(wanted)) > 1:
        has_members = _has_members(declared)
        members = [
            read_type(
                branch,
                _member_type(declared, place) if has_members else declared,
                wanted[place] if place is not None else None,
            )
            for branch, place in zip(kind.branches, _places(kind, reader), strict=True)
        ]
        return pa.struct([(f"member{i}", member) for i, member in enumerate(members)]) if members[1:] else members[0]
    kind, reader = kind.branches[0], _only_branch(reader) if reader is not None else None
    if kind.kind == "record":
        read = read_fields(kind, iter(declared if pa.types.is_struct(declared) else ()), reader)
        if kind.only is None:
            return read
        return read.field(0).type if read.num_fields else read_type(kind.only, pa.null())
    if kind.kind not in ("array", "map"):
        return kind.physical
    item = declared.value_type if pa.types.is_list(declared) else declared
    part = reader.parts[0] if reader is not None and reader.kind == kind.kind else None
    if kind.kind == "array":
        return pa.list_(read_type(kind.parts[0], item, part))
    is_entry = pa.types.is_struct(item) and item.num_fields == 2
    value = read_type(kind.parts[0], item.field(1).type if is_entry else pa.null(), part)
    return pa.list_(pa.struct([("key", pa.string()), ("value", value)]))


def converted(array: pa.Array, kind: Type, declared: pa.DataType, reader: Type | None = None) -> pa.Array:
    """Return values as a column.

    :param array: of the physical type, or the part of it that `read_type` returns
    :param kind: the type that was written
    :param reader: the same in the reader's schema, with aliases and defaults
    :raises MismatchError: values of the type cannot become values of the column
    :raises UnreadableError: one of the values cannot
    """
    if kind.kind == "null" or not kind.branches:
        return pa.nulls(len(array), declared)
    if max(len(kind.branches), len(reader.branches) if reader is not None else 0) > 1:
        return _of_branches(array, kind, declared, reader)
    kind, reader = kind.branches[0], _only_branch(reader) if reader is not None else None
    if kind.physical is None:
        raise MismatchError(f"it is a part of the recursive record {kind.name!r}, which cannot be a column")
    if kind.kind == "record" and pa.types.is_struct(declared):
        if reader is not None and reader.kind == "recursive":
            raise MismatchError(f"the reader's schema has a part of the recursive record {reader.name!r} there")
        children = [
            constant(field.type, part, len(array)) if place is None else _child(array, kind, place, field, part)
            for field, place, part in sources(iter(declared), kind, reader)
        ]
        return pa.StructArray.from_arrays(children, fields=list(declared), mask=array.is_null())
    if kind.kind in ("array", "map") and pa.types.is_list(declared):
        return _of_items(array, kind, declared, reader)
    return _scalar(array, kind, declared)


def _only_branch(kind: Type) -> Type:
    return kind.branches[0] if kind.branches else Type("null")


def empty_values(kind: Type, count: int) -> pa.Array:
    """Return values of a type that takes no bytes."""
    value = {"record": {}, "fixed": b""}.get(kind.kind)
    return pa.repeat(pa.scalar(value, kind.physical), count)


def _child(array: pa.Array, record: Type, place: int, field: pa.Field, reader: Field | None) -> pa.Array:
    kind = record.fields[place].type
    try:
        if kind.physical is None:
            return converted(pa.nulls(0), kind, field.type)
        if kind.is_empty:
            values = empty_values(kind, len(array))
        else:
            values = array if record.only is not None else pc.struct_field(array, f"f{place}")
        return converted(values, kind, field.type, reader.type if reader is not None else None)
    except MismatchError as error:
        raise MismatchError(f"field {field.name!r}: {error}") from None


def _of_items(array: pa.Array, kind: Type, declared: pa.ListType, reader: Type | None) -> pa.Array:
    items, wanted = array.flatten(), declared.value_type
    part = reader.parts[0] if reader is not None and reader.kind == kind.kind else None
    if kind.kind == "array":
        items = converted(items, kind.parts[0], wanted, part)
    elif pa.types.is_struct(wanted) and wanted.num_fields == 2 and wanted.field(0).type == pa.string():
        key, value = items.flatten()
        items = pa.StructArray.from_arrays(
            [key, converted(value, kind.parts[0], wanted.field(1).type, part)], fields=list(wanted)
        )
    else:
        raise MismatchError(
            f"it is a map, but the column is {spark_type(declared)}: declare ARRAY<STRUCT<key: STRING, value: …>>"
        )
    return relisted(array, items, declared)


def _of_branches(array: pa.Array, kind: Type, declared: pa.DataType, reader: Type | None) -> pa.Array:
    """Return the values of a union, or of a type that the reader's schema has in a union.

    They are the branches of the reader's union as the fields `member0`, `member1` …, or of those branches that the
    column can have.
    """
    written = kind.branches
    # At once: to get one of them takes longer, the more there are.
    members = array.flatten() if len(written) > 1 else [array]
    wanted, places = reader.branches if reader is not None else written, _places(kind, reader)
    if _has_members(declared):
        return _members(array, list(zip(members, written, places, strict=True)), declared, wanted)
    found: list[pa.Array] = []
    unfit: MismatchError | None = None
    for member, branch, place in zip(members, written, places, strict=True):
        try:
            if place is None and branch.kind == "record":
                # Without the reader's it would lose its aliases and defaults.
                raise MismatchError(_NOT_OF_READER)
            found.append(converted(member, branch, declared, wanted[place] if place is not None else None))
        except MismatchError as error:
            if member.null_count < len(member):
                raise UnreadableError(f"its branch of the union does not fit: {error}") from None
            unfit = unfit or error
    if not found:
        raise MismatchError(f"no branch of the union can become {spark_type(declared)}: {unfit}")
    return pc.coalesce(*found)


def _has_members(declared: pa.DataType) -> bool:
    """Return whether a column has fields for the branches of a union."""
    return pa.types.is_struct(declared) and all(_MEMBER.fullmatch(field.name) for field in declared)


def _member_type(declared: pa.DataType, place: int | None) -> pa.DataType:
    """Return what a branch of a union becomes in a column; the type of nulls where it is left out."""
    index = -1 if place is None else declared.get_field_index(f"member{place}")
    return declared.field(index).type if index >= 0 else pa.null()


def _places(kind: Type, reader: Type | None) -> list[int | None]:
    """Return the place of each branch among those of the reader's type."""
    if reader is None:
        return list(range(len(kind.branches)))
    # The first place of each name, with and without its namespace, and of each type.
    names: dict[tuple[str, str], int] = {}
    short: dict[tuple[str, str], int] = {}
    kinds: dict[str, int] = {}
    for place, part in enumerate(reader.branches):
        names.setdefault((part.kind, part.name), place)
        short.setdefault((part.kind, _short(part.name)), place)
        kinds.setdefault(part.kind, place)
    for place, part in enumerate(reader.branches):
        for alias in part.aliases:
            names.setdefault((part.kind, alias), place)
            short.setdefault((part.kind, _short(alias)), place)

    def place_of(branch: Type) -> int | None:
        """Return the place of a branch by Avro's rules: by its type and name, else by promotion."""
        promoted = [kinds[kind] for kind in _PROMOTIONS.get(branch.kind, ()) if kind in kinds]
        if len(reader.branches) == 1 and branch.kind in kinds:
            return 0
        by_name = names.get((branch.kind, branch.name), short.get((branch.kind, _short(branch.name))))
        return by_name if by_name is not None else min(promoted, default=None)

    return list(map(place_of, kind.branches))


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _members(
    array: pa.Array,
    written: Sequence[tuple[pa.Array, Type, int | None]],
    declared: pa.StructType,
    wanted: Sequence[Type],
) -> pa.Array:
    """Return the values of a union as a struct, of which each value has one field that is not null.

    :param written: the values of each branch that was written, its type, and its place in the reader's union
    :param wanted: the branches of the reader's union
    """
    if any(place is None and values.null_count < len(values) for values, _, place in written):
        raise UnreadableError(_NOT_OF_READER)
    of_place = defaultdict(list)
    for values, kind, place in written:
        of_place[place].append((values, kind))
    children = []
    for field in declared:
        number = int(field.name.removeprefix("member"))
        own = [converted(values, kind, field.type, wanted[number]) for values, kind in of_place[number]]
        children.append(pc.coalesce(*own) if own else pa.nulls(len(array), field.type))
    return pa.StructArray.from_arrays(children, fields=list(declared), mask=array.is_null())


def constant(declared: pa.DataType, part: Field | None, count: int) -> pa.Array:
    """Return the values of a field that was not written: its default, or null."""
    if part is None or not part.has_default or part.default is None:
        return pa.nulls(count, declared)
    try:
        physical = pa.array([_default(part.type, part.default, Budget())], part.type.physical)
    except (pa.ArrowException, SchemaError, ValueError, TypeError, KeyError, AttributeError, UnicodeError) as error:
        raise MismatchError(
            f"the default of field {part.name!r} is not of its type, or has more than {MOST_CHARACTERS:,} characters "
            "with those of fields that it leaves out"
        ) from error
    return repeated(converted(physical, part.type, declared), count)


def _default(kind: Type, value: Any, budget: Budget) -> Any:
    """Return a default, which is JSON, as the physical type has it.

    :param budget: of its characters: items of a list may leave out fields, whose defaults are lists
    """
    budget.take(0, max(1, len(value)) if isinstance(value, str) else 1, most=MOST_CHARACTERS)
    if kind.kind == "union":
        # That of a union is of its first branch, and since Avro 1.12 of any.
        for place, branch in enumerate(kind.branches):
            try:
                found = _default(branch, value, budget)
                pa.array([found], branch.physical)
            except (pa.ArrowException, SchemaError, ValueError, TypeError, KeyError, AttributeError):
                continue
            return found if len(kind.branches) == 1 else {f"member{place}": found}
        raise SchemaError("it is of no branch of the union")
    if kind.kind in ("bytes", "fixed"):
        return value.encode("latin-1")
    if kind.kind == "enum":
        return kind.symbols.index(value)
    if kind.kind == "array":
        return [_default(kind.parts[0], item, budget) for item in value]
    if kind.kind == "map":
        text = Type("string")
        return [
            {"key": _default(text, key, budget), "value": _default(kind.parts[0], item, budget)}
            for key, item in value.items()
        ]
    if kind.kind == "record":
        if kind.only is not None:
            (part,) = (part for part in kind.fields if not part.type.is_empty)
            return _default(part.type, value.get(part.name, part.default), budget)
        return {
            f"f{place}": _default(part.type, value.get(part.name, part.default), budget)
            for place, part in enumerate(kind.fields)
            if not part.type.is_empty
        }
    return value


def _scalar(array: pa.Array, kind: Type, declared: pa.DataType) -> pa.Array:
    name = kind.logical or kind.kind
    if pa.types.is_decimal(declared) and name == "decimal":
        return _decimals(array, kind, declared)
    if name == "enum" and declared == pa.string():
        return _symbols(array, kind.symbols)
    promoted = [_TYPES.get(each) for each in (kind.kind, *_PROMOTIONS.get(kind.kind, ()))]
    if name in _CONVERSIONS and declared == _TYPES[name]:
        convert = _CONVERSIONS[name]
    elif declared in promoted and (name, declared) != ("decimal", pa.string()):  # its bytes are no text
        convert = _cast
    else:
        raise MismatchError(f"it was written as {name}, which cannot become {spark_type(declared)}")
    try:
        values = convert(array, declared)
    except pa.ArrowInvalid:
        raise UnreadableError(f"a value of type {name} does not fit {spark_type(declared)}") from None
    if out_of_years(values):
        raise UnreadableError(OUT_OF_YEARS)
    return values


def _symbols(places: pa.Array, symbols: Sequence[str]) -> pa.Array:
    try:
        return named(places, pa.array(symbols, pa.string()))
    except IndexError:
        raise UnreadableError("it has a symbol that its enum has not") from None


def _cast(array: pa.Array, declared: pa.DataType) -> pa.Array:
    # Promoting a number to a float may round it, as in every implementation of Avro.
    return array.cast(declared, safe=not pa.types.is_floating(declared))


def _timestamps(unit: str, array: pa.Array, declared: pa.DataType) -> pa.Array:
    if unit == "millis":
        array = pc.multiply_checked(array, 1000)
    if unit == "nanos":
        # Towards the past, on both sides of 1970.
        quotients = pc.divide(array, 1000)
        is_later = pc.less(array, pc.multiply(quotients, 1000))
        array = pc.subtract(quotients, is_later.cast(pa.int64()))
    return array.cast(declared)


def _times(unit: pa.DataType, day: int, array: pa.Array, declared: pa.DataType) -> pa.Array:
    if pc.any(pc.or_(pc.less(array, 0), pc.greater_equal(array, day))).as_py():
        raise UnreadableError("a time lies outside of the day")
    return array.cast(unit).cast(declared)


def _uuids(array: pa.Array, declared: pa.DataType) -> pa.Array:
    if array.type == declared:
        return array
    return pa.array([None if value is None else str(uuid.UUID(bytes=value)) for value in array.to_pylist()], declared)


_CONVERSIONS: Mapping[str, Callable[[pa.Array, pa.DataType], pa.Array]] = {
    "uuid": _uuids,
    "date": _cast,
    "time-millis": partial(_times, pa.time32("ms"), 86_400_000),
    "time-micros": partial(_times, pa.time64("us"), 86_400_000_000),
    **{f"{local}timestamp-{unit}": partial(_timestamps, unit) for local in ("", "local-") for unit in TIMESTAMP_UNITS},
}
"""How values of logical types become their columns."""


def _decimals(array: pa.Array, kind: Type, declared: pa.Decimal128Type) -> pa.Array:
    """Return numbers in two's complement, with the highest byte first, as decimals."""
    if kind.scale > 38:
        raise MismatchError(f"it is a decimal with {kind.scale} digits after the point, and a column has 38 at most")
    if (pc.max(pc.binary_length(array)).as_py() or 0) <= 16:
        lengths = pc.fill_null(pc.binary_length(array), 0)
        first = pc.fill_null(pc.binary_slice(array, 0, 1), b"")
        sign = pc.if_else(pc.greater_equal(first, b"\x80"), pa.scalar(b"\xff"), pa.scalar(b"\x00"))
        wide = pc.binary_join_element_wise(
            pc.binary_repeat(sign, pc.subtract(16, lengths)), pc.fill_null(array, b""), b""
        )
        data = pc.binary_reverse(wide).buffers()[2] or pa.py_buffer(b"")
        valid = array.is_valid().buffers()[1] if array.null_count else None
        numbers = pa.Array.from_buffers(pa.decimal128(38, kind.scale), len(array), [valid, data])
    else:
        whole = [None if value is None else int.from_bytes(value, "big", signed=True) for value in array.to_pylist()]
        if any(number is not None and abs(number) >= 10**38 for number in whole):
            raise UnreadableError("a decimal has more than 38 digits")
        exact = [None if number is None else Decimal(number).scaleb(-kind.scale, _EXACT) for number in whole]
        numbers = pa.array(exact, pa.decimal128(38, kind.scale))
    try:
        numbers.validate(full=True)
        return as_decimals(numbers, declared)
    except pa.ArrowInvalid:
        raise UnreadableError(f"a decimal does not fit {spark_type(declared)}") from None
