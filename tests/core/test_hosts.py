"""Which hosts are this machine."""

import pytest

from airflow_kafka_offsets.core.hosts import is_this_machine


@pytest.mark.parametrize(
    "host", [None, "", "localhost", "LocalHost.", "127.0.0.1", "127.1.2.3", "::1", "/var/run/postgresql", "@abstract"]
)
def test_these_are_this_machine(host: str | None) -> None:
    assert is_this_machine(host)


@pytest.mark.parametrize(
    "host", ["kafka", "localhost.example.org", "10.0.0.1", "0.0.0.0", "::", "fe80::1", "127.0.0.1.example.org"]
)
def test_these_are_not_known_to_be(host: str) -> None:
    assert not is_this_machine(host)
