"""The manifests of docs/kubernetes, by Kubernetes' own schemas, and with each other.

Nothing here runs them. SparkApplication is a kind of Apache's operator, which has no schema in the
package index: its pod templates are checked, and its keys are not. Nor are the keys of Airflow's chart.
"""

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.environment import python_with
from semel.spark.settings import SETTINGS

FIXTURES = Path(__file__).parents[2] / "fixtures" / "kubernetes"
FOLDER = Path(__file__).parents[3] / "docs" / "kubernetes"
CONTAINER = {"name": "spark", "image": "spark"}
"""The container that the operator puts into a template."""

Resource = dict[str, Any]


def read(name: str) -> list[Resource]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def resources() -> list[Resource]:
    """All of Kubernetes' own kinds, and pods that have what the operator and the chart put in."""
    spark, *others = read("spark-connect.yaml")
    templates = [spark["spec"][part]["podTemplateSpec"] for part in ("driverSpec", "executorSpec")]
    [values] = read("airflow-values.yaml")
    secrets = [
        {
            "name": each["envName"],
            "valueFrom": {"secretKeyRef": {"name": each["secretName"], "key": each["secretKey"]}},
        }
        for each in values["secret"]
    ]
    worker = CONTAINER | {"env": values["env"] + secrets, "volumeMounts": values["volumeMounts"]}
    pods = [
        *({**each.get("spec", {}), "containers": [CONTAINER]} for each in templates),
        {"containers": [worker], "volumes": values["volumes"]},
    ]
    return [
        *read("ledger.yaml"),
        *others,
        *(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod{at}"}, "spec": spec}
            for at, spec in enumerate(pods)
        ),
    ]


def faults(checked: list[Resource]) -> list[str]:
    python = python_with("kubernetes", FIXTURES / "requirements.txt")
    done = subprocess.run(
        [python, FIXTURES / "validate.py"], input=json.dumps(checked), capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.rest
def test_manifests_fit_the_schemas() -> None:
    """Each key is one of Kubernetes; a key that is not is found in each of them."""
    checked = resources()
    assert faults(checked) == []
    wrong = copy.deepcopy(checked)
    for each in wrong:
        part = "stringData" if each["kind"] == "Secret" else "spec"
        each[part if each["kind"] != "Secret" else "stringdata"] = each.pop(part)
        if part == "spec":
            each["spec"]["unknownKey"] = 1
    assert len(faults(wrong)) == len(wrong)


def test_manifests_fit_each_other() -> None:
    """Secrets, volume, labels and ports are those that another file names; Spark has semel's
    settings, and executors have another address of the ledger than Airflow.
    """
    secret, claim, job = read("ledger.yaml")
    spark, service, policy = read("spark-connect.yaml")
    [values] = read("airflow-values.yaml")
    conf = spark["spec"]["sparkConf"]
    required = {name for name in SETTINGS if name.startswith("spark.stage.")}
    assert {name: conf[name] for name in required} == {name: SETTINGS[name] for name in required}
    executor = conf["spark.kubernetes.executor.secretKeyRef.SEMEL_LEDGER_DSN"].split(":")
    owner = [values["secret"][0]["secretName"], values["secret"][0]["secretKey"]]
    assert executor[0] == owner[0] == secret["metadata"]["name"] and executor[1] != owner[1]
    assert {executor[1], owner[1]} == {*secret["stringData"]}
    migrate = job["spec"]["template"]["spec"]["containers"][0]["env"][0]
    assert migrate["valueFrom"]["secretKeyRef"] == {"name": owner[0], "key": owner[1]}
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.data"
    assert (
        conf[f"{volume}.options.claimName"]
        == values["volumes"][0]["persistentVolumeClaim"]["claimName"]
        == claim["metadata"]["name"]
    )
    roots = next(each["value"] for each in values["env"] if each["name"] == "SEMEL_DATA_ROOTS")
    assert conf[f"{volume}.mount.path"] == values["volumeMounts"][0]["mountPath"] == roots
    labels = spark["spec"]["driverSpec"]["podTemplateSpec"]["metadata"]["labels"]
    assert labels == service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"]
    connection = json.loads(
        next(each["value"] for each in values["env"] if each["name"].startswith("AIRFLOW_CONN_"))
    )
    assert connection["host"] == service["metadata"]["name"]
    assert connection["port"] == service["spec"]["ports"][0]["port"]
