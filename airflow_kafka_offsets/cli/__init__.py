"""`airflow kafka-offsets …`. Declared here; what a command does is imported when it runs."""

from __future__ import annotations

from typing import Any


def get_commands() -> list[Any]:
    """The command group that Airflow's command line adds."""
    from airflow.cli.cli_config import ActionCommand, GroupCommand, lazy_load_command
    from airflow.cli.cli_config import Arg as AirflowArg

    argument: Any = AirflowArg  # Airflow does not annotate it

    conn_id = argument(("--conn-id",), required=True, help="the Airflow connection of the database")
    schema = argument(("--schema",), default=None, help="the database schema of the state tables")
    prefix = argument(("--prefix",), default="", help="put before the names of the state tables")
    show_sql = argument(("--show-sql",), action="store_true", help="print the statements instead of running them")
    return [
        GroupCommand(
            name="kafka-offsets",
            help="Offsets and batches of Kafka loads",
            subcommands=(
                ActionCommand(
                    name="init",
                    help="Create the state tables",
                    description=(
                        "Create the tables that hold offsets and batch history in a database. Safe to run again. "
                        "With --show-sql the statements go to standard output, for somebody who may run DDL."
                    ),
                    epilog="Example: airflow kafka-offsets init --conn-id warehouse --show-sql",
                    func=lazy_load_command("airflow_kafka_offsets.cli.init.init"),
                    args=(conn_id, schema, prefix, show_sql),
                ),
            ),
        )
    ]
