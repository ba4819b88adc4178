"""KafkaLagSensor: what it refuses when the DAG is parsed, and what it does with a look."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, TaskDeferred

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sensors.lag import KafkaLagSensor
from airflow_kafka_offsets.triggers.lag import KafkaLagEventTrigger
from devstack.process import free_port
from tests.support.clients import produce
from tests.support.command_line import database_connection, kafka_connection
from tests.support.loads import Loader, TopicFactory, names

pytestmark = pytest.mark.server

BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "at least one of min_lag, max_lag, max_delay and min_headroom; got none"),
    ({"min_lag": -5}, "got min_lag=-5"),
    ({"max_delay": -timedelta(minutes=1)}, "max_delay must be a positive timedelta, or None; got max_delay="),
    ({"min_lag": 100, "max_lag": 50, "require": "all"}, "can never be met together"),
]


@pytest.mark.parametrize(("thresholds", "told"), BAD, ids=["none", "negative", "negative duration", "contradictory"])
def test_bad_thresholds_are_refused_when_the_dag_is_parsed(thresholds: dict[str, Any], told: str) -> None:
    watched: dict[str, Any] = {"group_id": "g", "topics": ["t"], "conn_id": "warehouse"}
    with pytest.raises(ConfigurationError, match=told):
        KafkaLagSensor(task_id="enough", **watched, **thresholds)
    with pytest.raises(ConfigurationError, match=told):
        KafkaLagEventTrigger(**watched, **thresholds)


@pytest.mark.parametrize("name", ["poll_interval", "rearm_after"])
def test_intervals_of_a_trigger_are_positive(name: str) -> None:
    intervals: dict[str, Any] = {name: timedelta(0)}
    with pytest.raises(ConfigurationError, match=f"{name} must be a positive timedelta; got {name}="):
        KafkaLagEventTrigger(group_id="g", conn_id="warehouse", min_lag=1, **intervals)


class TestPoke:
    @pytest.fixture
    def sensed(self, inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch) -> str:
        """A topic with 5 records that a group has loaded, and 3 that it has not."""
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))
        inline_loader(name)
        produce(inline_loader.kafka, name, names(5, 3))
        monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", database_connection(inline_loader.engine))
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", kafka_connection(inline_loader.kafka))
        return name

    def sensor(self, topic: str, **options: Any) -> KafkaLagSensor:
        defaults: dict[str, Any] = {"group_id": "loader", "topics": [topic], "conn_id": "warehouse"}
        return KafkaLagSensor(task_id="sense", **(defaults | {"deferrable": False} | options))

    def test_the_report_is_handed_on_and_told(self, sensed: str, caplog: pytest.LogCaptureFixture) -> None:
        found = self.sensor(sensed, min_lag=3, max_delay=timedelta(days=1)).execute({})

        assert (found["group_id"], found["met"], found["report"]["lag"]) == ("loader", ["min_lag"], 3)
        assert found["report"]["complete"] is True
        assert found["report"]["partitions"][0]["position"] == 5
        json.dumps(found)

    def test_one_offset_less_is_not_enough(self, sensed: str) -> None:
        assert not self.sensor(sensed, min_lag=4).poke({}).is_done

    def test_a_group_that_has_caught_up(self, sensed: str) -> None:
        assert not self.sensor(sensed, max_lag=2).poke({}).is_done
        assert self.sensor(sensed, max_lag=3).poke({}).is_done

    def test_the_client_is_kept_until_something_fails(self, sensed: str, monkeypatch: pytest.MonkeyPatch) -> None:
        sensor, clients = self.sensor(sensed, min_lag=4), []
        for _ in range(2):
            assert not sensor.poke({}).is_done
            clients.append(sensor._cluster)
        with monkeypatch.context() as away:
            away.setenv("AIRFLOW_CONN_WAREHOUSE", f"postgresql://postgres@127.0.0.1:{free_port()}/nowhere")
            assert not sensor.poke({}).is_done
            clients.append(sensor._cluster)
        assert not sensor.poke({}).is_done
        first, second, third = clients
        assert first is not None
        assert (second, third) == (first, None)

    def test_a_sensor_that_is_deferred_has_looked(self, sensed: str) -> None:
        with pytest.raises(TaskDeferred) as deferred:
            self.sensor(sensed, min_lag=4, poke_interval=20, deferrable=True).execute({})
        _, stored = deferred.value.trigger.serialize()
        ahead = stored["first_poll"] - datetime.now(UTC)
        assert timedelta(seconds=10) < ahead <= timedelta(seconds=20)
        assert stored["poll_interval"] == timedelta(seconds=20)

    @pytest.mark.usefixtures("unknown_at_once")
    def test_permanent_error_fails_or_skips_at_once(self, sensed: str) -> None:
        # First of all a single look: a sensor that waits here would wait for days.
        with pytest.raises(AirflowFailException, match=r"UnknownTopicError: kafka_conn_id='kafka_default': .*nowhere"):
            self.sensor("nowhere", min_lag=1).poke({})
        with pytest.raises(AirflowFailException, match=r"UnknownTopicError: .*nowhere"):
            self.sensor("nowhere", min_lag=1).execute({})
        for deferrable in (False, True):
            with pytest.raises(AirflowSkipException):
                self.sensor("nowhere", min_lag=1, soft_fail=True, deferrable=deferrable).execute({})

    def test_a_name_that_no_topic_can_have_is_named(self, sensed: str) -> None:
        with pytest.raises(AirflowFailException, match="several of them are a list; got 'orders, payments'"):
            self.sensor("orders, payments", min_lag=1).poke({})

    @pytest.mark.parametrize("away", ["broker", "database"])
    def test_outage_is_polled_again(
        self, sensed: str, away: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if away == "broker":
            extra = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "socket.timeout.ms": 1000}
            monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
            monkeypatch.setattr("airflow_kafka_offsets.sensors.lag._KAFKA_SECONDS", 1.0)
        else:
            monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", f"postgres://user:secret@127.0.0.1:{free_port()}/warehouse")

        assert not self.sensor(sensed, max_lag=100).poke({}).is_done
        named = "kafka_conn_id='kafka_default'" if away == "broker" else "conn_id='warehouse'"
        assert f"Poking again: {named}: " in capsys.readouterr().out
