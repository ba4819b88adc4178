"""Schemas from a registry with Confluent's API:
https://docs.confluent.io/platform/current/schema-registry/develop/api.html

The worker asks for the schemas of a subject before Spark starts; tasks ask for those that were registered meanwhile.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from airflow_kafka_offsets.core.addresses import plain_http_host
from airflow_kafka_offsets.core.threads import in_background
from airflow_kafka_offsets.core.warn import warn_once
from airflow_kafka_offsets.exceptions import REGISTRY, ConfigurationError, RegistryUnavailableError, about
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.schema_limits import MOST_BYTES, Budget, check_size

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

# Of each wait for bytes, and of a whole request.
_TIMEOUT_SECONDS = 30.0

_ENCODING = "gzip"

# Of an answer: JSON writes a character as six bytes at most.
_MOST_ANSWER_BYTES = 6 * MOST_BYTES + 1_000_000

# Of the answers that are kept; a character takes up to four.
_MOST_KEPT_BYTES = 16 * MOST_BYTES

# The context of a qualified subject; `:.:` is the default one.
_CONTEXT = re.compile(r"\A:\.[^:]*:")

_DEFAULT_CONTEXT = ":.:"

# Of an answer, outside of texts: of a list of versions, or of a schema with its references.
_MOST_MARKS = 100_000

_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)

# Of a schema, those of its references counted.
_MOST_REFERENCES = 500

# The error codes of the API for a schema, a subject and a version that do not exist.
_NOT_FOUND = {40403, 40401, 40402}


class NotFoundError(LookupError):
    """The registry has no such schema, subject or version."""


class ForbiddenError(ConfigurationError):
    """The registry knows the user, who may not see a schema."""


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

    @property
    def bytes(self) -> int:
        """How many it has, with those of all that it refers to."""
        return len(self.text.encode()) + sum(len(reference.text.encode()) for reference in self.references)


_Version = tuple[str, int]
"""A subject, and the number of a version."""


class _Answer(NamedTuple):
    """What the registry says of a schema.

    :param references: their names, subjects and versions
    """

    id: Any
    type: str
    text: str
    references: Sequence[tuple[str, str, int]]


def _answer_of(found: Mapping[str, Any]) -> _Answer:
    """Return what is kept of an answer.

    :raises SchemaError: it is of another form, or too large
    """
    try:
        given = found.get("references") or ()
        check_size(len(given), 0, _MOST_REFERENCES, "references")
        references = [(part["name"], part["subject"], int(part["version"])) for part in given]
        answer = _Answer(found.get("id"), found.get("schemaType") or "AVRO", found["schema"], references)
        Budget().fetch([answer.type, answer.text, *(text for part in references for text in part[:2])])
    except SchemaError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SchemaError(f"the registry describes it in an unknown way: {type(error).__name__}") from None
    return answer


def context_of(subject: str) -> str:
    """Return the context that qualifies a subject, as it stands before it: `:.eu:` of `:.eu:orders-value`; empty for
    the default one. A context has ids, subjects and versions of its own.
    """
    found = _CONTEXT.match(subject)
    return "" if found is None or found[0] == _DEFAULT_CONTEXT else found[0]


def without_context(subject: str) -> str:
    """Return the name of a subject within its context."""
    return _CONTEXT.sub("", subject)


class SchemaRegistry:
    """Asks a registry. A version, which means the same schema forever, is asked for once.

    :param config: see `CONFIG`; it holds secrets
    :param context: whose ids are meant, see `context_of`; empty for the default one, or for that of the URL
    """

    def __init__(self, config: Mapping[str, Any], context: str = "") -> None:
        self._config = config
        self._context = context
        self._url = str(check_config(config)["url"]).rstrip("/")
        self._answers: dict[_Version, _Answer | str] = {}
        self._versions: dict[_Version, tuple[Any, RegisteredSchema]] = {}
        self._kept_bytes = 0

    @property
    def host(self) -> str:
        """Where the registry is, for messages."""
        return str(urlsplit(self._url).netloc)

    def by_id(self, number: int) -> RegisteredSchema:
        """Return the schema with an id.

        :raises NotFoundError: there is none
        :raises ForbiddenError: this user may not see it
        :raises SchemaError: its references cannot be used
        :raises RegistryUnavailableError: the registry does not answer
        """
        answer = _answer_of(self._get(self._in_context(f"/schemas/ids/{number}")))
        return self._registered(answer, self._context, Budget())

    def _in_context(self, path: str) -> str:
        return f"{path}?subject={quote(self._context, safe='')}" if self._context else path

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject, the latest one last.

        :raises NotFoundError: there is no such subject
        :raises ConfigurationError: the answer is none
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        try:
            return sorted(map(int, self._get(path)))
        except (ArithmeticError, SchemaError, TypeError, ValueError) as error:
            raise self._no_registry(path, f"has no list of versions: {error}") from error

    def versions_of(self, number: int) -> list[tuple[str, int]] | None:
        """Return the subjects and versions that have the schema with an id, without deleted ones; None if the registry
        does not say them.

        :raises RegistryUnavailableError: the registry does not answer
        """
        try:
            found = self._get(self._in_context(f"/schemas/ids/{number}/versions"))
            return [(str(each["subject"]), int(each["version"])) for each in found]
        except NotFoundError:
            return []
        except (ArithmeticError, ConfigurationError, LookupError, SchemaError, TypeError, ValueError):
            return None

    def version(self, subject: str, version: int) -> tuple[int, RegisteredSchema]:
        """Return the id and the schema of a version.

        :raises NotFoundError: there is none
        :raises SchemaError: its references cannot be used
        """
        number, registered = self._version((subject, version), Budget(), ())
        if not isinstance(number, int):
            raise SchemaError("the registry says no id of it")
        return number, registered

    def _version(self, key: _Version, budget: Budget, within: tuple[_Version, ...]) -> tuple[Any, RegisteredSchema]:
        if key in within:
            raise SchemaError("its references lead back to where they began")
        if key not in self._versions:
            if key not in self._answers:
                found = self._get(f"/subjects/{quote(key[0], safe='')}/versions/{key[1]}")
                try:
                    self._keep(key, _answer_of(found))
                except SchemaError as error:
                    self._keep(key, str(error))
            answer = self._answers[key]
            if isinstance(answer, str):
                raise SchemaError(answer)
            budget.fetch([answer.text])
            self._versions[key] = answer.id, self._registered(answer, context_of(key[0]), budget, (*within, key))
        return self._versions[key]

    def _keep(self, key: _Version, answer: _Answer | str) -> None:
        """Keep an answer, in the place of all others if they take too much memory."""
        self._kept_bytes += sys.getsizeof(answer if isinstance(answer, str) else answer.text)
        if self._kept_bytes > _MOST_KEPT_BYTES:
            self._answers.clear()
            self._versions.clear()
            self._kept_bytes = 0
        self._answers[key] = answer

    def close(self) -> None:
        """Close the connections; a request opens them again."""
        if (client := vars(self).pop("_client", None)) is not None:
            client.close()

    def _registered(
        self, answer: _Answer, context: str, budget: Budget, within: tuple[_Version, ...] = ()
    ) -> RegisteredSchema:
        references: dict[Reference, None] = {}
        for name, stated, version in answer.references:
            # A subject without a context is one of the context of the schema that refers to it.
            subject = stated if _CONTEXT.match(stated) else context + stated
            budget.take(len(within), most=_MOST_REFERENCES, what="references")
            try:
                _, referred = self._version((subject, version), budget, within)
            except NotFoundError:
                raise SchemaError(f"it refers to version {version} of subject {subject!r}, which is unknown") from None
            references |= dict.fromkeys([*referred.references, Reference(name, referred.text)])
        Budget().fetch([answer.type, answer.text, *(text for reference in references for text in reference)])
        return RegisteredSchema(answer.type, answer.text, tuple(references))

    @about(REGISTRY)
    def _get(self, path: str) -> Any:
        import httpx

        problem = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_SECONDS * 2 ** (attempt - 1))
            try:
                status, content = self._request(path)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if content is not None:
                return self._answer(path, status, content)
            problem = f"it answers with status {status}"
        raise RegistryUnavailableError(
            f"The schema registry at {self.host} did not answer {path} in {_ATTEMPTS} attempts: {problem}. "
            "Check the host of its connection, and that it runs"
        )

    def _request(self, path: str) -> tuple[int, bytes | None]:
        """Return the status and the content of an answer; None instead of the content where it is worth another try.

        :raises SchemaError: the content is too much, or cannot be decompressed
        :raises httpx.TransportError: there is no answer within the time limit
        """
        import httpx

        def ask() -> tuple[int, bytes | None]:
            with self._client.stream("GET", path) as response:
                status = response.status_code
                return status, None if status >= 500 or status == 429 else _content(response)

        # Another thread, because httpx has a limit for each wait only: a byte of the headers may come now and then.
        try:
            return in_background(ask).result(_TIMEOUT_SECONDS)
        except TimeoutError:
            self.close()
            raise httpx.ReadTimeout(f"the answer takes more than {_TIMEOUT_SECONDS:g} s") from None

    def _answer(self, path: str, status: int, content: bytes) -> Any:
        if status in (401, 403):
            raise (ForbiddenError if status == 403 else ConfigurationError)(
                f"The schema registry at {self.host} refuses {path} with status {status}: check login "
                "and password, or bearer.auth.token, of its connection, and the permissions of its user"
            )
        try:
            body = None if _marks(content) > _MOST_MARKS else json.loads(content)
        except (ValueError, RecursionError):
            body = None
        if status == 404 and isinstance(body, dict) and body.get("error_code") in _NOT_FOUND:
            raise NotFoundError(path)
        if status != 200 or not isinstance(body, (dict, list)):
            raise self._no_registry(path, f"has status {status}")
        return body

    def _no_registry(self, path: str, problem: str) -> ConfigurationError:
        return ConfigurationError(
            f"The server at {self.host} is not a schema registry: {path} {problem}; the host of the connection may "
            "need a path, such as /apis/ccompat/v7"
        )

    @cached_property
    def _client(self) -> Any:
        import httpx

        login, _, password = str(self._config.get("basic.auth.user.info") or "").partition(":")
        token = self._config.get("bearer.auth.token")
        return httpx.Client(
            base_url=self._url,
            verify=self._tls(),
            auth=(login, password) if login else None,
            headers={"Accept": "application/json", "Accept-Encoding": _ENCODING}
            | ({"Authorization": f"Bearer {token}"} if token else {}),
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


def _marks(content: bytes) -> int:
    """Return how many objects of Python's an answer becomes, about: each of its texts, as a schema is, is one."""
    outside = _TEXT.sub(b"", content)
    return sum(map(outside.count, (b"[", b"{", b",")))


