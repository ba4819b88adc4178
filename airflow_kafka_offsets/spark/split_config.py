"""Kafka's configuration on its way to the executors: in two halves, either of which is random bytes without the other.

One half is a file in the staging directory. The other is in the code that Spark sends to the executors, which Spark
neither authenticates nor encrypts by default: who reads that has no secret. `main` gets the configuration over the
`job_socket`.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.directory import StagingDirectory

FILE, CONNECTIONS_FILE = "kafka-config", "connections"

# The digest of the file is sent with the other half. Without random bytes before it, a guess at the configuration could
# be proved.
_SALT_BYTES = 32


@dataclass(frozen=True)
class SplitConfig(Mapping[str, Any]):
    """A configuration that is put together where an executor first looks into it.

    :param half: the bytes to combine with those of the file
    :param digest: of the file: who may write into the staging directory must not lead the credentials to another broker
    :param functions: values that no file can hold, such as `oauth_cb`
    """

    staging_uri: str
    half: bytes = field(repr=False)
    digest: str
    functions: Mapping[str, Any] = field(repr=False)
    file: str = FILE

    def __getitem__(self, name: str) -> Any:
        return self._together()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._together())

    def __len__(self) -> int:
        return len(self._together())

    def _together(self) -> Mapping[str, Any]:
        return {**_together(self.staging_uri, self.half, self.digest, self.file), **self.functions}


def split_config(job: StageJob) -> StageJob:
    """Return the job as it is sent to the executors, without Kafka's configuration and connections; write the files
    that they need.
    """
    functions = {name: value for name, value in job.kafka_config.items() if callable(value)}
    values = {name: value for name, value in job.kafka_config.items() if name not in functions}
    kafka_config = _split(job.staging_uri, FILE, values, functions)
    connections = _split(job.staging_uri, CONNECTIONS_FILE, job.connections, {}) if job.connections else {}
    return replace(job, kafka_config=kafka_config, connections=connections)


def _split(staging_uri: str, file: str, values: Mapping[str, Any], functions: Mapping[str, Any]) -> SplitConfig:
    plain = secrets.token_bytes(_SALT_BYTES) + json.dumps(dict(values)).encode()
    half = secrets.token_bytes(len(plain))
    text = _combined(plain, half).hex()
    StagingDirectory(staging_uri).write_text(file, text)
    return SplitConfig(staging_uri, half, _digest(text), functions, file)


@lru_cache(maxsize=4)
def _together(staging_uri: str, half: bytes, digest: str, file: str) -> Mapping[str, Any]:
    """Return a configuration.

    :raises StagingError: the file is missing, or not as it was written
    """
    try:
        text = StagingDirectory(staging_uri).read_text(file)
    except FileNotFoundError as error:
        raise StagingError(f"{file} is missing; is {staging_uri} a location that all machines share?") from error
    if _digest(text) != digest:
        raise StagingError(f"{file} in {staging_uri} is not as it was written")
    config: Mapping[str, Any] = json.loads(_combined(bytes.fromhex(text), half)[_SALT_BYTES:])
    return config


def _combined(one: bytes, other: bytes) -> bytes:
    number = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return number.to_bytes(len(one), "big")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
