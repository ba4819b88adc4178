"""The clock of the database, in UTC."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from types import SimpleNamespace
from typing import cast

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine.result import SimpleResultMetaData

from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.exceptions import ConfigurationError


class FarServer:
    """A connection to a server at UTC+2, of a dialect for which there is no server here."""

    LOCAL, UTC_TIME = datetime(2024, 5, 6, 12, 0), datetime(2024, 5, 6, 10, 0)

    def __init__(self, dialect: str, zone: tzinfo | None = None) -> None:
        self.dialect = SimpleNamespace(name=dialect)
        self._zone = zone

    def now(self) -> datetime:
        return database_now(cast("Connection", self))

    def exec_driver_sql(self, statement: str) -> sa.IteratorResult[tuple[datetime]]:
        assert "utc" in statement
        return sa.IteratorResult(SimpleResultMetaData(["now"]), iter([(self.UTC_TIME,)]))

    def scalar(self, statement: sa.Executable) -> datetime:
        assert "CURRENT_TIMESTAMP" in str(statement)
        return self.LOCAL.replace(tzinfo=self._zone)


class TestClock:
    @pytest.mark.parametrize("dialect", ["mysql", "mariadb", "mssql"])
    def test_the_database_is_asked_for_utc(self, dialect: str) -> None:
        assert FarServer(dialect).now() == FarServer.UTC_TIME.replace(tzinfo=UTC)

    def test_a_zone_is_converted(self) -> None:
        assert FarServer("oracle", timezone(timedelta(hours=2))).now() == FarServer.UTC_TIME.replace(tzinfo=UTC)

    def test_a_time_without_a_zone_is_not_taken_for_utc(self) -> None:
        with pytest.raises(ConfigurationError, match="'another' report their time without a zone"):
            FarServer("another").now()