def _content(response: Any) -> bytes:
    """Return what a response has, which may be compressed. httpx would decompress all that came at once.

    :raises SchemaError: it is too much, or cannot be decompressed
    """
    encoding = response.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("identity", _ENCODING):
        raise SchemaError(f"the registry answers with the encoding {encoding[:40]!r}, which it was not asked for")
    unzip = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding == _ENCODING else None
    content = bytearray()
    for part in response.iter_raw():
        try:
            content += part if unzip is None else unzip.decompress(part, _MOST_ANSWER_BYTES + 1)
        except zlib.error:
            raise SchemaError(f"the registry answers with what is no {_ENCODING}") from None
        if len(content) > _MOST_ANSWER_BYTES:
            raise SchemaError(f"the registry answers with more than {_MOST_ANSWER_BYTES:,} bytes")
    return bytes(content)


def check_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the configuration of a registry.

    :raises ConfigurationError: a property is unknown, or the URL is none
    """
    if unknown := sorted(config.keys() - set(CONFIG)):
        raise ConfigurationError(
            f"A schema registry has no property {', '.join(unknown)}; known are {', '.join(CONFIG)}"
        )
    try:
        parts = urlsplit(str(config.get("url") or ""))
    except ValueError:
        # Its message may have a part of the URL.
        raise ConfigurationError("The URL of the schema registry cannot be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError("The URL of a schema registry begins with http:// or https:// and a host")
    if parts.username or parts.password:
        raise ConfigurationError("The URL of a schema registry must not hold credentials: use basic.auth.user.info")
    has_secret = config.get("basic.auth.user.info") or config.get("bearer.auth.token")
    if has_secret and (host := plain_http_host(str(config["url"]))):
        warn_once(log, f"The credentials for the schema registry cross the network to {host} in plain text: use https")
    return config
