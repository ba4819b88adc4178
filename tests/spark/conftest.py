"""What is decoded in a child is the subject here, from the start of the child on."""

from __future__ import annotations

import subprocess

import pytest

from airflow_kafka_offsets.spark import isolation


@pytest.fixture(autouse=True)
def _real_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "subprocess", subprocess)
