"""Compiles the text of Protobuf schemas to descriptor sets, which are all that decoders need. It needs grpcio-tools."""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module, resources
from pathlib import Path, PurePosixPath

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema

_MAIN = "kafka_offsets_schema.proto"

# What Confluent's registry knows without a reference, beside google/protobuf.
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


# In a process of its own, because the compiler writes what is wrong to its standard error; one for all, because it
# takes a while to start.
_COMPILE = """
import sys
from grpc_tools import protoc
name, well_known, *directories = sys.argv[1:]
for directory in directories:
    paths = [f"-I{directory}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={directory}.desc"]
    protoc.main(["protoc", *paths, name])
    print("", "end of messages", file=sys.stderr, sep="\\n", flush=True)
"""


def compile_schemas(schemas: Mapping[str, RegisteredSchema]) -> dict[str, str | SchemaError]:
    """Return the descriptor sets of schemas and of all that they import, as Base64, or why there is none.

    The schema itself is the last file of its set.

    :raises StagingError: grpcio-tools is not installed
    """
    try:
        import_module("grpc_tools.protoc")
    except ModuleNotFoundError as error:
        # On the worker it is there, and a retry fetches the newest schemas of the subject, which are compiled there.
        raise StagingError(
            f"A record has schema {', '.join(schemas)}, which the worker did not fetch, and grpcio-tools, which "
            "compiles it, is not installed where Spark's executors run: retry, which fetches the newest schemas of the "
            "subject, or install it there"
        ) from error
    well_known = str(resources.files("grpc_tools").joinpath("_proto"))
    with tempfile.TemporaryDirectory(prefix="kafka-offsets-") as directory:
        problems: dict[str, str] = {}
        written: list[str] = []
        for number, (key, schema) in enumerate(schemas.items()):
            try:
                _write(Path(directory, str(number)), schema)
            except (OSError, ValueError) as error:
                problems[key] = f"its imports cannot be written as files: {type(error).__name__}"
            else:
                written.append(key)
        numbers = {key: str(Path(directory, str(number))) for number, key in enumerate(schemas)}
        done = subprocess.run(
            [sys.executable, "-c", _COMPILE, _MAIN, well_known, *(numbers[key] for key in written)],
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
        )
        for key, messages in zip(written, done.stderr.split("\nend of messages\n"), strict=False):
            # Others are warnings, of a file without a syntax for example.
            errors = [line for line in messages.splitlines() if ".proto:" in line] or ["the compiler does not say why"]
            problems[key] = " ".join(errors).replace(f"{numbers[key]}/", "").replace(f"{_MAIN}:", "line ")
        return {key: _result(Path(f"{numbers[key]}.desc"), problems[key]) for key in schemas}


def _write(directory: Path, schema: RegisteredSchema) -> None:
    files = _KNOWN | {reference.name: reference.text for reference in schema.references} | {_MAIN: schema.text}
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(name)
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")


def _result(compiled: Path, problem: str) -> str | SchemaError:
    if compiled.exists():
        return base64.b64encode(compiled.read_bytes()).decode("ascii")
    return SchemaError(shortened(problem))
