"""`@task.kafka_batch(…)`: a load whose transform is the body of the decorated function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from inspect import Parameter
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, TypeVar, cast, overload

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from airflow_kafka_offsets.core.parameters import Rule, are_texts
from airflow_kafka_offsets.core.shared_docs import complete_docs
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.operators.base import RULES
from airflow_kafka_offsets.operators.batch import KafkaBatchOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

    from airflow_kafka_offsets.loading.pipeline import Pipeline

T = TypeVar("T")
P = ParamSpec("P")


def _signature_of(operator: type) -> Callable[[T], T]:
    """Return a decorator that gives a function, or a class, the signature of an operator without its transform."""

    def sign(signed: T) -> T:
        given, own = inspect.signature(operator).parameters, inspect.signature(signed).parameters  # type: ignore[arg-type]
        merged = {**own, **given} | own
        ordered = sorted((merged[name] for name in merged if name != "transform"), key=lambda parameter: parameter.kind)
        signed.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        return signed

    return sign


@complete_docs(KafkaBatchOperator)
@_signature_of(KafkaBatchOperator)
class KafkaBatchTask(DecoratedOperator, KafkaBatchOperator):
    """Load new records, with a function of the DAG file as the DataFrame transform.

    The function and what it uses of the DAG file travel to Spark as code: no process there imports the DAG file.

    As for `KafkaBatchOperator`: every parameter but `transform`.

    :param python_callable: the function, without its first parameter, which is the DataFrame of the decoded records
    :param modules: names of modules that travel with the function: what it imports besides the DAG file
    """

    custom_operator_name = "@task.kafka_batch"
    rules: ClassVar[Mapping[str, Rule]] = RULES | {"modules": Rule("a list of the names of modules", are_texts)}
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(name for name in KafkaBatchOperator.template_fields if name != "transform"),
    )

    def __init__(self, *, python_callable: Callable[..., Any], modules: Sequence[str] = (), **kwargs: Any) -> None:
        if "transform" in kwargs:
            raise ConfigurationError(
                "@task.kafka_batch has no parameter transform: the body of the function is the transform"
            )
        self.modules = modules
        super().__init__(python_callable=python_callable, **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Load.

        :return: see `KafkaBatchOperator.execute`
        """
        # DecoratedOperator has another one.
        return KafkaBatchOperator.execute(self, context)

    def pipeline(self) -> Pipeline:
        """Return the pipeline, of rendered parameters and arguments; its transform is the function."""
        from airflow_kafka_offsets.transforms.dataframe import TaskBody

        arguments = inspect.signature(self.python_callable).bind(*self.op_args, **self.op_kwargs).arguments
        transform = TaskBody.of(self.python_callable.body, arguments, self.modules)  # type: ignore[attr-defined]
        return replace(super().pipeline(), transform=transform)


class _Decorate(Protocol[P]):
    @overload
    def __call__(self, python_callable: Callable[..., Any], /) -> TaskDecorator: ...

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskDecorator: ...


def _typed_as(operator: Callable[P, object]) -> Callable[[Callable[..., TaskDecorator]], _Decorate[P]]:
    """Return a decorator that gives a function the parameters of an operator, for editors and type checkers."""
    return lambda function: cast("_Decorate[P]", function)


@_typed_as(KafkaBatchOperator)
@complete_docs(KafkaBatchTask)
@_signature_of(KafkaBatchTask)
def kafka_batch_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Decorate a function whose body is the transform of a load. This is `@task.kafka_batch`, with types for editors
    and type checkers.

    As for `KafkaBatchTask`: every parameter but `python_callable`.

    :param python_callable: a function from DataFrame to DataFrame, which may have more parameters
    :raises ConfigurationError: the function has no parameter for the DataFrame, or a parameter without a name
    """
    if python_callable is None:
        return cast("TaskDecorator", partial(kafka_batch_task, **kwargs))
    function, given = _without_frame(python_callable), {"multiple_outputs": False} | kwargs
    return task_decorator_factory(function, decorated_operator_class=KafkaBatchTask, **given)


def _without_frame(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the parameters that a DAG file gives: the DataFrame comes from Spark."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        raise ConfigurationError(
            f"@task.kafka_batch: the first parameter of {function.__qualname__} must be the DataFrame of the decoded "
            "records; it has no parameter"
        )
    if unnamed := [
        each for each in parameters[1:] if each.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    ]:
        raise ConfigurationError(
            f"@task.kafka_batch: the parameters of {function.__qualname__} are given by name, so each needs one; got "
            f"{unnamed[0]}"
        )

    @wraps(function)
    def described(**_: Any) -> None:
        raise AssertionError("Spark calls the function itself")

    described.__signature__ = signature.replace(parameters=parameters[1:])  # type: ignore[attr-defined]
    described.body = function  # type: ignore[attr-defined]
    return described
