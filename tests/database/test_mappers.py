"""Mappers of a library in a process that has imported Airflow."""

import subprocess
import sys
import textwrap


def test_an_iceberg_catalog_imports_no_models_of_airflow_and_leaves_them_usable() -> None:
    """In a process of its own: the models of this one are imported long since."""
    code = """
    import sys
    import sqlalchemy as sa
    import airflow
    from pyiceberg.catalog.sql import SqlCatalogBaseTable
    from airflow_kafka_offsets.sinks.iceberg.format import PositionsCatalog, open_catalog

    with sa.create_engine("sqlite://").begin() as conn:
        SqlCatalogBaseTable.metadata.create_all(conn)
        for _ in range(2):
            catalog = PositionsCatalog("default", conn)
            catalog.create_namespace_if_not_exists("shop")
        print(catalog.list_namespaces(), "airflow.models.dag_favorite" in sys.modules)
    open_catalog("other", ("type", "sql"), ("uri", "sqlite://"))
    print("airflow.models.dag_favorite" in sys.modules)

    from airflow.models.dag import DagModel

    print("airflow.models.dag_favorite" in sys.modules)
    print("tags" in sa.inspect(DagModel).relationships, "airflow.models.dag_favorite" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == ["[('shop',)] False", "False", "False", "True True"], done.stderr
