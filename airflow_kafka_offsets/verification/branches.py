"""Proves the rows of each of several sinks by itself: history, positions and dead letters are the same for all."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.exceptions import Violation
from airflow_kafka_offsets.sinks.target_rows import TargetRows
from airflow_kafka_offsets.verification.batch_facts import Snapshot, batch_facts
from airflow_kafka_offsets.verification.facts import BatchFacts, Findings
from airflow_kafka_offsets.verification.proof import prove

log = logging.getLogger(__name__)


def prove_branches(
    snapshot: Snapshot, rows: TargetRows, positions: Mapping[TopicPartition, Position], *, replaces_rows: bool
) -> Findings:
    """Prove history and positions, and that each branch has as many rows of each batch as were written.

    Of a branch without a transform, also that each row of a batch is of another offset: then none is missing, and none
    is there twice.

    :return: the findings of one branch, with the rows and the violations of all
    """
    found: list[Findings] = []
    for name, of_branch in rows.branches.items():
        part = Branch(snapshot._replace(rows=of_branch), name)
        findings = prove(part.batches(), positions, target=name, detail=of_branch.detail, replaces_rows=replaces_rows)
        findings.violations += part.repeated
        if of_branch.detail == "nothing":
            log.warning("%s: the rows of %r were not looked at", of_branch.limit, name)
        else:
            log.info("%r has %s, the number that was written of each batch", name, count(findings.rows, "row"))
        found.append(findings)
    violations = list(dict.fromkeys(violation for findings in found for violation in findings.violations))
    return replace(found[0], rows=sum(findings.rows for findings in found), violations=violations)


class Branch:
    """The history as that of one branch.

    :ivar repeated: batches that have an offset in several rows, though each record is one row
    """

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self.repeated: list[Violation] = []
        self._snapshot, self._name = snapshot, name

    def batches(self) -> Iterator[BatchFacts]:
        """Yield each batch as one of the branch."""
        for batch in batch_facts(self._snapshot):
            output = batch.outputs.get(self._name)
            if output is not None and output.is_each:
                self.repeated += self._repeated(batch)
            yield batch.of_branch(self._snapshot.target, self._name)

    def _repeated(self, batch: BatchFacts) -> Iterator[Violation]:
        for counted in batch.rows:
            if counted.topic_partition is not None and counted.distinct != counted.count:
                text = (
                    f"{counted.topic_partition}: table {self._name!r} holds {counted.count:,} rows of batch "
                    f"{batch.batch_id}, but only {counted.distinct:,} different offsets: records are duplicated"
                )
                yield Violation(text, counted.topic, counted.partition, counted.first, batch.batch_id)
