"""The commands that move a group, and what they leave of it."""

from __future__ import annotations

from tests.support.command_line import CommandLine, Done
from tests.support.loads import Loader, positions, rows


class Rewinds:
    """A group `loader` that has loaded 100 of 200 records, and the commands that move it."""

    def __init__(self, loader: Loader, airflow: CommandLine, topic: str) -> None:
        self.loader = loader
        self.airflow = airflow
        self.topic = topic

    def __call__(self, command: str, *arguments: str) -> Done:
        kafka = () if command in ("abandon", "export", "history") else ("--kafka-conn-id", "kafka_default")
        change = ["--yes"] if "--execute" in arguments else []
        if change and "--reason" not in arguments:
            change += ["--reason", "a test"]
        return self.airflow(command, "loader", "--conn-id", "warehouse", *kafka, *arguments, *change)

    def new_offsets(self, *arguments: str) -> dict[int, int | None]:
        """What a rewind previews, by partition."""
        done = self("rewind", *arguments, "--output", "json")
        assert done.status == 0, done.stderr
        return {one["partition"]: one["new_offset"] for one in done.json["partitions"]}

    @property
    def position(self) -> int:
        return positions(self.loader.engine)[self.topic, 0]


def assert_rows_once(loader: Loader, count: int) -> None:
    loaded = rows(loader.engine, "SELECT _kafka_offset FROM target ORDER BY 1")
    assert [offset for (offset,) in loaded] == list(range(count))
