"""Signatures name every parameter, and one class describes each: no parameter is missing, and defaults agree."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from inspect import Parameter, cleandoc, getsource, signature
from typing import Any

import pytest

import airflow_kafka_offsets
from airflow_kafka_offsets import (
    BatchBounds,
    Coordination,
    DeadLetters,
    ExtraColumns,
    Limits,
    OffsetBounds,
    Reading,
    Spark,
    Staging,
    StateTables,
    TimeBounds,
)
from airflow_kafka_offsets.core.options import Options
from airflow_kafka_offsets.lag.thresholds import LagWatch
from airflow_kafka_offsets.loading.pipeline import LoadOptions, Pipeline
from airflow_kafka_offsets.operators.batch import KafkaBatchOperator, KafkaReplayOperator, KafkaReplayPlanOperator
from airflow_kafka_offsets.operators.positions import KafkaRewindOperator, KafkaVerifyOperator
from airflow_kafka_offsets.operators.task_decorator import KafkaBatchTask, kafka_batch_task
from airflow_kafka_offsets.replaying.replay import replay
from airflow_kafka_offsets.sensors.lag import KafkaLagSensor
from airflow_kafka_offsets.triggers.lag import KafkaLagEventTrigger, KafkaLagTrigger

OPERATORS = [
    KafkaBatchOperator,
    KafkaReplayOperator,
    KafkaReplayPlanOperator,
    KafkaRewindOperator,
    KafkaVerifyOperator,
    KafkaLagSensor,
]
GROUPS = [
    *(Coordination, DeadLetters, ExtraColumns, Limits, Reading, Spark, Staging, StateTables),
    *(BatchBounds, OffsetBounds, TimeBounds),
]
CLASSES = [*OPERATORS, KafkaLagTrigger, KafkaLagEventTrigger, Pipeline, LoadOptions, LagWatch]


def parameters(of: Any) -> dict[str, Parameter]:
    """Return the parameters of ours: an operator hands others to Airflow's own classes."""
    return {
        name: parameter
        for name, parameter in signature(of).parameters.items()
        if name != "self" and parameter.kind is not Parameter.VAR_KEYWORD
    }


def written(of: type) -> str:
    """Return the docstring of a class as it is written; `help()` shows the parameters that it shares with others,
    too.
    """
    (definition,) = ast.parse(getsource(of)).body
    assert isinstance(definition, ast.ClassDef)
    return ast.get_docstring(definition) or ""


def described(of: type) -> dict[str, str]:
    """Return the words of the parameters that a class describes itself."""
    return parameters_in(written(of))


def parameters_in(text: str) -> dict[str, str]:
    found = re.findall(r"^:param (\w+): (.*(?:\n    .*)*)", text, re.MULTILINE)
    return dict(found)


def referred(of: type) -> dict[str, type]:
    """Return the parameters that another class describes, with that class."""
    text = " ".join(written(of).split())
    return {
        name: getattr(airflow_kafka_offsets, other)
        for other, names in re.findall(r"As for `(\w+)`: ((?:`\w+`,? ?)+)\.", text)
        for name in re.findall(r"`(\w+)`", names)
    }


@pytest.mark.parametrize("of", CLASSES, ids=lambda of: of.__name__)
def test_every_parameter_is_described_once(of: type) -> None:
    here, elsewhere = described(of).keys() - {"kwargs"}, referred(of)

    assert here | elsewhere.keys() == parameters(of).keys()
    assert not here & elsewhere.keys()
    for name, other in elsewhere.items():
        assert name in described(other), f"{other.__name__} does not describe {name}"


@pytest.mark.parametrize("of", [*OPERATORS, KafkaBatchTask, kafka_batch_task], ids=lambda of: of.__name__)
def test_help_shows_every_parameter_with_the_words_that_stand_once(of: Any) -> None:
    shown = parameters_in(cleandoc(of.__doc__))

    assert shown.keys() - {"kwargs"} == parameters(of).keys()
    assert "As for `" not in of.__doc__
    everything: dict[str, str] = {}
    # The sensor is in a package that knows no operators.
    for other in OPERATORS[:-1]:
        assert not [name for name, words in described(other).items() if words == everything.get(name)]
        everything |= described(other)
    of_batch = described(KafkaBatchOperator)
    for name in shown.keys() & of_batch.keys():
        own = described(of) if of in OPERATORS else {}
        elsewhere = referred(of).get(name) if of in OPERATORS else KafkaBatchOperator
        assert shown[name] == (own[name] if name in own else described(elsewhere)[name])  # type: ignore[arg-type]


