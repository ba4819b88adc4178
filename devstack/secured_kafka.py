"""A Kafka broker with TLS, logins and ACLs, for tests of what a user may do and of connections that cannot work."""

from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from devstack.certificates import Authority
from devstack.kafka import KafkaBroker
from devstack.process import wait_until

SASL, MTLS = "SASL", "MTLS"

_MODULES = "org.apache.kafka.common.security"

# The fewest that Kafka allows.
_ITERATIONS = 4096

_TIMEOUT = 30.0


class SecuredKafka(KafkaBroker):
    """A broker with three listeners, all of 127.0.0.1, that lets users do only what ACLs allow.

    * The one of every broker of the tests, in plain text: its user, ANONYMOUS, is a super user, with whom tests set up.
    * `SASL`: SASL_SSL with SCRAM-SHA-512 and PLAIN.
    * `MTLS`: TLS with a certificate of the client. Its user is the subject, such as `CN=loader`.

    Keys and certificates are made for the object, and are in no file but the broker's own settings.

    :param plain_users: passwords by name, for PLAIN, which knows no users but those that the broker starts with
    """

    def __init__(self, *, plain_users: dict[str, str] | None = None) -> None:
        self.authority = Authority()
        server = self.authority.issue("broker")
        plain = "".join(f' user_{name}="{password}"' for name, password in (plain_users or {}).items())
        sasl = f"listener.name.{SASL.lower()}"
        config = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": server.certificate,
            "ssl.keystore.key": server.key,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": self.authority.certificate,
            f"listener.name.{MTLS.lower()}.ssl.client.auth": "required",
            f"{sasl}.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            f"{sasl}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            f"{sasl}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required{plain};",
        }
        super().__init__(
            # As a file of properties has line breaks.
            config={name: value.replace("\n", "\\n") for name, value in config.items()},
            protocols={SASL: "SASL_SSL", MTLS: "SSL"},
        )

    def add_user(self, name: str, password: str) -> None:
        """Create a user of SCRAM-SHA-512, and wait until the broker knows the password."""
        admin = self._admin()
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS)
        upsertion = UserScramCredentialUpsertion(name, info, password.encode())
        admin.alter_user_scram_credentials([upsertion])[name].result(_TIMEOUT)

        def is_known() -> bool:
            try:
                admin.describe_user_scram_credentials([name])[name].result(_TIMEOUT)
            except KafkaException:
                return False
            return True

        wait_until(is_known, _TIMEOUT, f"user {name}")

    def allow(self, principal: str, operation: str, kind: str, name: str) -> None:
        """Add an ACL, and wait until the broker goes by it.

        :param principal: such as `User:loader`
        :param operation: as Kafka's tools spell it: `Read`, `DescribeConfigs`, …
        :param kind: of the resource: `topic` or `group`
        """
        # The client spells them READ and DESCRIBE_CONFIGS.
        constant = "".join(
            f"_{dead_letter}" if dead_letter.isupper() else dead_letter.upper() for dead_letter in operation
        ).strip("_")
        what = (ResourceType[kind.upper()], name, ResourcePatternType.LITERAL, principal, "*", AclOperation[constant])
        admin = self._admin()
        for created in admin.create_acls([AclBinding(*what, AclPermissionType.ALLOW)]).values():
            created.result(_TIMEOUT)
        sought = AclBindingFilter(*what, AclPermissionType.ALLOW)
        wait_until(lambda: admin.describe_acls(sought).result(_TIMEOUT), _TIMEOUT, f"the ACL for {principal}")

    def sasl(self, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """Return the configuration of a client that logs in with a password."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.ports[SASL]}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.pem": self.authority.certificate,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def mtls(self, user: str) -> dict[str, Any]:
        """Return the configuration of a client with a certificate of the subject `CN=user`."""
        certificate = self.authority.issue(user)
        return {
            "bootstrap.servers": f"127.0.0.1:{self.ports[MTLS]}",
            "security.protocol": "SSL",
            "ssl.ca.pem": self.authority.certificate,
            "ssl.certificate.pem": certificate.certificate,
            "ssl.key.pem": certificate.key,
        }

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
