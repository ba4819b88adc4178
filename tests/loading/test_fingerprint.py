"""The fingerprint of a pipeline, which changes with the code of its transform."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import get_args

import pytest

from airflow_kafka_offsets import ExtraColumns
from airflow_kafka_offsets.formats.record_format import OnNewField
from tests.support.staged import COLUMNS, PIPELINE


class TestTheFingerprintOfATransform:
    """It changes with the code, and is found of whatever a transform may be."""

    SOURCE = """
        from functools import partial, wraps

        def plain(rows):
            return rows

        def add(rows, column):
            return rows

        def wrapping(function):
            @wraps(function)
            def wrapped(rows):
                return function(rows)
            return wrapped

        class Cleaner:
            def __call__(self, rows):
                return rows

        part = partial(add, column="a")
        parts = partial(partial(plain))
        wrapped = wrapping(plain)
        cleaner = Cleaner()
        method = cleaner.__call__
        built_in = id
    """

    @pytest.fixture
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        file = tmp_path / "shop_of_this_test.py"
        file.write_text(dedent(self.SOURCE))
        monkeypatch.syspath_prepend(tmp_path)
        yield file
        sys.modules.pop(file.stem, None)

    @pytest.mark.parametrize("name", ["plain", "part", "parts", "wrapped", "Cleaner", "cleaner", "method", "built_in"])
    def test_fingerprint_changes_with_the_module(self, module: Path, name: str) -> None:
        pipeline = replace(PIPELINE, transform=f"{module.stem}.{name}")
        before = pipeline.fingerprint(COLUMNS)
        assert pipeline.fingerprint(COLUMNS) == before
        module.write_text(f"{module.read_text()}# changed\n")
        assert pipeline.fingerprint(COLUMNS) != before

    def test_fingerprint_changes_with_the_module_of_a_partial(
        self, module: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = ModuleType("other_of_this_test")
        monkeypatch.setitem(sys.modules, other.__name__, other)
        other.clean = partial(import_module(module.stem).add, column="b")  # type: ignore[attr-defined]
        pipeline = replace(PIPELINE, transform=f"{other.__name__}.clean")
        before = pipeline.fingerprint(COLUMNS)
        module.write_text(f"{module.read_text()}# changed\n")
        assert pipeline.fingerprint(COLUMNS) != before


def test_fingerprint_changes_with_on_new_fields() -> None:
    """Files that were staged without some fields must not be committed by a load that such fields are to fail."""
    prints = {
        replace(PIPELINE, extra_columns=ExtraColumns(on_new_field=chosen)).fingerprint(COLUMNS)
        for chosen in get_args(OnNewField)
    }
    assert len(prints) == 3
