"""Where the files of an Iceberg table may be, by what its metadata says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import WAREHOUSE_LOCATION
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table, TableProperties

from airflow_kafka_offsets.core.addresses import is_local, is_relative
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.target_names import STORE_SCHEMES
from airflow_kafka_offsets.writers.object_files import is_below

_PLACES = (TableProperties.WRITE_DATA_PATH, TableProperties.WRITE_METADATA_PATH)

_KNOWN_CODE = ("pyiceberg.io.pyarrow.PyArrowFileIO", "pyiceberg.io.fsspec.FsspecFileIO")


def names_code(name: str, value: object) -> bool:
    """Return whether pyiceberg would import and call what a property names."""
    return name.lower().endswith("impl") and value not in _KNOWN_CODE


def may_be_local(properties: Mapping[str, Any]) -> bool:
    """Return whether the files of a catalog's tables may be on this machine: no warehouse is set, or it is a path. A
    server may know it by a name.
    """
    warehouse = str(properties.get(WAREHOUSE_LOCATION, ""))
    return not warehouse or (is_local(warehouse) and not is_relative(warehouse))


def check_places(name: str, table: Table, *, may_be_local: bool) -> None:
    """Check by what a table chooses the names of files.

    :param may_be_local: whether its files may be those of this machine
    :raises TargetError: a property names code, which pyiceberg would import, or a place on this machine
    """
    properties = table.properties
    if named := [each for each, value in properties.items() if names_code(each, value) and "write." in each]:
        raise TargetError(
            f"{name} has the property {named[0]!r}, which names code that this package does not run: remove it from "
            "the table"
        )
    places = [table.location(), *(properties[each] for each in _PLACES if each in properties)]
    local = [place for place in places if PyArrowFileIO.parse_location(place)[0] == "file"]
    if local and not may_be_local:
        raise TargetError(
            f"{name} has the place {local[0]!r}, which is on this machine, while its warehouse is not: correct its "
            "location and the properties write.data.path and write.metadata.path. Nothing was written"
        )


def check_manifest_list(name: str, table: Table, *, may_be_local: bool) -> None:
    """Check that the last snapshot names its files where the next one will: a commit copies what is there, perhaps from
    where those who write the metadata cannot read.

    :param may_be_local: whether they may be on this machine
    :raises TargetError: they are elsewhere
    """
    if (snapshot := table.current_snapshot()) is not None:
        check_metadata_file(name, table, "manifest list", snapshot.manifest_list, may_be_local=may_be_local)


def check_metadata_file(name: str, table: Table, kind: str, path: str, *, may_be_local: bool) -> None:
    """Check that a file of a table's metadata is where the table has it; see `check_manifest_list`."""
    place = table.properties.get(TableProperties.WRITE_METADATA_PATH, table.location())
    if not is_in_place(path, place, may_be_local=may_be_local):
        raise TargetError(
            f"{name} has the {kind} {path}, which is not below {place}, where the table has its metadata: correct its "
            "location or its property write.metadata.path, or, if it was moved, have an engine rewrite its manifests. "
            "Nothing was written"
        )


def is_whole(path: str) -> bool:
    """Return whether pyiceberg takes a path as it is: it ends paths at `?` and `#`."""
    return {"?", "#"}.isdisjoint(path)


def is_in_place(path: str, place: str, *, may_be_local: bool) -> bool:
    """Return whether a file is below a directory of the same storage.

    :param path: its address
    :param place: that of the directory
    :param may_be_local: whether the storage may be that of this machine
    """
    (scheme, host, root), (of_file, host_of_file, name) = map(PyArrowFileIO.parse_location, (place, path))
    if STORE_SCHEMES.get(scheme, scheme) != STORE_SCHEMES.get(of_file, of_file) or host != host_of_file:
        return False
    if scheme == "file":
        return may_be_local and is_below(root, name)
    return name.startswith(f"{root.rstrip('/')}/") and ".." not in name.split("/")
