"""`semel check` of tables and topics that rows go to: what is wrong is found, with a remedy that is
one, within ten seconds; and the check makes nothing there.
"""

import json
import re
import secrets
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from fixtures.batches.account import quiet
from fixtures.batches.workbench import Workbench
from fixtures.kafka.broker import Kafka
from fixtures.kafka.outlet import CONTROL
from fixtures.kafka.server import Listener
from fixtures.postgres.warehouse import Warehouse
from fixtures.wait import wait_for
from semel import settings
from semel.clients.kafka.cluster import Cluster
from semel.errors import UnavailableError
from semel.sinks.kafka.facts import check_replicas
from semel.sinks.kafka.target import KafkaTarget
from semel.spark import check as module
from semel.spark.check import CheckReport, CheckResult

PASSWORD = "pa55 of nobody's business"
SECONDS_MAX = 10
TRANSACTIONS = "transactions"
RIGHTS = [("topic", "READ"), ("topic", "WRITE"), ("topic", "DESCRIBE_CONFIGS"),
          (TRANSACTIONS, "WRITE")]  # fmt: skip


class Output:
    """A pipeline whose sink is looked at, by a user who may do what is needed."""

    def __init__(self, bench: Workbench, patch: pytest.MonkeyPatch) -> None:
        self.bench, self.patch = bench, patch
        self.sink: dict[str, object] = {}

    def look(self) -> CheckResult:
        found, began = CheckReport(), time.monotonic()
        module._sinks(found, [self.bench.spec(sink=self.sink)], quiet)
        assert time.monotonic() - began < SECONDS_MAX
        [one] = found.checks
        assert PASSWORD not in repr(one) and "hidden" not in repr(one)
        return one


class TopicOutput(Output):
    """A topic and its control topic, which are there unless a test says otherwise."""

    def __init__(self, bench: Workbench, patch: pytest.MonkeyPatch, kafka: Kafka) -> None:
        super().__init__(bench, patch)
        self.kafka, self.user = kafka, f"writes-{secrets.token_hex(4)}"
        self.topic = f"rows-{secrets.token_hex(6)}"
        self.control = f"_semel_{self.topic}"
        self.sink = {"type": "kafka", "connection": "own", "topic": self.topic, "key": "id"}
        kafka.user(self.user, PASSWORD)
        self.connect(PASSWORD)

    def connect(self, password: str, **more: str) -> None:
        login = {"mechanism": "SCRAM-SHA-256", "username": self.user, "password": password}
        sasl = {f"sasl_{name}": value for name, value in login.items()}
        extra = self.kafka.client(Listener.SCRAM, **sasl) | more
        text = json.dumps({"conn_type": "kafka", "extra": extra})
        self.patch.setenv("AIRFLOW_CONN_OWN", text)

    def make(self, *, topic: bool = True, control: dict | None = CONTROL) -> "TopicOutput":
        """Make both topics, or one of them; the control topic with these settings."""
        if topic:
            self.kafka.topic(self.topic, partitions=2)
        if control is not None:
            self.kafka.topic(self.control, config=control)
        return self

    def allowed(self, *, but: tuple[str, str] | None = None) -> "TopicOutput":
        for right in RIGHTS:
            if right != but:
                self.allow(*right)
        return self

    def allow(self, place: str, operation: str) -> None:
        """Give a right to both topics, or to the transactional ids."""
        kind, names = ResourceType.TOPIC, [self.topic, self.control]
        if place == TRANSACTIONS:
            kind, names = ResourceType.TRANSACTIONAL_ID, [f"semel.{self.topic}."]
        pattern, yes = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
        who, operation = f"User:{self.user}", AclOperation[operation]
        rules = [AclBinding(kind, n, pattern, who, "*", operation, yes) for n in names]
        for done in self.kafka.admin.create_acls(rules).values():
            done.result()

    def type_in(self, said: str) -> None:
        """Do what a command of Kafka's own tools in a message does."""
        found = re.search(r"(kafka-\w+)\.sh --bootstrap-server (\S+) (.*)", said)
        tool, servers, words = found.groups()
        assert servers == self.kafka.broker.address(Listener.SCRAM)
        options = dict(re.findall(r"--([a-z-]+) ([^- ]\S*)", words))
        if tool == "kafka-topics":
            config = dict([options["config"].split("=")]) if "config" in options else {}
            self.kafka.topic(options["topic"], config=config)
            return
        self.kafka.configure(options["topic"], *options["add-config"].split("="))