def test_the_decorator_has_the_parameters_of_the_operator_but_the_transform() -> None:
    names = parameters(KafkaBatchOperator).keys() - {"transform"} | {"modules", "python_callable"}
    assert parameters(kafka_batch_task).keys() == parameters(KafkaBatchTask).keys() == names


@pytest.mark.parametrize("of", CLASSES, ids=lambda of: of.__name__)
def test_every_parameter_is_named_and_typed(of: type) -> None:
    found = parameters(of)

    assert found
    for parameter in found.values():
        assert parameter.kind is Parameter.KEYWORD_ONLY
        assert parameter.annotation is not Parameter.empty
        assert parameter.annotation != "Any" or (of, parameter.name) == (KafkaRewindOperator, "value")


@pytest.mark.parametrize("of", CLASSES, ids=lambda of: of.__name__)
def test_defaults_agree_with_the_class_that_describes_them(of: type) -> None:
    for name, other in referred(of).items():
        mine, theirs = parameters(of)[name], parameters(other)[name]
        assert (name, mine.default) == (name, theirs.default)
        assert mine.annotation.removeprefix("parameters.").removeprefix("planning.").removeprefix("bounds.") in (
            theirs.annotation,
            theirs.annotation.replace(" | str", ""),  # once it is rendered
            "tuple[str, ...]",  # where topics are plain data
            "Sink",  # and where several sinks have become one
        )


@pytest.mark.parametrize("of", GROUPS, ids=lambda of: of.__name__)
def test_every_field_of_a_group_has_a_rule_that_its_default_keeps_and_is_described(of: type[Options]) -> None:
    assert described(of).keys() == of.rules.keys() == parameters(of).keys()
    assert {name for name, words in described(of).items() if words.endswith("(templated)")} == set(of.template_fields)
    for name, parameter in parameters(of).items():
        assert parameter.default is Parameter.empty or of.rules[name].fits(parameter.default)


@pytest.mark.parametrize("of", OPERATORS, ids=lambda of: of.__name__)
def test_the_docs_mark_what_is_templated(of: Any) -> None:
    templated = {name for name, words in described(of).items() if words.endswith("(templated)")}
    of_others = {name for name, other in referred(of).items() if name in other.template_fields}  # type: ignore[attr-defined]

    assert templated | of_others == set(of.template_fields)


def test_a_load_has_the_parameters_of_a_pipeline_and_of_its_options() -> None:
    names = {field.name for of in (Pipeline, LoadOptions) for field in fields(of)}

    assert parameters(KafkaBatchOperator).keys() == names | {"kafka_conn_id", "spark", "assets"}


def test_a_replay_has_those_of_a_pipeline_and_of_the_function() -> None:
    of_function = {"bounds", "limits", "on_data_loss", "replace", "reason"}
    names = {field.name for field in fields(Pipeline)} | of_function

    assert parameters(KafkaReplayOperator).keys() == names | {"kafka_conn_id", "spark", "assets"}
    for name in of_function:
        assert parameters(KafkaReplayOperator)[name].default == parameters(replay)[name].default


@pytest.mark.parametrize("of", [KafkaBatchOperator, KafkaReplayOperator])
def test_an_operator_has_at_most_eighteen_parameters_of_its_own(of: type) -> None:
    assert len(parameters(of)) <= 18


@pytest.mark.parametrize("of", [KafkaLagSensor, KafkaLagTrigger, KafkaLagEventTrigger], ids=lambda of: of.__name__)
def test_sensor_and_triggers_have_the_options_of_a_watch(of: Any) -> None:
    own = {KafkaLagSensor: {"deferrable"}, KafkaLagTrigger: {"first_poll"}, KafkaLagEventTrigger: {"rearm_after"}}[of]
    names = {field.name for field in fields(LagWatch)}
    # A sensor of Airflow's has `poke_interval`.
    without = {"poll_interval"} if of is KafkaLagSensor else set()

    assert parameters(of).keys() == names - without | own
    for name in names - without:
        assert parameters(of)[name].default == parameters(LagWatch)[name].default
