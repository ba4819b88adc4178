"""Which Spark properties hold secrets, and that a DAG file cannot hold them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from airflow_kafka_offsets import Json, KafkaBatchOperator, KafkaReplayOperator, Spark, SqlTable
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.spark.properties import REDACTION, refuse_literal_secrets, split_secrets

SECRETS = [
    "spark.authenticate.secret",
    "spark.databricks.token",
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
    "spark.hadoop.fs.azure.account.oauth2.client.secret",
    "spark.executorEnv.API_KEY",
    "spark.executorEnv.MYSQL_PWD",
    "spark.hadoop.fs.adl.oauth2.credential",
    "spark.hadoop.fs.azure.sas.fixed.token.lake.dfs.core.windows.net",
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.obs.ak",
    "spark.hadoop.fs.s3a.encryption.key",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.server-side-encryption.key",
    "spark.hadoop.fs.s3a.signing-key",
    "spark.hadoop.fs.swift.service.x.apikey",
    "spark.hadoop.ssl.keystore.pass",
    "spark.hadoop.fs.s3a.session.token",
    "spark.hadoop.google.cloud.auth.service.account.private.key",
    "spark.kubernetes.authenticate.driver.oauthToken",
    "spark.jdbc.pwd",
    "spark.sql.catalog.lake.credential",
    "spark.sql.catalog.lake.header.Authorization",
    "spark.sql.catalog.lake.jdbc.password",
    "spark.sql.catalog.lake.s3.access-key-id",
    "spark.sql.catalog.lake.s3.sse.key",
    "spark.executorEnv.CLIENT_KEY",
    "spark.executorEnv.DBPASS",
    "spark.executorEnv.FERNET_KEY",
    "spark.hadoop.fs.azure.account.key.mytimeout",
    "spark.hadoop.fs.azure.account.key.profile",
    "spark.kafka.clusters.x.sasl.jaas.config",
    "spark.mongodb.read.connection.uri",
    "spark.redis.auth",
    "spark.sql.catalog.lake.adls.connection-string.account",
    "spark.sql.catalog.lake.gcs.decryption-key",
    "spark.sql.catalog.lake.header.Cookie",
    "spark.ssl.keyPassword",
    "spark.ssl.trustStorePassword",
]
NO_SECRETS = [
    "spark.executor.memory",
    "spark.hadoop.fs.azure.account.auth.type",
    "spark.hadoop.fs.azure.account.oauth.provider.type",
    "spark.hadoop.fs.s3a.aws.credentials.provider",
    "spark.hadoop.fs.s3a.encryption.algorithm",
    "spark.hadoop.hive.security.authorization.manager",
    "spark.hadoop.hadoop.security.credential.provider.path",
    "spark.kubernetes.authenticate.oauthTokenFile",
    "spark.io.encryption.keySizeBits",
    "spark.security.credentials.hive.enabled",
    "spark.security.credentials.retryWait",
    "spark.sql.shuffle.partitions",
    "spark.ssl.keyStore",
]


def test_airflow_masks_no_other_option_of_the_command() -> None:
    """It masks what follows these words in the command that it logs, up to the next blank."""
    assert [word for word in ("secret", "password") if word in REDACTION] == []


def test_properties_with_secrets_are_told_from_those_that_are_about_them() -> None:
    plain, secrets = split_secrets({name: number for number, name in enumerate(SECRETS + NO_SECRETS)})
    assert sorted(secrets) == sorted(SECRETS)
    assert sorted(plain) == sorted(NO_SECRETS)
    assert set(map(type, secrets.values())) == {str}


@pytest.mark.parametrize("operator", [KafkaBatchOperator, partial(KafkaReplayOperator, bounds={"orders": {0: [0, 1]}})])
def test_a_secret_in_a_dag_file_is_refused_when_it_is_parsed(operator: Any) -> None:
    conf = {"spark.executor.memory": "2g", "spark.hadoop.fs.s3a.secret.key": "open sesame"}
    with pytest.raises(
        ConfigurationError, match=r"^Spark.conf\['spark\.hadoop\.fs\.s3a\.secret\.key'\] holds a secret"
    ) as refused:
        operator(
            task_id="load",
            group_id="loader",
            topics=["orders"],
            value_format=Json("id BIGINT"),
            sink=SqlTable("orders", conn_id="warehouse"),
            spark=Spark(conf=conf),
        )
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(
    "conf",
    [
        None,
        "{{ params.conf }}",
        {"spark.hadoop.fs.s3a.secret.key": "{{ conn.lake.password }}"},
        {"spark.hadoop.fs.s3a.aws.credentials.provider": "org.example.Provider"},
        {"idempotency_token": "load-1", "clientRequestToken": "load-1"},
    ],
)
def test_a_template_is_not(conf: Any) -> None:
    refuse_literal_secrets(Spark(conf=conf))