@pytest.fixture
def output(bench: Workbench, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> TopicOutput:
    return TopicOutput(bench, monkeypatch, kafka)


def reconnect(o: TopicOutput, _: str) -> None:
    o.connect(PASSWORD)


Harm, Mend = Callable[[TopicOutput], object], Callable[[TopicOutput, str], object]
TOPICS: dict[str, tuple[Harm, Mend, str]] = {
    "broker away": (
        lambda o: o.make().allowed().connect(PASSWORD, **{"bootstrap.servers": "127.0.0.1:1"}),
        reconnect, "does not answer",
    ),
    "wrong password": (
        lambda o: o.make().allowed().connect("hidden"), reconnect, "refuses the login",
    ),
    "no connection": (
        lambda o: o.make().allowed().patch.setenv("AIRFLOW_CONN_OWN", ""),
        reconnect, "export AIRFLOW_CONN_OWN",
    ),
    "no topic": (
        lambda o: o.make(topic=False).allowed(), TopicOutput.type_in, "has no topic rows-",
    ),
    "no control topic": (
        lambda o: o.make(control=None).allowed(), TopicOutput.type_in,
        "has no topic _semel_rows-",
    ),
    "it forgets": (
        lambda o: o.make(control={}).allowed(), TopicOutput.type_in,
        "would lose the notes about landed batches",
    ),
    "no right to make": (
        lambda o: o.allowed().sink.update(create=True), lambda o, _: o.allow("topic", "CREATE"),
        "rights that docs/kafka.md lists",
    ),
    "no right to write": (
        lambda o: o.make().allowed(but=("topic", "WRITE")),
        lambda o, _: o.allow("topic", "WRITE"), "may not WRITE the topic rows-",
    ),
    "no right to look": (
        lambda o: o.make().allowed(but=("topic", "DESCRIBE_CONFIGS")),
        lambda o, _: o.allow("topic", "DESCRIBE_CONFIGS"), "rights that docs/kafka.md lists",
    ),
    "no transactions": (
        lambda o: o.make().allowed(but=(TRANSACTIONS, "WRITE")),
        lambda o, _: o.allow(TRANSACTIONS, "WRITE"), "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    ),
}  # fmt: skip
"""What does harm, what does the remedy with what was said, and words of it."""


# Attacks KP5.
@pytest.mark.parametrize("case", TOPICS)
def test_topics_that_no_batch_can_land_in(output: TopicOutput, case: str) -> None:
    """After the remedy, as it is said, all is right."""
    harm, mend, words = TOPICS[case]
    harm(output)

    def told() -> CheckResult | None:
        one = output.look()
        return one if not one.ok and words in f"{one.detail} {one.remedy}" else None

    # A right, or a setting, is not known at once.
    one = wait_for(told, words, SECONDS_MAX)
    mend(output, one.detail)
    wait_for(lambda: output.look().ok, words, SECONDS_MAX)


def test_a_topic_is_told_and_none_is_made(output: TopicOutput, kafka: Kafka) -> None:
    """Topics that stage will make are told as such, and are not there afterwards."""
    output.sink |= {"create": True}
    output.allowed().allow("topic", "CREATE")
    one = output.look()
    assert one.ok and one.detail.count("stage creates it") == 2, one
    known = kafka.admin.list_topics(timeout=SECONDS_MAX).topics
    assert not {output.topic, output.control} & known.keys()
    output.make()
    one = output.look()
    assert one.ok and "2 partitions, messages of up to 1,048,588 bytes; its control topic: " \
        "compacted" in one.detail, one  # fmt: skip


def test_a_partition_that_too_few_brokers_have() -> None:
    """Says which one, and which brokers to start; a topic with fewer replicas than are asked for
    takes messages all the same, as the brokers see it.
    """
    def partition(replicas: int, there: int, leader: int | None = 1) -> SimpleNamespace:
        nodes = [SimpleNamespace(id=n) for n in range(1, replicas + 1)]
        return SimpleNamespace(id=4, leader=leader, replicas=nodes, isr=nodes[:there])

    def check(*parts: SimpleNamespace) -> None:
        topic = SimpleNamespace(name="rows", partitions=parts)
        check_replicas(target, topic, 2)

    target = KafkaTarget(cluster=Cluster(servers="broker:9092"), topic="rows")
    check(partition(3, 2), partition(1, 1))
    with pytest.raises(UnavailableError, match=r"partition 4 of rows is in sync on 1 of the 2 .*"
                       r"Start its brokers \(1, 2, 3\)"):  # fmt: skip
        check(partition(3, 3), partition(3, 1))
    with pytest.raises(UnavailableError, match="partition 4 of rows has no leader"):
        check(partition(1, 0, leader=None))


class TableOutput(Output):
    """A table, and a user without any right but to the schema."""

    def __init__(
        self, bench: Workbench, patch: pytest.MonkeyPatch, warehouse: Warehouse
    ) -> None:
        super().__init__(bench, patch)
        self.warehouse, self.role = warehouse, warehouse.role()
        self.sink = {"type": "postgres", "connection": "own", "table": "rows"}
        warehouse.run(f"GRANT CREATE ON SCHEMA public TO {self.role.name}")
        self.connect(self.role.dsn)

    def connect(self, dsn: str) -> None:
        self.patch.setenv("AIRFLOW_CONN_OWN", dsn)

    def make(self, columns: str = "id text, n bigint, at timestamptz") -> "TableOutput":
        own = "_semel_batch bigint, _semel_seq bigint"
        self.warehouse.run(f"CREATE TABLE rows ({columns}, {own})")
        self.warehouse.run(f"GRANT INSERT, SELECT ON rows TO {self.role.name}")
        return self

    def type_in(self, said: str) -> None:
        """Run the statement in a message."""
        [statement] = re.findall(r"(?:GRANT|ALTER TABLE|CREATE TABLE) .*", said)
        to = f" TO {self.role.name}" if statement.startswith("GRANT") else ""
        self.warehouse.run(statement + to)
        if statement.startswith("CREATE"):
            self.warehouse.run(f"GRANT INSERT, SELECT ON rows TO {self.role.name}")


@pytest.fixture
def rows(bench: Workbench, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> TableOutput:
    return TableOutput(bench, monkeypatch, warehouse)


def hidden(dsn: str) -> str:
    return sa.make_url(dsn).set(password="hidden").render_as_string(hide_password=False)


def revoked(o: TableOutput, rights: str) -> None:
    o.make()
    o.warehouse.run(f"REVOKE {rights}")


def admit(o: TableOutput, _: str) -> None:
    o.connect(o.role.dsn)


TABLES: dict[str, tuple[Callable, Callable, str]] = {
    "away": (
        lambda o: o.make().connect("postgresql://semel:hidden@127.0.0.1:1/rows"), admit,
        "does not answer",
    ),
    "wrong password": (
        lambda o: o.make().connect(hidden(o.role.dsn)), admit, "refuses the login",
    ),
    "no table": (
        lambda o: o.sink.update(create=False), TableOutput.type_in,
        "it does not exist, and sink.create is false",
    ),
    "no right to insert": (
        lambda o: revoked(o, f"INSERT ON rows FROM {o.role.name}"), TableOutput.type_in,
        "may not INSERT",
    ),
    "no right to note": (
        lambda o: revoked(o, f"CREATE ON SCHEMA public FROM PUBLIC, {o.role.name}"),
        TableOutput.type_in, "GRANT CREATE ON SCHEMA",
    ),
    "no column": (
        lambda o: o.make("id text, at timestamptz"), TableOutput.type_in, "lacks the column 'n'",
    ),
}  # fmt: skip
"""As TOPICS."""


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_no_batch_can_land_in(rows: TableOutput, case: str) -> None:
    """After the remedy, as it is said, all is right."""
    harm, mend, words = TABLES[case]
    harm(rows)
    one = rows.look()
    assert not one.ok and words in one.detail, one
    mend(rows, one.detail)
    one = rows.look()
    assert one.ok and "table postgresql://" in one.detail, one


def test_a_table_that_stage_will_make(rows: TableOutput) -> None:
    """It is told as such, and not there afterwards."""
    rows.sink |= {"create": True}
    one = rows.look()
    assert one.ok and "does not exist yet, and finalize creates it, mode append" in one.detail, one
    assert rows.warehouse.run("SELECT to_regclass('rows')") == [(None,)]


def test_the_check_looks_at_sinks(
    rows: TableOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside all else, whether Spark answers or not."""
    rows.sink |= {"create": False}
    monkeypatch.setenv(settings.LEDGER_VARIABLE, "postgresql://semel@127.0.0.1:1/semel")
    found = module.check([rows.bench.spec(sink=rows.sink)], "sc://127.0.0.1:1", quiet)
    [one] = [o for o in found.checks if o.name == "sink" and not o.ok]
    assert "sink.create is false" in one.detail and "docs/postgres.md" in one.remedy
