"""`airflow kafka-offsets mirror`: stored positions, committed to a consumer group in Kafka."""

from __future__ import annotations

from argparse import Namespace

from airflow_kafka_offsets.cli.command import cluster, command, database
from airflow_kafka_offsets.cli.output import note, show
from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.exceptions import NoPositionError
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.positions import read_positions
from airflow_kafka_offsets.loading.mirror import mirror_stored


@command("mirror")
def mirror(args: Namespace) -> None:
    """Commit the positions of a group to a consumer group in Kafka.

    :raises MirrorError: the consumer group does not show every position
    :raises NoPositionError: nothing is stored of the group
    """
    kafka = cluster(args)
    with database(args) as (engine, tables):
        with engine.connect() as conn:
            loaded_from = cluster_of(conn, tables, args.group)
        check_cluster(args.group, loaded_from, kafka.cluster_id())
        partitions = mirror_stored(kafka, args.to, lambda: read_positions(engine, tables, args.group))
    if not partitions:
        raise NoPositionError(f"Nothing is stored of group {args.group!r} yet: there is nothing to mirror")
    show([{"group": args.group, "kafka_group": args.to, "partitions": partitions}], args.output)
    note(f"Consumer group {args.to!r} in Kafka shows the positions of {count(partitions, 'partition')}")
