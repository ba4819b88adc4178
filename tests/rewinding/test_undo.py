"""An undo takes the last rewind back, or says why it cannot."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.exceptions import (
    NoPositionError,
    RewindConflictError,
)
from tests.support.clients import produce
from tests.support.loads import TopicFactory, names
from tests.support.rewinds import TARGET, Rewinder, once

pytestmark = pytest.mark.server


class TestUndo:
    @pytest.mark.broker
    def test_an_undo_takes_back_the_last_rewind_and_then_itself(self, rewinder: Rewinder, half: str) -> None:
        rewinder("to-offset", 30)
        assert rewinder.preview("undo").kind == "undo"

        rewinder("undo")
        assert rewinder.positions(half) == {0: 100}
        rewinder.prove()
        rewinder("undo")
        assert rewinder.positions(half) == {0: 30}
        rewinder.prove()

        assert [kind for _, kind, _ in rewinder.history()] == ["load", "rewind", "undo", "undo"]
        assert rewinder.gaps() == [], "nothing is passed over that was not loaded"
        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 100), (30, 200))
        rewinder.prove()

    def test_after_that_of_a_part_the_state_before_the_rewind_brings_the_rest_back(
        self, rewinder: Rewinder, half: str, topic: TopicFactory
    ) -> None:
        other = topic()
        produce(rewinder.loader.kafka, other, names(0, 10))
        rewinder.loader(other)
        number = rewinder("to-offset", 5).batch_id

        rewinder("undo", None, other)
        assert (rewinder.positions(half), rewinder.positions(other)) == ({0: 5}, {0: 10})
        rewinder("to-batch", number)

        assert (rewinder.positions(half), rewinder.positions(other)) == ({0: 100}, {0: 10})
        rewinder.prove()

    def test_an_undo_of_a_move_forward_loads_the_skipped_offsets(self, rewinder: Rewinder, half: str) -> None:
        rewinder("to-latest")
        assert rewinder.gaps() == [(0, 100, 200, "passed over")]

        rewinder("undo")

        rewinder.prove()
        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 200))
        rewinder.prove()

    def test_an_undo_is_refused_after_a_load_has_moved_positions(self, rewinder: Rewinder, half: str) -> None:
        number = rewinder("to-offset", 30).batch_id
        rewinder.loader(half)

        with pytest.raises(
            RewindConflictError,
            match=rf"Rewind {number} .*to-offset 30.* cannot be undone any more: .* moved {half}\[0\] since.*to-batch "
            rf"{number}",
        ):
            rewinder.preview("undo")

        assert rewinder.positions(half) == {0: 200}
        # What the message says works.
        rewinder("to-batch", number)
        assert rewinder.positions(half) == {0: 100}
        rewinder.prove()

    def test_an_undo_leaves_moves_outside_of_its_scope(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name, other = topic(partitions=2), topic()
        kafka = rewinder.loader.kafka
        for at_topic, partition in ((name, 0), (name, 1), (other, 0)):
            produce(kafka, at_topic, names(0, 10), partition)
        rewinder.loader(name, other)
        rewinder("to-offset", 4)
        rewinder.loader(other)

        for scopes in ((), (other,), (name, other)):
            with pytest.raises(RewindConflictError, match=rf"batches have moved {other}\[0\] since"):
                rewinder.preview("undo", None, *scopes)
        rewinder("undo", None, f"{name}:1")

        assert (rewinder.positions(name), rewinder.positions(other)) == ({0: 4, 1: 10}, {0: 10})
        rewinder.prove()
        rewinder.loader(name, other)
        assert (rewinder.times(name), rewinder.times(name, 1)) == (once((0, 10), (4, 10)), once((0, 10)))
        rewinder.prove()

    def test_an_undo_is_refused_if_rows_were_removed(self, rewinder: Rewinder, half: str) -> None:
        rewinder("to-offset", 30, replace=TARGET)

        with pytest.raises(RewindConflictError, match="removed the rows of the offsets to load again"):
            rewinder.preview("undo")

        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 200))
        rewinder.prove()

    def test_an_undo_is_refused_without_a_rewind(self, rewinder: Rewinder, half: str) -> None:
        with pytest.raises(NoPositionError, match="The history of group 'loader' has no rewind that could be undone"):
            rewinder.preview("undo")
        assert rewinder.positions(half) == {0: 100}

    def test_an_undo_removes_positions_that_were_the_first(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 10))
        rewinder("to-offset", 5, name, new_group=True)

        assert rewinder("undo").moved == 1

        assert rewinder.positions(name) == {}
        rewinder.prove()
        rewinder.loader(name)
        assert rewinder.times(name) == once((0, 10))
        rewinder.prove()
