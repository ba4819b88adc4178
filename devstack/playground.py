"""``make airflow``: Airflow in a browser, with a broker, a Postgres, orders to load and the example DAGs that need no
other server.

It stops on Ctrl-C, SIGTERM or SIGHUP and removes its data. After a SIGKILL the supervisors do the same.
"""

import contextlib
import json
import math
import re
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from devstack.airflow import USER, AirflowHome
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.paths import REPOSITORY
from devstack.postgres import PostgresServer
from devstack.process import wait_until

TOPIC = "orders"
ORDERS = 100_000
DATABASE = "warehouse"

READY = """
Airflow is ready:  {url}
                   user {user}, password {password}

There are {orders:,} orders in the topic {topic} of the broker {broker}, and an empty database:
{database}
The example DAGs use them by the connections kafka_default, spark_default and warehouse. Those that need
more, such as a schema registry, MariaDB or an object store, are left out.

Try this: switch load_orders on, trigger it, and look at its task's log. Then add orders, and trigger it again:

    {python} -m devstack orders {broker} {topic} 50000

The commands of the tutorial run in another terminal, with the table orders. Its sections Install, Connect and
Write the DAG are done: load_orders is there.

    . {environment}
    kafka-offsets doctor --conn-id warehouse --topic {topic} --table orders
    kafka-offsets groups --conn-id warehouse

Ctrl-C stops everything.
"""


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _request_stop(_number: int, _frame: FrameType | None) -> None:
    # Only once: a second Ctrl-C would interrupt the clean-up.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    print("stopping", flush=True)
    sys.exit(0)


def connections(broker: KafkaBroker, postgres: PostgresServer) -> dict[str, str]:
    """Return the three connections of the example DAGs, as Airflow reads them from the environment."""
    return {
        "kafka_default": json.dumps(
            {"conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": broker.bootstrap_servers})}
        ),
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[*]"}),
        "warehouse": postgres.airflow_uri(DATABASE),
    }


def runnable(folder: Path) -> Path:
    """Copy the example DAGs that need no other connections into a folder, and what these import."""
    for file in (REPOSITORY / "example_dags").glob("*.py"):
        if not {*re.findall(r'conn_id="(\w+)"', file.read_text())} - {"kafka_default", "spark_default", DATABASE}:
            shutil.copyfile(file, folder / file.name)
    return folder


def write_environment(airflow: AirflowHome) -> Path:
    """Write a file that makes a shell use this Airflow and its connections."""
    path = airflow.directory / "environment.sh"
    path.touch(0o600)
    named = {name: value for name, value in airflow.env.items() if name.startswith(("AIRFLOW_", "PATH", "SPARK_"))}
    path.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in named.items()))
    return path


def run() -> None:
    """Start all servers, print how to use them, and wait for a stop signal."""
    with contextlib.ExitStack() as stack:
        print("starting Kafka and Postgres", flush=True)
        broker = stack.enter_context(KafkaBroker())
        postgres = stack.enter_context(PostgresServer())
        url = postgres.create_database(DATABASE)
        orders = produce_orders(broker.bootstrap_servers, TOPIC, ORDERS)
        print("starting Airflow", flush=True)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="devstack-dags-"))
        airflow = stack.enter_context(
            AirflowHome(
                dags=runnable(Path(folder)),
                connections=connections(broker, postgres),
                config={"core.dags_are_paused_at_creation": "True"},
            )
        )
        airflow.start()
        print(
            READY.format(
                url=airflow.url,
                user=USER,
                password=airflow.password,
                orders=orders,
                topic=TOPIC,
                broker=broker.bootstrap_servers,
                database=url,
                python=_short(Path(sys.executable)),
                environment=write_environment(airflow),
            ),
            flush=True,
        )
        servers = [broker.process, postgres.process, *airflow.components]
        ended = wait_until(lambda: [s for s in servers if not s.running], math.inf, "the end of a server", interval=1)
        raise RuntimeError("\n".join(f"{server.name} ended\n{server.log_tail()}" for server in ended))


def main() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, _request_stop)
    run()


def _short(path: Path) -> Path:
    return path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path


if __name__ == "__main__":
    main()
