"""What users say of a rewind: scenarios with their instants and durations, and scopes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.instants import format_instant, instant, milliseconds
from airflow_kafka_offsets.core.offsets import TopicPartition, parse_scope
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.rewinding.scenarios import SCENARIOS, Scenario
from tests.support.rewinds import refused

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


MOST = 2**63 - 1


class TestScenario:
    def test_an_unknown_one_is_refused_with_those_there_are(self) -> None:
        words = refused("to-erliest")
        assert "'to-erliest'" in words
        assert all(name in words for name in SCENARIOS)

    @pytest.mark.parametrize("name", ["to-earliest", "to-latest", "to-current", "undo"])
    def test_some_take_no_value(self, name: str) -> None:
        assert Scenario.of(name) == Scenario(name)
        assert Scenario.of(name).text == name
        assert "takes no value; got 5" in refused(name, 5)

    @pytest.mark.parametrize(
        ("name", "value", "number"),
        [
            ("to-offset", 50, 50),
            ("to-offset", "50", 50),
            ("to-offset", 0, 0),
            ("to-offset", MOST, MOST),
            ("shift-by", "-150", -150),
            ("shift-by", "+50", 50),
            ("shift-by", -MOST, -MOST),
            ("to-batch", "7", 7),
        ],
    )
    def test_numbers_may_be_text(self, name: str, value: object, number: int) -> None:
        assert Scenario.of(name, value) == Scenario(name, number)

    @pytest.mark.parametrize("name", ["to-offset", "shift-by", "to-batch"])
    @pytest.mark.parametrize(
        "value",
        [
            None,
            "",
            "ten",
            "1.5",
            1.5,
            5.0,
            True,
            "1_0",
            "٣",
            "0x10",
            "--1",
            MOST + 1,
            str(MOST + 1),
            "9" * 5000,
            [1],
            b"5",
        ],
        ids=lambda value: repr(value)[:12],
    )
    def test_offsets_that_are_not_numbers_are_refused(self, name: str, value: object) -> None:
        assert f"{name} needs a whole number" in refused(name, value)

    @pytest.mark.parametrize("name", ["to-offset", "to-batch"])
    def test_a_negative_number_is_refused_but_for_a_shift(self, name: str) -> None:
        assert refused(name, "-1") == f"{name} must not be negative; got -1"

    @pytest.mark.parametrize("name", ["to-group", "import"])
    def test_a_group_has_a_name(self, name: str) -> None:
        assert Scenario.of(name, 'søren\'s group, "x"').value == 'søren\'s group, "x"'
        for value in (None, "", 5, "x" * 40_000):
            assert f"{name} needs the name of a" in refused(name, value)

    @pytest.mark.parametrize(
        ("scenario", "text"),
        [
            (Scenario.of("shift-by", -5), "shift-by -5"),
            (Scenario.of("to-datetime", "2026-11-17T08:00:00+02:00"), "to-datetime 2026-11-17T06:00:00Z"),
            (Scenario.of("to-datetime", "2026-11-17T08:00:00.5"), "to-datetime 2026-11-17T08:00:00.500000Z"),
            (Scenario.of("by-duration", "P1DT12H"), "by-duration 1 day, 12:00:00"),
            (Scenario.of("from-file", {T0: 1, T1: 2}), "from-file (2 partitions)"),
            (Scenario.of("to-group", "other"), "to-group other"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_scenario_is_described_in_a_few_words(self, scenario: Scenario, text: str) -> None:
        assert scenario.text == text

    def test_files_of_other_offsets_are_told_apart(self) -> None:
        texts = {
            Scenario.of("from-file", offsets).describe({})
            for offsets in ({T0: 1, T1: 2}, {T1: 2, T0: 1}, {T0: 1, T1: 3})
        }
        assert len(texts) == 2

    def test_a_scenario_is_described_with_its_scope(self) -> None:
        scenario = Scenario.of("to-offset", 5)
        assert scenario.describe({}) == "to-offset 5"
        assert scenario.describe(parse_scope(["returns", "orders:2,0"])) == "to-offset 5, of orders:0,2 returns"


class TestDatetime:
    @pytest.mark.parametrize(
        "value",
        [
            "2026-11-17T08:00:00",
            "2026-11-17T08:00:00Z",
            "2026-11-17 10:00+02:00",
            "20261117T080000",
            datetime(2026, 11, 17, 8),
            datetime(2026, 11, 17, 9, tzinfo=timezone(timedelta(hours=1))),
            pendulum.datetime(2026, 11, 17, 8),
        ],
        ids=repr,
    )
    def test_no_zone_means_utc(self, value: str | datetime) -> None:
        assert Scenario.of("to-datetime", value).value == datetime(2026, 11, 17, 8, tzinfo=UTC)

    @pytest.mark.parametrize(
        "value",
        [
            None,
            "",
            "yesterday",
            "08:00",
            5,
            1763366400000,
            date(2026, 11, 17),
            "0001-01-01T00:00+05:00",
            "9999-12-31T23:00-05:00",
        ],
        ids=repr,
    )
    def test_texts_that_are_not_instants_are_refused(self, value: object) -> None:
        assert "to-datetime must be a date-time, such as 2026-11-17T08:00:00Z" in refused("to-datetime", value)

    @pytest.mark.parametrize("value", ["1969-12-31T23:59:59.999999", "1970-01-01T00:30+01:00", "0001-01-01"])
    def test_an_instant_before_1970_means_something_else_to_kafka(self, value: str) -> None:
        assert "must not lie before 1970" in refused("to-datetime", value)

    def test_1970_itself_is_the_first(self) -> None:
        assert milliseconds(instant("start", "1970-01-01")) == 0

    @given(st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1)))
    def test_milliseconds_are_the_first_that_are_not_before_it(self, value: datetime) -> None:
        read = instant("start", value)
        ms = milliseconds(read)
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
        assert timedelta(0) <= at - read < timedelta(milliseconds=1)

    def test_an_instant_is_shown_in_utc(self) -> None:
        assert (
            format_instant(datetime(2026, 11, 17, 9, tzinfo=timezone(timedelta(hours=1)))) == "2026-11-17 08:00:00 UTC"
        )


class TestDuration:
    @pytest.mark.parametrize(
        ("value", "duration"),
        [
            ("P1DT12H", timedelta(days=1, hours=12)),
            ("P2W", timedelta(weeks=2)),
            ("P1W2D", timedelta(days=9)),
            ("PT90M", timedelta(minutes=90)),
            ("PT1M0.5S", timedelta(seconds=60, milliseconds=500)),
            ("P0D", timedelta(0)),
            ("PT5000000S", timedelta(seconds=5_000_000)),
            (timedelta(hours=3), timedelta(hours=3)),
            (pendulum.duration(days=3, hours=2), timedelta(days=3, hours=2)),
        ],
        ids=str,
    )
    def test_a_duration_is_of_certain_length(self, value: object, duration: timedelta) -> None:
        found = Scenario.of("by-duration", value).value
        assert found == duration
        assert type(found) is timedelta

    @pytest.mark.parametrize(
        "value",
        [
            "P1M",
            "P1Y",
            "P1YT1H",
            pendulum.duration(months=1),
            pendulum.duration(years=1),
            "P",
            "PT",
            "P1DT",
            "",
            None,
            5,
            "1D",
            "P1H",
            " P1D",
            "p1d",
            "P1D\n",
            "P٣D",
            "now",
            "2026-11-17",
            "2026-11-17/P1D",
            "2026-11-17/2026-11-18",
            "P1D/P1D",
        ],
        ids=repr,
    )
    def test_texts_that_are_not_durations_of_fixed_length_are_refused(self, value: object) -> None:
        assert "by-duration needs a duration of weeks, days, hours, minutes and seconds" in refused(
            "by-duration", value
        )

    @pytest.mark.parametrize("value", ["-P1D", "P-1D"])
    def test_a_negative_duration_is_none(self, value: str) -> None:
        assert "by-duration needs a duration" in refused("by-duration", value)

    @pytest.mark.parametrize("value", [timedelta(seconds=-1), pendulum.duration(hours=-1)], ids=repr)
    def test_a_negative_duration_is_refused(self, value: timedelta) -> None:
        assert "must not be negative" in refused("by-duration", value)

    @pytest.mark.parametrize("value", ["P30000D", "PT99999999999S", "PT4294967296000S", timedelta.max], ids=str)
    def test_a_duration_reaches_back_to_1970_at_most(self, value: object) -> None:
        assert "must not begin before 1970" in refused("by-duration", value)

    @pytest.mark.parametrize("value", ["P99999999999999D", "P" + "9" * 5000 + "D"], ids=["long", "longer"])
    def test_a_duration_longer_than_any_is_refused(self, value: str) -> None:
        assert "by-duration is too long" in refused("by-duration", value)

    @given(st.text(st.sampled_from("PTWDHMS0123456789.-"), max_size=12))
    def test_any_text_is_a_duration_or_refused(self, text: str) -> None:
        try:
            found = Scenario.of("by-duration", text).value
        except ConfigurationError:
            return
        assert isinstance(found, timedelta)
        assert found >= timedelta(0)


class TestScope:
    @pytest.mark.parametrize(
        ("scopes", "scope"),
        [
            ([], {}),
            (["orders"], {"orders": None}),
            (["orders:1,2"], {"orders": {1, 2}}),
            (["orders:1", "orders:2", "returns"], {"orders": {1, 2}, "returns": None}),
            (["orders:1", "orders"], {"orders": None}),
            (["orders", "orders:1"], {"orders": None}),
            (["orders:1,1"], {"orders": {1}}),
            ("orders:1,2", {"orders": {1, 2}}),
            ("orders:1", {"orders": {1}}),
            (["orders[1]", "orders[2,3]"], {"orders": {1, 2, 3}}),
            ([" orders : 1, 2 ", " orders:3 ", "\treturns\n"], {"orders": {1, 2, 3}, "returns": None}),
        ],
        ids=str,
    )
    def test_a_scope_is_topics_and_partitions(self, scopes: str | list[str], scope: dict[str, Any]) -> None:
        assert parse_scope(scopes) == scope

    @pytest.mark.parametrize(
        "one",
        [
            " ",
            "orders returns",
            "orders:1 returns:2",
            "",
            ":1",
            "orders:",
            "orders:1,",
            "orders:a",
            "orders:-1",
            "orders:1:2",
            "orders:1_0",
            "orders[]",
            "orders:1[2]",
            "[1]",
            "orders:٣",
        ],
    )
    def test_texts_that_are_not_scopes_are_refused(self, one: str) -> None:
        with pytest.raises(ConfigurationError, match="A scope is topic or topic:0,1"):
            parse_scope([one])
