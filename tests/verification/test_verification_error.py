"""The error of a verification."""

import pickle

import pytest

from airflow_kafka_offsets.exceptions import VerificationError, Violation


@pytest.mark.parametrize(
    ("count", "end"),
    [(1, "one."), (2, "one. There is 1 other violation."), (3, "one. There are 2 other violations.")],
)
def test_the_error_names_the_first_violation_and_counts_the_others(count: int, end: str) -> None:
    violations = (Violation("one", "t", 3, 7, 2), Violation("two"), Violation("three"))[:count]

    error: VerificationError = pickle.loads(pickle.dumps(VerificationError("loader", violations)))

    assert str(error) == f"The coverage of group 'loader' is violated: {end}"
    assert (error.topic, error.partition, error.offset, error.batch_id) == ("t", 3, 7, 2)
    assert (error.group_id, error.violations, error.retriable) == ("loader", violations, False)


def test_the_error_counts_more_violations_than_it_carries() -> None:
    error: VerificationError = pickle.loads(pickle.dumps(VerificationError("loader", (Violation("one"),), 200_000)))

    assert str(error).endswith("one. There are 199,999 other violations.")
    assert (error.count, len(error.violations)) == (200_000, 1)
