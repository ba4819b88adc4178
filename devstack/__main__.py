"""Commands of the development stack."""

import argparse
import sys

from devstack.java import find_java
from devstack.kafka_jars import KAFKA_JARS
from devstack.mariadb_programs import fetch_programs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m devstack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("java", help="print the path of Java, or what to install")
    commands.add_parser("jars", help="fetch Kafka's jars if they are missing")
    commands.add_parser("mariadb", help="fetch MariaDB if this machine has none, or print why it cannot be had")
    commands.add_parser("quick-java", help="make a JAVA_HOME whose JVMs start quickly, for tests")
    orders = commands.add_parser("orders", help="produce orders with the ids after those in the topic")
    orders.add_argument("bootstrap_servers")
    orders.add_argument("topic")
    orders.add_argument("count", type=int)
    arguments = parser.parse_args()
    try:
        if arguments.command == "java":
            print(find_java())
        elif arguments.command == "jars":
            KAFKA_JARS.fetched()
        elif arguments.command == "mariadb":
            fetch_programs()
        elif arguments.command == "quick-java":
            from devstack.quick_java import make_quick_java

            make_quick_java()
        else:
            from devstack.orders import produce_orders
            from devstack.topics import end_offsets

            present = sum(end_offsets(arguments.bootstrap_servers, arguments.topic).values())
            added = produce_orders(arguments.bootstrap_servers, arguments.topic, arguments.count, start_id=present)
            print(f"{added} orders added to {arguments.topic}, ids {present} to {present + added - 1}")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
