"""What an error of the database means: a reason of its own, or one in the statement."""

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, InternalError, OperationalError

from airflow_kafka_offsets.database.errors import is_outage, is_refused_login
from tests.support.transactions import DriverError, Output


class TestOutage:
    """A reason of the database's own, or one in the statement."""

    def outage(self, engine: Engine, statement: str) -> bool:
        with engine.connect() as conn, pytest.raises(DBAPIError) as raised:
            conn.exec_driver_sql(statement)
        return is_outage(raised.value)

    def test_a_wrong_statement_is_none(self, output: Output) -> None:
        assert not self.outage(output.engine, "SELECT * FROM nowhere")

    def test_missing_rights_are_none(self, output: Output) -> None:
        engine = sa.create_engine(f"sqlite:///file:{output.path}?mode=ro&uri=true")
        assert not self.outage(engine, "INSERT INTO output VALUES (1, '')")
        engine.dispose()

    def test_a_broken_connection_is_one(self) -> None:
        assert is_outage(DBAPIError("INSERT", None, DriverError("23505"), connection_invalidated=True))

    @pytest.mark.parametrize(
        ("sqlstate", "expected"),
        [
            ("53100", True),  # disk full
            ("25006", True),  # read-only, as after a failover
            ("57014", True),  # statement timeout
            ("55P03", True),  # lock timeout
            ("23505", False),  # a duplicate
            ("54000", False),  # too long for an index
            ("P0001", False),  # a trigger's own exception
            ("42501", False),  # rights
            ("28P01", False),  # a wrong password
            ("3D000", False),  # no such database
        ],
    )
    def test_the_sqlstate_says_which(self, sqlstate: str, expected: bool) -> None:
        assert is_outage(OperationalError("INSERT", None, DriverError(sqlstate))) is expected

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            ('FATAL:  password authentication failed for user "loader"', False),
            ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "loader", database "shop", no encryption', False),
            ('FATAL:  role "loader" is not permitted to log in', False),
            ("fe_sendauth: no password supplied", False),
            ("server does not support SSL, but SSL was required", False),
            ("SSL error: certificate verify failed", False),
            ("Connection refused", True),
            ("FATAL:  sorry, too many clients already", True),
            ("FATAL:  the database system is starting up", True),
        ],
    )
    def test_a_connection_that_fails_has_no_sqlstate(self, answer: str, expected: bool) -> None:
        failed = Exception(f'connection failed: connection to server at "db", port 5432 failed: {answer}')
        assert is_outage(OperationalError(None, None, failed)) is expected
        # The same text in a statement's error is something else.
        assert is_outage(OperationalError("INSERT", None, failed))

    @pytest.mark.parametrize(
        ("number", "expected"),
        [
            (1045, False),  # a wrong password
            (1049, False),  # no such database
            (2003, True),  # no connection
            (1205, True),  # lock wait timeout
            (1290, True),  # read-only, as after a failover
            (1114, True),  # the table is full
            (1927, True),  # the connection was killed
            (1142, False),  # rights
            (4025, False),  # a CHECK of MariaDB
            (1644, False),  # a trigger's own exception
            (1062, False),  # a duplicate
        ],
    )
    def test_mysql_has_numbers(self, number: int, expected: bool) -> None:
        assert is_outage(OperationalError(None, None, Exception(number, "…"))) is expected

    @pytest.mark.parametrize("number", [1044, 1049])
    def test_a_statement_may_name_another_database_of_mysql(self, number: int) -> None:
        assert is_refused_login(OperationalError(None, None, Exception(number, "…")))
        assert not is_refused_login(OperationalError("INSERT", None, Exception(number, "…")))

    @pytest.mark.parametrize(
        ("kind", "expected"), [(OperationalError, True), (InternalError, True), (IntegrityError, False)]
    )
    def test_the_class_says_it_where_a_driver_has_no_sqlstate(self, kind: type[DBAPIError], expected: bool) -> None:
        assert is_outage(kind("INSERT", None, Exception(1021, "Disk full"))) is expected
