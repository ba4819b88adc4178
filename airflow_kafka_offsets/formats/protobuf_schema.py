"""Protobuf schemas: how their text is compiled to descriptor sets, which are all that decoders need, the messages in
these, and which of them the prefix of a record names. To compile needs grpcio-tools.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module, resources
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.schema_limits import Budget, check_name, check_text
from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema
from airflow_kafka_offsets.formats.wire_format import MAGIC, WIRE_PREFIX, schema_id

# More than any schema nests its messages.
_DEEPEST = 32

# Of all files of a schema: a pool has a kilobyte for each.
_MOST_NAMES, _MOST_CHARACTERS = 20_000, 2_000_000

# Of all files of a schema, too: the compiler compares each reserved number of a message with all others.
_MOST_NUMBERS = 25_000

_NUMBER = re.compile(r"(?<![\w.])\d")

# What has a name in a file, a message, an enum and a service.
_NAMED = ("message_type", "enum_type", "service", "extension", "field", "nested_type", "oneof_decl", "value", "method")

Message = Any
"""The descriptor of a message, of google.protobuf."""


class Schema:
    """A file of messages, and the files that it imports.

    :param encoded: a descriptor set as Base64, in which the file is the last
    :raises SchemaError: it is none
    """

    def __init__(self, encoded: str) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool
        from google.protobuf.message import DecodeError

        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(encoded, validate=True)).file
            if not files:
                raise SchemaError("the descriptor set has no file")
            self._pool = descriptor_pool.DescriptorPool()
            for file in files:
                self._pool.Add(file)
                for text in _texts(file.enum_type, file.message_type):
                    check_text(text)
                _check_entries(file.message_type)
            self._files = [self._pool.FindFileByName(file.name) for file in files]
            self._messages = [[self._pool.FindMessageTypeByName(name) for name in _names(file)] for file in files]
        except (DecodeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, SchemaError):
                raise
            raise SchemaError(f"it is not a usable descriptor set: {type(error).__name__}") from error

    def at(self, path: Sequence[int]) -> list[Message]:
        """Return the messages that an index path can mean: the number of a message among those of the file, then among
        those in that message, and so on. There are several where a message has maps: clients for Python, Go and .NET
        count the entries of maps as messages in it, and those for Java do not.

        :raises SchemaError: there is none
        """
        first, *nested = path
        found = self._messages[-1][first : first + 1]
        for index in nested:
            found = [inner for message in found for inner in _meant(message, index)]
        if not found:
            raise SchemaError(f"it has no message with the index {'.'.join(map(str, path))}")
        return found

    def named(self, name: str | None) -> Message:
        """Return the message with a name, with or without its package; without a name, the first message of the file.

        :raises SchemaError: there is none, or several
        """
        if name is None:
            return self.at((0,))[0]
        found = [message for file in self._messages for message in _all(file) if has_name(message, name)]
        if len(found) > 1:
            # A name without a package is that of the file itself before it is one of an import.
            own = [message for message in found if message.file is self._files[-1]]
            found = own or found
        exact = [message for message in found if message.full_name == name]
        if len(exact or found) != 1:
            raise SchemaError(f"it has {'several messages' if found else 'no message'} {name!r}")
        return (exact or found)[0]


# A pool has twenty megabytes at most.
@lru_cache(maxsize=16)
def schema_of(encoded: str) -> Schema:
    """Return a schema, which is the same object for the same text as long as few others are asked for."""
    return Schema(encoded)


def has_name(message: Message, name: str) -> bool:
    """Return whether a name is that of the message, with or without its package."""
    return bool(message.full_name == name or message.full_name.endswith(f".{name}"))


def _names(file: Any) -> list[str]:
    package = f"{file.package}." if file.package else ""
    return [f"{package}{message.name}" for message in file.message_type]


def _check_names(files: Any) -> None:
    """Check how many names files have.

    :raises SchemaError: they are too many, or too long
    """
    names, characters = Budget(), Budget()
    for file in files:
        for length in _lengths(file, len(check_name(file.package))):
            names.take(0, most=_MOST_NAMES, what="names")
            characters.take(0, length, most=_MOST_CHARACTERS, what="characters of names, each with those it is in")


def _lengths(scope: Any, within: int) -> Iterator[int]:
    """Yield the lengths of the names in a file or a message, each with those that it is in: a pool holds them so."""
    for field, parts in scope.ListFields():
        for part in parts if field.name in _NAMED else ():
            length = within + 1 + len(check_name(part.name))
            yield length
            yield from _lengths(part, length)


def _texts(enums: Any, messages: Any) -> Iterator[str]:
    """Yield the texts that a schema holds once and records each."""
    for enum in enums:
        yield from (value.name for value in enum.value)
    for message in messages:
        yield from (field.default_value for field in message.field)
        yield from _texts(message.enum_type, message.nested_type)


def _check_entries(messages: Any) -> None:
    """Check that entries of maps have a key and a value: not every descriptor set is of a compiler.

    :raises SchemaError: they have not
    """
    for message in messages:
        if message.options.map_entry and sorted(field.name for field in message.field) != ["key", "value"]:
            raise SchemaError(f"the map entry {message.name!r} has not a key and a value alone")
        _check_entries(message.nested_type)


def _inner(message: Message) -> list[Message]:
    # The entries of maps are messages that nobody wrote.
    return [inner for inner in message.nested_types if not inner.GetOptions().map_entry]


def _meant(message: Message, index: int) -> list[Message]:
    """Return the messages in a message that have an index, with none to all of its maps counted before them."""
    inner = _inner(message)
    maps = len(message.nested_types) - len(inner)
    return inner[max(0, index - maps) : index + 1]


def _all(messages: list[Message]) -> Iterator[Message]:
    for message in messages:
        yield message
        yield from _all(_inner(message))


def wire_prefix_length(head: bytes) -> int:
    """Return the length of the id and the index path before a message; see `PrefixedDecoder`."""
    if len(head) <= WIRE_PREFIX:
        return WIRE_PREFIX + 1
    numbers, is_between = _varints(head)
    is_whole = is_between and len(numbers) == numbers[0] + 1
    is_possible = head[:1] == MAGIC and _is_possible(numbers) and len(head) < WIRE_PREFIX + 5 * _DEEPEST
    return len(head) + (is_possible and not is_whole)


def index_path(prefix: bytes) -> tuple[int, ...]:
    """Return the index path of a message in a prefix.

    :raises SchemaError: it is none
    """
    schema_id(prefix)
    numbers, is_between = _varints(prefix)
    if not is_between or not numbers or not _is_possible(numbers) or len(numbers) != numbers[0] + 1:
        raise SchemaError("the index of its message, which follows the id of its schema, is not readable")
    return tuple(numbers[1:]) or (0,)


def _varints(prefix: bytes) -> tuple[list[int], bool]:
    """Return the numbers behind an id, and whether the last one is whole."""
    numbers: list[int] = []
    number = shift = 0
    for byte in prefix[WIRE_PREFIX:]:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            # A longer spelling than needed, of which a number has any number, is none: each would have its own decoder.
            is_padded = byte == 0 and shift > 7
            numbers.append(-1 if is_padded else (number >> 1) ^ -(number & 1))
            number = shift = 0
    return numbers, shift == 0


def _is_possible(numbers: list[int]) -> bool:
    """Return whether numbers can begin an index path with its length."""
    return not numbers or (0 <= numbers[0] <= _DEEPEST and min(numbers) >= 0)


_MAIN = "kafka_offsets_schema.proto"

_GOOGLES = "google/protobuf/"

# What Confluent's registry knows without a reference, in addition to google/protobuf.
_KNOWN = {
    "confluent/meta.proto": """
        syntax = "proto3";
        package confluent;
        import "google/protobuf/descriptor.proto";
        message Meta {
          string doc = 1;
          map<string, string> params = 2;
          repeated string tags = 3;
        }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
    """,
    "confluent/type/decimal.proto": """
        syntax = "proto3";
        package confluent.type;
        message Decimal {
          bytes value = 1;
          int32 precision = 2;
          int32 scale = 3;
        }
    """,
}


# Of CPU, of which a schema with as many names as it may have takes a tenth of a second.
_COMPILE_SECONDS = 3

_COMPILE_BYTES, _MOST_OUTPUT = 1 << 30, 64 << 20

_MESSAGES = 4_096

# In a separate process, because the compiler writes what is wrong to its standard error, as much as it likes; one for
# all, because it takes a while to start. A schema may end it.
_COMPILE = """
import os, resource, signal, sys
from grpc_tools import protoc
seconds, memory, output, name, well_known, *directories = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_AS, (int(memory),) * 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(output),) * 2)
for directory in directories:
    signal.setitimer(signal.ITIMER_PROF, int(seconds))
    with open(f"{directory}.messages", "wb") as messages:
        os.dup2(messages.fileno(), 2)
    paths = [f"-I{directory}", f"-I{well_known}", f"--descriptor_set_in={directory}.compiled", "--include_imports"]
    if protoc.main(["protoc", *paths, f"--descriptor_set_out={directory}.part", name]) == 0:
        os.rename(f"{directory}.part", f"{directory}.desc")
