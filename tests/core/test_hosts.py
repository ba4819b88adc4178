"""Which hosts are this machine, and how addresses are read."""

import pytest

from airflow_kafka_offsets.core.addresses import address, is_this_machine, plain_http_host


@pytest.mark.parametrize(
    "host", [None, "", "localhost", "LocalHost.", "127.0.0.1", "127.1.2.3", "::1", "/var/run/postgresql", "@abstract"]
)
def test_local_hosts_are_recognised(host: str | None) -> None:
    assert is_this_machine(host)


@pytest.mark.parametrize(
    "host", ["kafka", "localhost.example.org", "10.0.0.1", "0.0.0.0", "::", "fe80::1", "127.0.0.1.example.org"]
)
def test_other_hosts_are_not_local(host: str) -> None:
    assert not is_this_machine(host)


@pytest.mark.parametrize(
    ("server", "host", "port"),
    [
        ("kafka:9093", "kafka", 9093),
        (" SASL_SSL://kafka.example.org:9094", "kafka.example.org", 9094),
        ("kafka", "kafka", 9092),
        ("[::1]:9093", "::1", 9093),
        ("[fe80::1]", "fe80::1", 9092),
    ],
)
def test_an_address_without_a_port_is_that_of_kafka(server: str, host: str, port: int) -> None:
    assert address(server) == (host, port)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://registry:8081", "registry"),
        (" HTTP://registry:8081", "registry"),
        ("https://registry:8081", None),
        ("http://localhost:8081", None),
        ("http://[::1]:8081", None),
        ("http://", None),
        ("registry:8081", None),
        ("//[no URL", None),
    ],
)
def test_only_http_to_another_machine_is_in_plain_text(url: str, host: str | None) -> None:
    assert plain_http_host(url) == host
