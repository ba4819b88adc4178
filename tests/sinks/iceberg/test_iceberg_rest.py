"""A real REST catalog behind a gateway that loses requests and answers, or that dies itself: every row is there
once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.exceptions import CommitUnknownError, DatabaseUnavailableError
from airflow_kafka_offsets.sinks.iceberg.snapshot import IcebergSnapshot
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from devstack.http_proxy import Fault, HttpProxy
from devstack.iceberg_rest import IcebergRestServer
from tests.support.clients import Kafka, produce
from tests.support.iceberg import IcebergGroup, iceberg_sink, rest_server
from tests.support.lake import AGAIN, RUN
from tests.support.loads import Loader, names, rows
from tests.support.rewinds import Rewinder

pytestmark = [pytest.mark.server, pytest.mark.long]

OFFSETS = [0, 1, 2, 4, 5, 6, 7, 8, 9]
COMMIT = r"/v1/namespaces/[^/]+/tables/[^/]+"


@pytest.fixture
def proxy() -> Iterator[HttpProxy]:
    with HttpProxy(rest_server().port, COMMIT) as proxy:
        yield proxy


@pytest.fixture
def sink(proxy: HttpProxy, tmp_path: Path) -> IcebergTable:
    sink = iceberg_sink("rest", tmp_path)
    return replace(sink, catalog={"type": "rest", "uri": f"http://127.0.0.1:{proxy.port}"})


@pytest.mark.parametrize("fault", [Fault.SWALLOW_ANSWER, Fault.TIME_OUT])
def test_a_commit_whose_answer_is_lost_is_looked_up(group: IcebergGroup, proxy: HttpProxy, fault: Fault) -> None:
    proxy.arm(fault)

    assert group.load(run=RUN).rows == 9

    assert proxy.triggered.is_set()
    assert group.offsets() == OFFSETS
    assert group.proved() == (9, 1, 10)
    assert len(group.table.snapshots()) == 1


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.REFUSE])
def test_a_commit_that_never_arrived_is_made_by_the_next_try(
    group: IcebergGroup, proxy: HttpProxy, fault: Fault
) -> None:
    proxy.arm(fault)
    with pytest.raises(CommitUnknownError, match="The outcome of a commit to"):
        group.load(run=RUN)

    assert proxy.triggered.is_set()
    assert group.rows() == []
    assert group.load(run=AGAIN).rows == 9
    assert group.proved() == (9, 1, 10)
    assert len(group.table.snapshots()) == 1


@pytest.mark.parametrize("fault", list(Fault))
def test_a_rewind_and_a_replay_that_replace_are_made_once_whatever_becomes_of_their_commits(
    group: IcebergGroup, proxy: HttpProxy, kafka: Kafka, fault: Fault
) -> None:
    group.load(limits=Limits(max_records=4))
    is_made = fault in (Fault.SWALLOW_ANSWER, Fault.TIME_OUT)

    proxy.arm(fault)
    if is_made:
        assert group.replay({group.orders: {0: (2, 6)}}, replace=True, run=RUN).rows == 3
    else:
        with pytest.raises(CommitUnknownError):
            group.replay({group.orders: {0: (2, 6)}}, replace=True, run=RUN)
        assert group.replay({group.orders: {0: (2, 6)}}, replace=True, run=AGAIN).rows == 3
    removed = "SELECT replaced_batch_id, row_count FROM replaced_output WHERE row_count > 0 ORDER BY 1"
    assert rows(group.loader.engine, removed) == [(1, 1), (2, 2)]

    proxy.arm(fault)
    if is_made:
        assert Rewinder(group.loader)("to-offset", 2, replace=group.sink).rows_removed == 7
    else:
        with pytest.raises(CommitUnknownError):
            Rewinder(group.loader)("to-offset", 2, replace=group.sink)
    produce(kafka, group.orders, names(10, 1))
    group.load()

    assert group.offsets() == [*OFFSETS, 10]
    assert group.proved()[:2] == (10, 1)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_catalog_that_dies_with_a_commit_is_asked_again_by_the_next_try(
    inline_loader: Loader, orders: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with IcebergRestServer() as server:
        sink = replace(iceberg_sink("rest", Path()), catalog=server.catalog)
        group = IcebergGroup(inline_loader, orders, sink)
        commit = IcebergSnapshot.commit

        def dies(snapshot: IcebergSnapshot, *args: Any) -> bool:
            if moment == "before":
                server.kill()
            made = commit(snapshot, *args)
            server.kill()
            return made

        with monkeypatch.context() as patched:
            patched.setattr(IcebergSnapshot, "commit", dies)
            if moment == "before":
                with pytest.raises(DatabaseUnavailableError, match="cannot be read"):
                    group.load(run=RUN)
            else:
                assert group.load(run=RUN).rows == 9

        with pytest.raises(DatabaseUnavailableError, match="cannot be read: ConnectionError"):
            group.load(run=AGAIN)
        server.start()
        assert group.load(run=AGAIN).rows == (9 if moment == "before" else 0)
        assert group.offsets() == OFFSETS
        assert group.proved() == (9, 1, 10)
