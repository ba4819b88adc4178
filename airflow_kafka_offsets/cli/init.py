"""`airflow kafka-offsets init`."""

from __future__ import annotations

import sys
from argparse import Namespace

from airflow_kafka_offsets import ledger
from airflow_kafka_offsets.cli.command import command, database
from airflow_kafka_offsets.cli.output import note


@command("init")
def init(args: Namespace) -> None:
    """Create the state tables, or print how."""
    with database(args) as (engine, tables):
        if args.show_sql:
            sys.stdout.write(tables.ddl(engine.dialect))
            return
        created = ledger.init(engine, tables)
    told = "were created" if created else "are there already, and fit this version,"
    note(f"The state tables {told} in database {engine.url.database!r}")
