"""The package's one use of names that are not public in PyMySQL: a statement whose rows come from memory.

PyMySQL's public way to `LOAD DATA LOCAL` reads a file of this machine, and any file that the server asks for, if the
connection allows it. Here the server gets the rows of the statement and no file. `tests/database/test_pymysql_protocol`
fails if PyMySQL changes what is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pymysql.connections import MySQLResult
from pymysql.constants import COMMAND

# Less than the smallest `max_allowed_packet` of those who keep the default of an old version, 1 MiB.
_PACKET_BYTES = 256 << 10


def run(connection: Any, statement: str, name: bytes = b"", lines: Iterable[bytes] = ()) -> MySQLResult:
    """Run a statement, and return the driver's result.

    :param connection: the driver's
    :param name: what the statement names as its file
    :param lines: what the server gets if it asks for that file
    :raises RuntimeError: the server asks for another file
    """
    result = ResultOfRows(connection, name, lines)
    connection._execute_command(COMMAND.COM_QUERY, statement)
    result.read()
    return result


class ResultOfRows(MySQLResult):  # type: ignore[misc]  # the driver has no annotations
    """The result of a statement, which sends rows instead of a file."""

    def __init__(self, connection: Any, name: bytes, lines: Iterable[bytes]) -> None:
        super().__init__(connection)
        self._name = name
        self._lines = lines

    def _read_load_local_packet(self, first_packet: Any) -> None:
        connection = self.connection
        asked = first_packet.get_all_data()[1:]
        if not self._name or asked != self._name:
            connection._force_close()
            raise RuntimeError(
                f"The server asked for the file {asked.decode(errors='backslashreplace')!r} of this machine, which no "
                "statement names: the request was refused, and the connection closed. Find out whether this is your "
                "database server"
            )
        try:
            for line in self._lines:
                for start in range(0, len(line), _PACKET_BYTES):
                    connection.write_packet(line[start : start + _PACKET_BYTES])
        except BaseException:
            # The server's answer to the rows before would be taken for that to the next statement.
            connection._force_close()
            raise
        connection.write_packet(b"")
        self._read_ok_packet(connection._read_packet())