"""


def compile_schemas(schemas: Mapping[str, RegisteredSchema]) -> dict[str, str | SchemaError]:
    """Return the descriptor sets of schemas and of all that they import, as Base64, or why there is none.

    The schema itself is the last file of its set.

    :raises StagingError: grpcio-tools is not installed, or does not work
    """
    try:
        import_module("grpc_tools.protoc")
    except ModuleNotFoundError as error:
        # On the worker it is there, and a retry fetches the newest schemas of the subject, which are compiled there.
        raise StagingError(
            f"A record has schema {', '.join(schemas)}, which the worker did not fetch, and grpcio-tools, which "
            "compiles it, is not installed where Spark's executors run: retry, to fetch the newest schemas of the "
            "subject, or install grpcio-tools there"
        ) from error
    well_known = str(resources.files("grpc_tools").joinpath("_proto"))
    with tempfile.TemporaryDirectory(prefix="kafka-offsets-") as directory:
        problems: dict[str, str] = {}
        waiting: list[str] = []
        numbers = {key: str(Path(directory, str(number))) for number, key in enumerate(schemas)}
        for key, schema in schemas.items():
            try:
                _write(Path(numbers[key]), schema)
            except SchemaError as error:
                problems[key] = str(error)
            except (OSError, ValueError) as error:
                problems[key] = f"its imports cannot be written as files: {type(error).__name__}"
            else:
                waiting.append(key)
        while waiting:
            limits = map(str, (_COMPILE_SECONDS, _COMPILE_BYTES, _MOST_OUTPUT))
            done = subprocess.run(
                # -P: no module of the current directory.
                [sys.executable, "-P", "-c", _COMPILE, *limits, _MAIN, well_known, *(numbers[key] for key in waiting)],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            began = [key for key in waiting if Path(f"{numbers[key]}.messages").exists()]
            if not began:
                raise StagingError(f"The compiler of Protobuf failed: {shortened(done.stderr)}")
            problems |= {key: _messages(numbers[key]) for key in began}
            if done.returncode:
                limits_are = f"{_COMPILE_SECONDS} seconds of CPU and {_COMPILE_BYTES >> 20:,} MiB"
                problems[began[-1]] = f"it ended the compiler, which has {limits_are}"
            waiting = waiting[len(began) :]
        return {key: _result(Path(f"{numbers[key]}.desc"), problems[key]) for key in schemas}


def _messages(directory: str) -> str:
    """Return what the compiler says is wrong with a schema."""
    with Path(f"{directory}.messages").open("rb") as file:
        lines = file.read(_MESSAGES).decode(errors="replace").splitlines()
    # Others are warnings, of a file without a syntax for example.
    errors = [line for line in lines if ".proto:" in line] or ["it does not say why"]
    return " ".join(errors).replace(f"{directory}/", "").replace(f"{_MAIN}:", "line ")


def _write(directory: Path, schema: RegisteredSchema) -> None:
    """Write a schema and its imports as files, and those that are compiled already as a descriptor set.

    :raises SchemaError: they have too many numbers
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    compiled, count = FileDescriptorSet(), Budget()
    directory.mkdir()
    files = _KNOWN | {reference.name: reference.text for reference in schema.references} | {_MAIN: schema.text}
    for name, content in files.items():
        path = PurePosixPath(name)
        if name.startswith(_GOOGLES):
            continue  # the compiler has its own, and the types of others are not what they are called
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(name)
        if (descriptor := _descriptor(content)) is not None:
            descriptor.name = name
            compiled.file.append(descriptor)
            found = sum(map(_ranges, (*descriptor.message_type, *descriptor.enum_type)))
        else:
            file = directory / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
            found = sum(1 for _ in islice(_NUMBER.finditer(content), _MOST_NUMBERS + 1))
        count.take(0, found, most=_MOST_NUMBERS, what="numbers")
    Path(f"{directory}.compiled").write_bytes(compiled.SerializeToString())


def _ranges(scope: Any) -> int:
    """Return how many ranges of numbers a message or an enum reserves or gives to extensions."""
    inner = (part for name in ("nested_type", "enum_type") for part in getattr(scope, name, ()))
    return len(scope.reserved_range) + len(getattr(scope, "extension_range", ())) + sum(map(_ranges, inner))


def _descriptor(content: str) -> Any:
    """Return the descriptor of a file that a registry has as Base64, as clients for Python and .NET register it; None
    for the text of a schema.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(base64.b64decode(content, validate=True))
    except (DecodeError, ValueError):
        return None


def _result(compiled: Path, problem: str) -> str | SchemaError:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    if not compiled.exists():
        return SchemaError(shortened(problem))
    content = compiled.read_bytes()
    try:
        files = FileDescriptorSet.FromString(content).file
        if any(file.package == "google.protobuf" and not file.name.startswith(_GOOGLES) for file in files):
            raise SchemaError("it declares types of the package google.protobuf")
        _check_names(files)
    except SchemaError as error:
        # Without its traceback, which would keep the files.
        return SchemaError(str(error))
    return base64.b64encode(content).decode("ascii")
