"""`airflow kafka-offsets init`."""

from __future__ import annotations

import sys
from argparse import Namespace

from airflow.sdk.exceptions import AirflowException
from sqlalchemy.exc import SQLAlchemyError

from airflow_kafka_offsets import ledger
from airflow_kafka_offsets.exceptions import KafkaOffsetsError
from airflow_kafka_offsets.hooks.database import database_engine


def init(args: Namespace) -> None:
    """Create the state tables, or print how.

    Data goes to standard output, notes to standard error; every failure ends with a status that is not zero.
    """
    tables = ledger.Tables(args.schema, args.prefix)
    try:
        engine = database_engine(args.conn_id)
        if args.show_sql:
            sys.stdout.write(tables.ddl(engine.dialect))
            return
        created = ledger.init(engine, tables)
        engine.dispose()
    except (AirflowException, KafkaOffsetsError, SQLAlchemyError) as error:
        raise SystemExit(f"kafka-offsets init: {error}") from error
    told = "were created" if created else "are there already, and fit this version,"
    sys.stderr.write(f"The state tables {told} in database {engine.url.database!r}\n")
