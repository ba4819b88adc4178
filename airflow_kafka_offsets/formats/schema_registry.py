"""Schemas from a registry with Confluent's API:
https://docs.confluent.io/platform/current/schema-registry/develop/api.html

The worker asks for the schemas of a subject before Spark starts; tasks ask for those that were registered meanwhile.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from airflow_kafka_offsets.core.addresses import is_this_machine
from airflow_kafka_offsets.exceptions import ConfigurationError, RegistryUnavailableError
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.schema_limits import MOST_BYTES, Budget

log = logging.getLogger(__name__)

CONFIG = (
    "url",
    "basic.auth.user.info",
    "bearer.auth.token",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
)
"""The properties of the configuration of a registry; they have the names that Confluent's clients give them."""

_ATTEMPTS = 4

_PAUSE_SECONDS = 0.5

_TIMEOUT_SECONDS = 30.0

# Of a schema, those of its references counted.
_MOST_REFERENCES = 500

# The error codes of the API for a schema, a subject and a version that do not exist.
_NOT_FOUND = {40403, 40401, 40402}


class NotFoundError(LookupError):
    """The registry has no such schema, subject or version."""


class Reference(NamedTuple):
    """A schema that another one refers to.

    :param name: by which it does: for Protobuf the path of the import, for JSON Schema the URI
    """

    name: str
    text: str


class RegisteredSchema(NamedTuple):
    """A schema, and those that it refers to, each after those that it refers to itself.

    :param type: AVRO, PROTOBUF or JSON
    """

    type: str
    text: str
    references: tuple[Reference, ...] = ()


_Version = tuple[str, int]
"""A subject, and the number of a version."""


class SchemaRegistry:
    """Asks a registry. A version, which means the same schema forever, is asked for once.

    :param config: see `CONFIG`; it holds secrets
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._url = str(check_config(config)["url"]).rstrip("/")
        self._answers: dict[_Version, Any] = {}
        self._versions: dict[_Version, tuple[int, RegisteredSchema]] = {}

    @property
    def host(self) -> str:
        """Where the registry is, for messages."""
        return str(urlsplit(self._url).netloc)

    def by_id(self, number: int) -> RegisteredSchema:
        """Return the schema with an id.

        :raises NotFoundError: there is none
        :raises SchemaError: its references cannot be used
        :raises RegistryUnavailableError: the registry does not answer
        """
        return self._registered(self._get(f"/schemas/ids/{number}"), Budget())

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject, the latest one last.

        :raises NotFoundError: there is no such subject
        """
        return sorted(self._get(f"/subjects/{quote(subject, safe='')}/versions"))

    def version(self, subject: str, version: int) -> tuple[int, RegisteredSchema]:
        """Return the id and the schema of a version.

        :raises NotFoundError: there is none
        :raises SchemaError: its references cannot be used
        """
        return self._version((subject, version), Budget(), ())

    def _version(self, key: _Version, budget: Budget, within: tuple[_Version, ...]) -> tuple[int, RegisteredSchema]:
        if key in within:
            raise SchemaError("its references lead back to where they began")
        if key not in self._versions:
            if key not in self._answers:
                self._answers[key] = self._get(f"/subjects/{quote(key[0], safe='')}/versions/{key[1]}")
            found = self._answers[key]
            self._versions[key] = found["id"], self._registered(found, budget, (*within, key))
        return self._versions[key]

    def close(self) -> None:
        """Close the connections."""
        if "_client" in vars(self):
            self._client.close()

    def _registered(
        self, found: Mapping[str, Any], budget: Budget, within: tuple[_Version, ...] = ()
    ) -> RegisteredSchema:
        references: dict[Reference, None] = {}
        for reference in found.get("references") or ():
            budget.take(len(within), most=_MOST_REFERENCES, what="references")
            subject, version = reference["subject"], reference["version"]
            try:
                _, referred = self._version((subject, version), budget, within)
            except NotFoundError:
                raise SchemaError(f"it refers to version {version} of subject {subject!r}, which is unknown") from None
            references |= dict.fromkeys([*referred.references, Reference(reference["name"], referred.text)])
        texts = [found["schema"], *(reference.text for reference in references)]
        if sum(map(len, texts)) > MOST_BYTES:
            raise SchemaError(f"it has more than {MOST_BYTES:,} bytes, with all that it refers to")
        return RegisteredSchema(found.get("schemaType") or "AVRO", found["schema"], tuple(references))

    def _get(self, path: str) -> Any:
        import httpx

        problem = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_SECONDS * 2 ** (attempt - 1))
            try:
                response = self._client.get(path)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if response.status_code < 500 and response.status_code != 429:
                return self._answer(path, response)
            problem = f"it answers with status {response.status_code}"
        raise RegistryUnavailableError(
            f"The schema registry at {self.host} did not answer {path} in {_ATTEMPTS} attempts: {problem}"
        )

    def _answer(self, path: str, response: Any) -> Any:
        if response.status_code in (401, 403):
            raise ConfigurationError(
                f"The schema registry at {self.host} refuses {path} with status {response.status_code}: check login "
                "and password, or bearer.auth.token, of its connection, and the permissions of its user"
            )
        try:
            body = response.json()
        except ValueError:
            body = None
        if response.status_code == 404 and isinstance(body, dict) and body.get("error_code") in _NOT_FOUND:
            raise NotFoundError(path)
        if response.status_code != 200 or body is None:
            raise ConfigurationError(
                f"The server at {self.host} is not a schema registry: {path} has status {response.status_code}; the "
                "host of the connection may need a path, such as /apis/ccompat/v7"
            )
        return body

    @cached_property
    def _client(self) -> Any:
        import httpx

        login, _, password = str(self._config.get("basic.auth.user.info") or "").partition(":")
        token = self._config.get("bearer.auth.token")
        return httpx.Client(
            base_url=self._url,
            verify=self._tls(),
            auth=(login, password) if login else None,
            headers={"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {}),
            timeout=_TIMEOUT_SECONDS,
        )

    def _tls(self) -> ssl.SSLContext:
        config = self._config
        try:
            context = ssl.create_default_context(cafile=config.get("ssl.ca.location"))
            if certificate := config.get("ssl.certificate.location"):
                context.load_cert_chain(
                    certificate, config.get("ssl.key.location"), config.get("ssl.key.password") or ""
                )
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"The certificates of the schema registry at {self.host} cannot be loaded: {type(error).__name__}: "
                f"{error}"
            ) from error
        return context


def check_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the configuration of a registry.

    :raises ConfigurationError: a property is unknown, or the URL is none
    """
    if unknown := sorted(config.keys() - set(CONFIG)):
        raise ConfigurationError(
            f"A schema registry has no property {', '.join(unknown)}; known are {', '.join(CONFIG)}"
        )
    parts = urlsplit(str(config.get("url") or ""))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError("The URL of a schema registry begins with http:// or https:// and a host")
    if parts.username or parts.password:
        raise ConfigurationError("The URL of a schema registry must not hold credentials: use basic.auth.user.info")
    has_secret = config.get("basic.auth.user.info") or config.get("bearer.auth.token")
    if has_secret and parts.scheme == "http" and not is_this_machine(parts.hostname):
        log.warning(
            "The credentials for the schema registry cross the network to %s in plain text: use https", parts.hostname
        )
    return config
