"""`airflow kafka-offsets groups` and `export`: what is stored, without a request to Kafka."""

from __future__ import annotations

import sys
from argparse import Namespace

from airflow_kafka_offsets.cli.command import command, database
from airflow_kafka_offsets.cli.output import show
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.ledger import overview
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.positions import stored_positions
from airflow_kafka_offsets.rewinding.scenarios import write_offsets


@command("groups")
def groups(args: Namespace) -> None:
    """Print every group in the state tables."""
    with database(args) as (engine, tables), engine.connect() as conn:
        rows = overview.groups(conn, tables)
    show(rows, args.output)


@command("export")
def export(args: Namespace) -> None:
    """Print the positions of a group as CSV, for `rewind --from-file`."""
    with database(args) as (engine, tables), engine.connect() as conn:
        cluster_of(conn, tables, args.group)
        positions = stored_positions(conn, tables, args.group)
    if not positions:
        raise ConfigurationError(f"Nothing is stored of group {args.group!r} yet: there is nothing to export")
    sys.stdout.write(write_offsets({tp: position.offset for tp, position in positions.items()}))
