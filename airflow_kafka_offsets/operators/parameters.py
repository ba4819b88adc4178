"""Rules for the parameters of operators."""

from __future__ import annotations

from airflow_kafka_offsets.core.parameters import FLAG, NAME, TEXT, one_of, or_none
from airflow_kafka_offsets.loading.parameters import PIPELINE_RULES, SINK

OPERATOR_RULES = PIPELINE_RULES | {
    "on_busy": one_of("wait", "skip", "fail"),
    "offsets_schema": or_none(TEXT),
    "offsets_prefix": TEXT,
    "conn_id": or_none(NAME),
    "offsets_conn_id": NAME,
    "kafka_conn_id": NAME,
    "spark_conn_id": NAME,
}

VERIFY_RULES = OPERATOR_RULES | {"kafka_conn_id": or_none(NAME)}

REWIND_RULES = OPERATOR_RULES | {
    "replace": or_none(SINK),
    "abandon_open_batch": FLAG,
    "new_group": FLAG,
    "new_cluster": FLAG,
}
