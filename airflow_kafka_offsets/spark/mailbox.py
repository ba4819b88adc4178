"""A mailbox: how a worker and a Spark driver on another machine talk, through a directory in the staging location.

Each side writes numbered objects, `worker-00000001` and `driver-00000001` on, each of them once, and asks for the next
one of the other side by its name, after pauses that grow. Nothing is listed, and nobody listens on a port.

Jobs hold secrets, and a driver executes what a job says. So messages are sealed for the other side alone: each side
makes a key pair when it starts, and writes the public key as its object 0, authenticated by a token that the worker
gives the application as an argument (X25519, HKDF with the token, ChaCha20-Poly1305; the number of a message is its
nonce). Who may only read and write the staging location learns nothing, and cannot pose as either side, nor repeat,
swap or change messages. Who also knows the token can pose as either side until both have met.

A side that has written nothing for `DEAD_SECONDS` is taken for dead: each writes at least every `HEARTBEAT_SECONDS`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from threading import Condition, Event, Lock
from typing import TYPE_CHECKING

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.staging.directory import StagingDirectory

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

HEARTBEAT_SECONDS, DEAD_SECONDS = 15.0, 120.0

# A pause is the time since the last message, divided by this, and within these bounds, in seconds.
_WAITED_PER_PAUSE, _SHORTEST_PAUSE, _LONGEST_PAUSE = 32, 0.02, 2.0

# Two of the longest pauses, and as much for a slow store.
_SETTLE_SECONDS = 8.0

_WORKER, _DRIVER = "worker", "driver"

_KEY_BYTES = 32

# A job has every slice; a driver sends a few lines.
_MOST_CHARACTERS = {_WORKER: 512 << 20, _DRIVER: 4 << 20}

_HEARTBEAT = ""

_NO_LIBRARY = "no cryptography"

# hdfs-native raises a RuntimeError for what the NameNode refuses, as in safe mode.
_STORE_FAILED = (OSError, RuntimeError)


class MailboxEndedError(StagingError):
    """The other side is gone."""


class Mailbox:
    """One side of a mailbox.

    One thread reads `messages`, which also keeps the mailbox alive. Any thread may send.

    :param directory: of this mailbox alone
    :param token: what the worker gave the application, and nobody else
    """

    def __init__(self, directory: StagingDirectory, own: str, token: str) -> None:
        self._directory = directory
        self._own, self._other = own, _DRIVER if own == _WORKER else _WORKER
        self._token = token.encode()
        self._key = _new_key()
        self._ciphers: dict[str, ChaCha20Poly1305] = {}
        self._sealed: deque[tuple[str, str]] = deque()
        self._sending, self._closed = Lock(), Event()
        self._reading = Condition()
        self._empty_reads = 0
        self._sent = self._received = 0
        self._written = self._heard = self._looked = time.monotonic()

    @classmethod
    def of_worker(cls, directory: StagingDirectory, token: str) -> Mailbox:
        """Make a mailbox in a new directory."""
        mailbox = cls(directory, _WORKER, token)
        mailbox._write_key(b"")
        return mailbox

    @classmethod
    def of_driver(cls, directory: StagingDirectory, token: str) -> Mailbox:
        """Open the mailbox that a worker has made.

        :raises ConfigurationError: this Python has no library to open it with; the worker learns of it
        :raises StagingError: the mailbox is not that of this application
        """
        try:
            mailbox = cls(directory, _DRIVER, token)
        except ImportError as error:
            directory.write_text(_name(_DRIVER, 0), _NO_LIBRARY)
            raise ConfigurationError("Install cryptography in the Python of Spark's driver") from error
        if directory.holds(_name(_DRIVER, 0)):
            raise StagingError(f"{directory.uri} has a driver already: an application is not started twice")
        workers = mailbox._read_key(b"")
        if workers is None:
            raise StagingError(f"{directory.uri} has no key of a worker: it has ended, or its files are not shared")
        mailbox._write_key(workers)
        mailbox._agree(workers, workers, mailbox._public_key)
        return mailbox

    def meet(self) -> bool:
        """Wait until the driver has come; return False where the mailbox is closed before. Called by the worker.

        :raises ConfigurationError: the driver's Python lacks a library
        :raises StagingError: what is there is not the driver's
        """
        drivers: bytes | None = None
        while not self._closed.is_set():
            # A store that fails may answer later; without it, the driver ends, and the application with it.
            with suppress(*_STORE_FAILED):
                drivers = self._read_key(self._public_key)
            if drivers is not None:
                self._agree(drivers, self._public_key, drivers)
                self._heard = time.monotonic()
                return True
            self._pause()
        return False

    def send(self, message: str) -> None:
        """Send a message that is not empty. Where the store fails, it is written later."""
        with self._sending:
            self._sent += 1
            name = _name(self._own, self._sent)
            sealed = self._ciphers[self._own].encrypt(_nonce(self._sent), message.encode(), name.encode())
            # A message is sealed once: another one with its number would give both away.
            self._sealed.append((name, base64.b64encode(sealed).decode()))
        self._write()

    def messages(self) -> Iterator[str]:
        """Wait for each message of the other side, until `close` is called.

        :raises MailboxEndedError: the other side is gone
        :raises StagingError: somebody else has written into the mailbox
        """
        trouble: Exception | None = None
        while not self._closed.is_set():
            try:
                message = self._read()
                trouble = None
            except _STORE_FAILED as error:
                message, trouble = None, error
            if message is not None:
                self._heard = time.monotonic()
                if message != _HEARTBEAT:
                    yield message
                continue
            if trouble is None:
                with self._reading:
                    self._empty_reads += 1
                    self._reading.notify_all()
            if (silent := time.monotonic() - self._heard) > DEAD_SECONDS:
                because = f": {shortened(str(trouble))}" if trouble is not None else ""
                raise MailboxEndedError(f"The {self._other} gave no sign of life for {silent:.0f} s{because}")
            self._stay_alive()
            self._pause()

    def settle(self) -> None:
        """Wait until the messages are received that are written now; not longer than a store takes."""
        with self._reading:
            # A read that is under way may have begun before the last message was there.
            enough = self._empty_reads + 2
            self._reading.wait_for(lambda: self._empty_reads >= enough or self._closed.is_set(), _SETTLE_SECONDS)

    def close(self) -> None:
        """End the thread that reads messages."""
        self._closed.set()
        with self._reading:
            self._reading.notify_all()

    @property
    def has_met(self) -> bool:
        """Whether both sides have come, so that messages can be sent."""
        return bool(self._ciphers)

    @property
    def _public_key(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def _pause(self) -> None:
        waited = time.monotonic() - self._heard
        self._closed.wait(min(max(waited / _WAITED_PER_PAUSE, _SHORTEST_PAUSE), _LONGEST_PAUSE))

    def _stay_alive(self) -> None:
        """Write what is not written yet, or a sign of life if it is time for one.

        :raises MailboxEndedError: the mailbox was removed
        """
        # Also where this side writes all the time: an object store takes what nobody will read.
        if time.monotonic() - self._looked > HEARTBEAT_SECONDS:
            self._looked = time.monotonic()
            with suppress(*_STORE_FAILED):
                if not self._directory.holds(_name(_WORKER, 0)):
                    raise MailboxEndedError(f"{self._directory.uri} was removed")
        if self._sealed:
            self._write()
        elif time.monotonic() - self._written > HEARTBEAT_SECONDS:
            self.send(_HEARTBEAT)

    def _write(self) -> None:
        with self._sending:
            while self._sealed:
                name, text = self._sealed[0]
                try:
                    self._directory.write_text(name, text)
                except _STORE_FAILED:
                    if not self._is_written(name, text):
                        return  # the thread that reads tries again
                self._sealed.popleft()
                self._written = time.monotonic()

    def _is_written(self, name: str, text: str) -> bool:
        """Return whether only the answer of the store was lost: HDFS renames no file to one that exists."""
        with suppress(*_STORE_FAILED):
            return self._directory.holds(name, len(text))
        return False

    def _read(self) -> str | None:
        """Return the next message, if it is there."""
        from cryptography.exceptions import InvalidTag

        name = _name(self._other, self._received + 1)
        if (text := self._text(name)) is None:
            return None
        try:
            sealed = base64.b64decode(text, validate=True)
            message = self._ciphers[self._other].decrypt(_nonce(self._received + 1), sealed, name.encode()).decode()
        except (ValueError, InvalidTag) as error:
            raise self._strange(name) from error
        self._received += 1
        return message

    def _text(self, name: str) -> str | None:
        try:
            # Azure shows an object that is being written as an empty one.
            return self._directory.read_text(name, _MOST_CHARACTERS[self._other]) or None
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self._strange(name) from error

    def _strange(self, name: str) -> StagingError:
        return StagingError(
            f"{name} in {self._directory.uri} is not from the {self._other} of this application: see who else may "
            "write into Staging.dir"
        )

    def _write_key(self, other_key: bytes) -> None:
        """Write the public key of this side, with the proof that this side knows the token."""
        own_key = self._public_key
        text = base64.b64encode(own_key + self._proof(self._own, other_key + own_key)).decode()
        self._directory.write_text(_name(self._own, 0), text)

    def _read_key(self, own_key: bytes) -> bytes | None:
        """Return the public key of the other side, if it is there."""
        name = _name(self._other, 0)
        if (text := self._text(name)) is None:
            return None
        if text == _NO_LIBRARY:
            raise ConfigurationError(
                "The Python of Spark's driver has no module 'cryptography', with which jobs are sealed: install it "
                "where the driver runs"
            )
        try:
            both = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise self._strange(name) from error
        key, proof = both[:_KEY_BYTES], both[_KEY_BYTES:]
        if not hmac.compare_digest(proof, self._proof(self._other, own_key + key)):
            raise self._strange(name)
        return key

    def _proof(self, side: str, keys: bytes) -> bytes:
        return hmac.digest(self._token, side.encode() + keys, hashlib.sha256)

    def _agree(self, other_key: bytes, workers: bytes, drivers: bytes) -> None:
        """Derive the keys of both directions."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        shared = self._key.exchange(X25519PublicKey.from_public_bytes(other_key))
        info = b"airflow-kafka-offsets mailbox" + workers + drivers
        keys = HKDF(SHA256(), 2 * _KEY_BYTES, self._token, info).derive(shared)
        self._ciphers = {
            _WORKER: ChaCha20Poly1305(keys[:_KEY_BYTES]),
            _DRIVER: ChaCha20Poly1305(keys[_KEY_BYTES:]),
        }


def _new_key() -> X25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate()


def _name(side: str, number: int) -> str:
    return f"{side}-{number:08}"


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")
