"""Which contenders load which data sets, and which bars their measurements are judged by."""

from benchmarks.bars import Bar, judge
from benchmarks.contenders import CONTENDERS, contenders_of
from benchmarks.datasets import Dataset
from benchmarks.measured import AVAILABLE_NOW, PACKAGE, SMALL, SPARK, SPARK_TRANSFORM, START, TRANSFORM, Measured
from benchmarks.report import verdict


def test_small_orders_are_loaded_by_all() -> None:
    assert contenders_of(Dataset("orders", SMALL)).keys() == CONTENDERS.keys()


def test_large_orders_are_loaded_by_all_but_the_empty_application() -> None:
    assert contenders_of(Dataset("orders", 200_000)).keys() == CONTENDERS.keys() - {START}


def test_other_shapes_are_loaded_by_fewer() -> None:
    for name in ("wide", "many-partitions", "skewed"):
        left_out = {START, SPARK_TRANSFORM, AVAILABLE_NOW}
        assert contenders_of(Dataset(name, 200_000)).keys() == CONTENDERS.keys() - left_out


def test_a_dataframe_transform_is_compared_with_the_same_work() -> None:
    bars = _bars(Dataset("orders", 200_000), {TRANSFORM: 10.0, SPARK: 12.0, SPARK_TRANSFORM: 21.0})

    assert bars == {f"{TRANSFORM} : {SPARK_TRANSFORM}": Bar(f"{TRANSFORM} : {SPARK_TRANSFORM}", 2.0, 2.1, 2.1)}


def test_the_package_is_compared_with_streaming() -> None:
    bar = _bars(Dataset("orders", 200_000), {PACKAGE: 10.0, AVAILABLE_NOW: 29.0})[f"{PACKAGE} : {AVAILABLE_NOW}"]

    assert (bar.found, bar.met) == (2.9, False)


def test_processor_seconds_have_a_bar_for_many_orders() -> None:
    seconds, processor = {PACKAGE: 10.0, SPARK: 20.0}, {PACKAGE: 20.0, SPARK: 50.0}
    title = f"{PACKAGE} : {SPARK}, processor seconds"

    bar = _bars(Dataset("orders", 5_000_000), seconds, processor)[title]

    assert (bar.found, bar.met) == (2.5, True)
    assert verdict(bar).split() == ["met", *title.split(), "at", "least", "2.5", "found", "2.50"]
    assert title not in _bars(Dataset("orders", 200_000), seconds, processor)
    assert title not in _bars(Dataset("wide", 5_000_000), seconds, processor)


def _bars(dataset: Dataset, seconds: dict[str, float], processor: dict[str, float] | None = None) -> dict[str, Bar]:
    measured = Measured(dataset, Measured(Dataset("orders", SMALL)))
    for name, each in seconds.items():
        measured.add(name, each, (processor or {}).get(name))
    return {bar.title: bar for bar in judge(measured)}
