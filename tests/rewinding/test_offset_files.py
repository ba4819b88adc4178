"""Offsets by partition: as the CSV file that `export` and Kafka's tool write, and as a DAG gives them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.rewinding.scenarios import Scenario, read_offsets, write_offsets
from tests.support.rewinds import refused

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


MOST = 2**63 - 1


OFFSETS = st.dictionaries(
    st.builds(
        TopicPartition,
        st.text("abcXYZ019._-", min_size=1, max_size=20).filter(lambda name: name.strip() == name),
        st.integers(0, 99),
    ),
    st.integers(0, MOST),
    min_size=1,
)


class TestFile:
    @pytest.mark.parametrize(
        "text",
        [
            "orders,0,50\norders,1,60\n",
            "orders,0,50\norders,1,60",
            "topic,partition,offset\norders,0,50\norders,1,60\n",
            "TOPIC, PARTITION, OFFSET\r\n\r\norders,0,50\r\n  \r\norders,1,60\r\n",
            "\ufefftopic,partition,offset\norders,0,50\norders,1,60\n",
            "\ufefforders,0,50\norders,1,60\n",
            " orders , 0 , 50 \norders,1,60",
            '"orders","0","50"\n"orders",1,60',
            "orders,0,50\rorders,1,60\r",
            "orders,00,050\norders,1,60\n",
            "group,topic,partition,offset\nloader,orders,0,50\nloader,orders,1,60\n",
            "loader,orders,0,50\norders,1,60\n",
        ],
        ids=repr,
    )
    def test_headers_blank_lines_line_ends_and_quotes_are_fine(self, text: str) -> None:
        assert read_offsets(text) == {T0: 50, T1: 60}

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("orders,0", 1),
            ("orders,0,50\norders,1", 2),
            ("orders,0,50\n\n\norders,1,", 4),
            ("orders,0,50\n,1,60", 2),
            ("orders,0,50,60,70", 1),
            ("orders;0;50", 1),
            ("orders\t0\t50", 1),
            ("orders,0,-50", 1),
            ("orders,-1,50", 1),
            ("orders,0,+50", 1),
            ("orders,0,5.0", 1),
            ("orders,0,1_0", 1),
            ("orders,0,٣", 1),
            (f"orders,0,{MOST + 1}", 1),
            (f"orders,0,{'9' * 5000}", 1),
            ("orders,zero,50", 1),
            ("orders,0,latest", 1),
            ("orders,0,50\ntopic,partition,offset", 2),
            ("topic,partition,offset\r\norders,0,x", 2),
        ],
        ids=lambda value: repr(value)[:40],
    )
    def test_a_wrong_line_is_refused_with_its_number(self, text: str, line: int) -> None:
        with pytest.raises(ConfigurationError, match=f"Line {line} must "):
            read_offsets(text)

    @pytest.mark.parametrize("second", ["50", "60"])
    def test_a_partition_that_is_there_twice_is_refused_with_both_lines(self, second: str) -> None:
        with pytest.raises(ConfigurationError) as raised:
            read_offsets(f"topic,partition,offset\norders,0,50\n\norders,00,{second}\n")
        assert str(raised.value) == "Line 4 names orders[0] again, which line 2 has with offset 50"

    @pytest.mark.parametrize(
        "text", ["", "\n\n", "topic,partition,offset\n", "\ufeff", "group,topic,partition,offset"], ids=repr
    )
    def test_a_file_without_offsets_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match="The file has no line topic,partition,offset"):
            read_offsets(text)

    def test_a_quote_that_is_never_closed_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"Line \d is not CSV"):
            read_offsets('"orders,0,50\norders,1,60\n')

    def test_a_topic_may_be_named_as_the_header(self) -> None:
        assert read_offsets("topic,0,50") == {TopicPartition("topic", 0): 50}

    def test_one_group_is_read_from_a_file_of_several(self) -> None:
        text = 'loader,orders,0,50\n"odd, ""group""",orders,0,70\nother,broken,line,x\n'
        assert read_offsets(text, "loader") == {T0: 50}
        assert read_offsets(text, 'odd, "group"') == {T0: 70}

    def test_a_file_of_other_groups_is_refused_with_their_names(self) -> None:
        with pytest.raises(ConfigurationError, match="of group 'loader', but of 'another', 'other'"):
            read_offsets("other,orders,0,50\nanother,orders,0,60\n", "loader")

    def test_without_a_group_a_file_of_two_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"Line 2 names orders\[0\] again"):
            read_offsets("loader,orders,0,50\nother,orders,0,50\n")

    @given(OFFSETS)
    def test_written_offset_files_are_read_again(self, offsets: dict[TopicPartition, int]) -> None:
        """R28."""
        text = write_offsets(offsets)
        assert read_offsets(text) == offsets
        assert text.splitlines() == [f"{tp.topic},{tp.partition},{offset}" for tp, offset in sorted(offsets.items())]
        assert Scenario.of("from-file", text) == Scenario.of("from-file", offsets)

    @given(st.text(st.sampled_from('ab,"019-+\n\r\ufeff \0\u2028topic'), max_size=40))
    def test_any_text_is_offsets_or_refused(self, text: str) -> None:
        try:
            offsets = read_offsets(text)
        except ConfigurationError:
            return
        assert offsets
        assert all(0 <= offset <= MOST and tp.partition >= 0 for tp, offset in offsets.items())

    def test_a_dag_gives_offsets_by_partition(self) -> None:
        given_by_dag = {("orders", 0): 50, T1: 60}
        scenario = Scenario.of("from-file", given_by_dag)
        given_by_dag.clear()
        assert scenario.value == {T0: 50, T1: 60}
        assert isinstance(scenario.value, dict)
        assert all(isinstance(tp, TopicPartition) for tp in scenario.value)

    @pytest.mark.parametrize(
        "value",
        [
            {},
            {T0: -1},
            {T0: "50"},
            {T0: 1.0},
            {T0: True},
            {T0: None},
            {T0: MOST + 1},
            {"orders": 5},
            {("orders", -1): 5},
            {("orders",): 5},
            {("orders", "0"): 5},
        ],
        ids=repr,
    )
    def test_offsets_of_a_dag_are_looked_at_too(self, value: object) -> None:
        assert refused("from-file", value).startswith("from-file ")

    @pytest.mark.parametrize("value", [None, "", 5])
    def test_a_file_of_nothing_is_refused(self, value: object) -> None:
        with pytest.raises(ConfigurationError):
            Scenario.of("from-file", value)
