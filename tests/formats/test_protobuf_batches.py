"""Batches of records of several writers' schemas against google.protobuf, record by record: no row ever comes from
another record.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.corruption import mutated
from tests.support.decoding import FIRST_OFFSET, STEP
from tests.support.examples import examples
from tests.support.protobuf import VERSIONS, decoded, encode, known, ordered, own_columns, reference_row, values, wire
from tests.support.protobuf import given as given_schema

_versions = st.sampled_from(sorted(VERSIONS))
_records = _versions.flatmap(lambda version: values(version).map(lambda value: (version, encode(version, value))))


def expected(record: tuple[int, bytes] | None) -> Any:
    """What google.protobuf reads with the reader's schema, whichever the writer's is."""
    names = known(message="Order").columns().names
    return ordered(dict.fromkeys(names) if record is None else reference_row(3, record[1]))


@examples(150)
@given(batch=st.lists(st.none() | _records, min_size=1, max_size=12))
def test_three_versions_of_a_schema_and_tombstones_in_any_order(batch: list[tuple[int, bytes] | None]) -> None:
    rows, bad = decoded(known(message="Order"), [None if record is None else wire(*record) for record in batch])

    assert not bad
    assert [ordered(row) for row in own_columns(rows)] == [expected(record) for record in batch]
    assert rows.column("_kafka_offset").to_pylist() == [FIRST_OFFSET + STEP * place for place in range(len(batch))]


@examples(60)
@given(batch=st.lists(values(3), min_size=1, max_size=8))
def test_plain_messages_of_a_given_schema(batch: list[dict[str, Any]]) -> None:
    data = [encode(3, value) for value in batch]

    rows, bad = decoded(given_schema(VERSIONS[3], message="shop.v1.Order"), data)

    assert not bad
    assert [ordered(row) for row in own_columns(rows)] == [ordered(reference_row(3, datum)) for datum in data]


# Records that may be no longer ones.
_mutated = _records.flatmap(lambda record: mutated(record[1]).map(lambda datum: wire(record[0], datum)))


@examples(60)
@given(
    batch=st.lists(
        _records.map(lambda record: wire(*record)) | _mutated | st.binary(max_size=12), min_size=2, max_size=20
    )
)
def test_mixed_batch_decodes_each_record_as_alone(batch: list[bytes]) -> None:
    decode_as = known(message="Order")
    alone = [decoded(decode_as, [record]) for record in batch]

    rows, bad = decoded(decode_as, batch)

    assert [repr(row) for row in own_columns(rows)] == [repr(row) for one in alone for row in own_columns(one.rows)]
    assert [record.row for record in bad] == [place for place, one in enumerate(alone) if one.bad]
    assert rows.num_rows + len(bad) == len(batch)
