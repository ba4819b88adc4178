"""`airflow kafka-offsets init`."""

from __future__ import annotations

import sys
from argparse import Namespace

from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.cli.command import command, database
from airflow_kafka_offsets.cli.output import note
from airflow_kafka_offsets.database.errors import database_message, is_outage
from airflow_kafka_offsets.ledger import install
from airflow_kafka_offsets.ledger.tables import SCHEMA_VERSION


@command("init")
def init(args: Namespace) -> None:
    """Create or upgrade the state tables, or print how."""
    with database(args) as (engine, tables):
        if args.show_sql:
            try:
                text = install.statements(engine, tables)
            except DBAPIError as error:
                if not is_outage(error):
                    raise
                note(
                    f"The database cannot be asked: {database_message(error)}. These are the statements for one without state tables"
                )
                text = tables.ddl(engine.dialect)
            sys.stdout.write(text)
            if not text:
                note(f"The state tables have schema version {SCHEMA_VERSION} already: there is nothing to run")
            return
        with engine.connect() as conn:
            before = install.stored_version(conn, tables)
        changed = install.initialize(engine, tables)
    if not changed:
        outcome = "are there already, and fit this version,"
    elif before is None:
        outcome = "were created"
    else:
        outcome = f"were upgraded from schema version {before} to {SCHEMA_VERSION}"
    note(f"The state tables {outcome} in database {engine.url.database!r}")
