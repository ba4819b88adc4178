"""Modules that travel as source are imported where they are not installed."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from airflow_kafka_offsets.exceptions import TransformError
from airflow_kafka_offsets.transforms.code import Source, install, read_sources


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def source(text: str, *, is_package: bool = False) -> Source:
    return Source(text, "/elsewhere/shop.py", is_package)


def test_a_package_travels_with_all_that_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sent_shop" / "deep").mkdir(parents=True)
    (tmp_path / "sent_shop" / "__init__.py").write_text("from sent_shop.deep.rates import RATE\n")
    (tmp_path / "sent_shop" / "deep" / "__init__.py").write_text("")
    (tmp_path / "sent_shop" / "deep" / "rates.py").write_text("RATE = 3\n")
    with monkeypatch.context() as here:
        here.syspath_prepend(tmp_path)
        sources = read_sources([import_module("sent_shop")])
    assert sorted(sources) == ["sent_shop", "sent_shop.deep", "sent_shop.deep.rates"]
    for name in sources:
        sys.modules.pop(name, None)

    install(sources)

    assert import_module("sent_shop").RATE == 3
    assert import_module("sent_shop.deep.rates").__file__ == str(tmp_path / "sent_shop" / "deep" / "rates.py")


def test_a_module_of_a_package_may_travel_alone() -> None:
    install({"sent_alone.rates": source("RATE = 4\n")})
    assert import_module("sent_alone.rates").RATE == 4


def test_a_later_source_replaces_an_earlier_one_and_no_module_from_elsewhere() -> None:
    install({"sent_twice": source("RATE = 1\n")})
    assert import_module("sent_twice").RATE == 1
    install({"sent_twice": source("RATE = 1\n"), "json": source("raise AssertionError")})
    same = import_module("sent_twice")
    install({"sent_twice": source("RATE = 2\n")})
    assert import_module("sent_twice").RATE == 2
    assert same.RATE == 1
    assert import_module("json").dumps(1) == "1"


def test_a_traceback_has_its_lines() -> None:
    install({"sent_failing": source("def fail():\n    raise KeyError('a')\n")})
    with pytest.raises(KeyError) as raised:
        import_module("sent_failing").fail()
    assert traceback.extract_tb(raised.value.__traceback__)[-1].line == "raise KeyError('a')"


def test_function_without_source_is_refused() -> None:
    for module in (import_module("_ctypes"), ModuleType("made")):
        with pytest.raises(TransformError, match=f"'{module.__name__}' is not a Python source file"):
            read_sources([module])
