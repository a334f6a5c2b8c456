"""Whose credentials a store is asked by, where the environment has somebody else's."""

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from fixtures.kafka.registry import Answers, answering
from semel.clients.objects import Store, access
from semel.clients.objects.access import StoreLocation, client_options
from semel.errors import SemelError, TerminalError

KEYS = {"ours": base64.b64encode(b"a" * 32).decode(), "other": base64.b64encode(b"b" * 32).decode()}
OTHERS: dict[str, dict[str, str]] = {
    "token": {"AZURE_STORAGE_TOKEN": "other"},
    "key": {"AZURE_STORAGE_ACCOUNT_KEY": KEYS["other"]},
    "key by its second name": {"AZURE_STORAGE_ACCESS_KEY": KEYS["other"]},
    "key by its third name": {"AZURE_STORAGE_MASTER_KEY": KEYS["other"]},
    "workload": {"AZURE_CLIENT_ID": "other", "AZURE_TENANT_ID": "other",
                 "AZURE_FEDERATED_TOKEN_FILE": "token"},
    "secret": {"AZURE_CLIENT_ID": "other", "AZURE_TENANT_ID": "other",
               "AZURE_CLIENT_SECRET": "other"},
    "sas": {"AZURE_STORAGE_SAS_TOKEN": "sv=other&sig=other"},
    "unsigned": {"AZURE_SKIP_SIGNATURE": "true"},
    "fabric": {f"AZURE_FABRIC_{name}": "http://127.0.0.1:9/x" for name in (
        "TOKEN_SERVICE_URL", "WORKLOAD_HOST", "SESSION_TOKEN", "CLUSTER_IDENTIFIER",
    )},
}  # fmt: skip
"""Variables by which the clients find credentials of Azure."""

CONNECTIONS: dict[str, dict[str, Any]] = {
    "key": {"password": KEYS["ours"]},
    "sas": {"extra": json.dumps({"sas_token": "?sv=ours&sig=a%2Bb%2Fc%3D"})},
    "secret": {"login": "ours", "password": "ours", "extra": json.dumps({"tenant_id": "ours"})},
}
OURS = {
    "key": ("SharedKey account:", ""),
    "sas": ("", "[?&]sv=ours&sig=a%2Bb%2Fc%3D(&|$)"),
    "secret": ("", "/ours/oauth2/v2.0/token"),
}
"""By what a request is known: how its header begins, and a pattern of what is asked."""


@contextmanager
def refusing() -> Iterator[Answers]:
    """A service that takes nobody."""
    with answering() as answers:
        answers.status, answers.body = 403, b""
        yield answers


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that was opened before remembers its environment."""
    monkeypatch.setattr(access, "_cached_store", access._cached_store.__wrapped__)


def by_obstore(text: str, authority: str) -> None:  # noqa: ARG001 - of the environment
    next(Store("az://container/in", "lake", lambda _: text).list(), None)


def by_deltalake(text: str, authority: str) -> None:
    told = client_options(StoreLocation.of("az://container/in"), "lake", lambda _: text)
    DeltaTable("az://container/in", storage_options={
        **told, "azure_storage_authority_host": authority, "max_retries": "0",
    })  # fmt: skip


# Attacks OB14.
@pytest.mark.parametrize("ask", [by_obstore, by_deltalake])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("kind", CONNECTIONS)
def test_azure_is_asked_by_the_connection_alone(
    kind: str, other: str, ask: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever credentials the environment has, a request is signed by those of the connection; or
    none is made, and the variable that would be taken is named. With it unset it is made.
    """
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("other")
    with refusing() as service:
        # Who signs in at Microsoft asks the server that this names.
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", service.url)
        host = "account" if kind == "secret" else f"{service.url}/account"
        text = json.dumps(
            {"conn_type": "wasb", "login": "account", "host": host, **CONNECTIONS[kind]}
        )
        for name, value in OTHERS[other].items():
            monkeypatch.setenv(name, value)
        try:
            with suppress(OSError):
                ask(text, service.url)
        except TerminalError as error:
            if ", which would override " in str(error):
                assert not service.asked
                named = str(error).split(",")[0].removeprefix("the environment sets ")
                assert named in OTHERS[other]
                monkeypatch.delenv(named)
                with suppress(OSError, SemelError):
                    ask(text, service.url)
    first = service.asked[0]
    assert first.get("authorization", "").startswith(OURS[kind][0])
    assert re.search(OURS[kind][1], first["path"])


# Attacks OB14.
def test_s3_is_asked_by_the_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment has another key, or says that nothing is to be signed."""
    for name, value in {"AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "other",
                        "AWS_SKIP_SIGNATURE": "true"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with refusing() as service:
        text = json.dumps(
            {"conn_type": "aws", "login": "ours", "password": "ours",
             "extra": {"endpoint_url": service.url, "region_name": "eu-west-1"}}
        )  # fmt: skip
        with suppress(SemelError):
            next(Store("s3://bucket/in", "lake", lambda _: text).list(), None)
        told = client_options(StoreLocation.of("s3://bucket/in"), "lake", lambda _: text)
        with suppress(OSError):
            DeltaTable("s3://bucket/in", storage_options=told | {"max_retries": "0"})
    assert len(service.asked) > 1
    assert all("Credential=ours/" in request["authorization"] for request in service.asked)


# Attacks OB14.
@pytest.mark.parametrize("variable", ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"])
def test_another_account_of_google_is_told(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is asked, with the variable; without it the connection is taken."""
    key = {"gcs_base_url": "http://127.0.0.1:9", "disable_oauth": True, "client_email": "a@b",
           "private_key": "", "private_key_id": ""}  # fmt: skip
    text = json.dumps({"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": key}})
    monkeypatch.setenv(variable, "/etc/other.json")
    with pytest.raises(TerminalError, match=f"^the environment sets {variable}, .*Unset it"):
        Store("gs://bucket/in", "lake", lambda _: text)
    monkeypatch.delenv(variable)
    Store("gs://bucket/in", "lake", lambda _: text)
