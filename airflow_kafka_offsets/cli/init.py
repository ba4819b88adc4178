"""`airflow kafka-offsets init`: the state tables, created, upgraded, or printed as SQL."""

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
    """Create or upgrade the state tables, or print the statements."""
    with database(args) as (engine, tables):
        if args.show_sql:
            try:
                text = install.statements(engine, tables)
            except DBAPIError as error:
                if not is_outage(error):
                    raise
                note(
                    f"The database cannot be read: {database_message(error)}. These are the statements for one without state tables"
                )
                text = tables.ddl(engine.dialect)
            sys.stdout.write(text)
            if not text:
                note(f"The state tables already have schema version {SCHEMA_VERSION}: there is nothing to run")
            return
        with engine.connect() as conn:
            before = install.stored_version(conn, tables)
        changed = install.initialize(engine, tables)
    if not changed:
        outcome = "exist already, in the version of this package,"
    elif before is None:
        outcome = "were created"
    else:
        outcome = f"were upgraded from schema version {before} to {SCHEMA_VERSION}"
    note(f"The state tables {outcome} in database {engine.url.database!r}")
