"""The Dockerfile passes its linter, and the manifest for KServe has the fields of a pod and of KServe."""

import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import yaml

FOLDER = Path(__file__).resolve().parents[1]
# What KServe adds to the specification of a pod in a predictor with containers.
KSERVE_FIELDS = {"minReplicas", "maxReplicas", "scaleTarget", "scaleMetric", "containerConcurrency", "timeout"}


def test_dockerfile():
    hadolint = Path(sys.executable).with_name("hadolint")
    subprocess.run([hadolint, FOLDER / "Dockerfile"], check=True)


def test_kserve_manifest():
    manifest = yaml.safe_load((FOLDER / "kserve.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"} and set(manifest["spec"]) == {"predictor"}
    predictor = manifest["spec"]["predictor"]
    pod = {key: value for key, value in predictor.items() if key not in KSERVE_FIELDS}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": manifest["metadata"], "spec": pod}
    kubernetes_validate.validate(pod, "1.31", strict=True)
    (container,) = predictor["containers"]
    # KServe finds the container by this name, and the port of the protocol by the other.
    assert container["name"] == "kserve-container" and container["ports"][0]["name"] == "http1"
    assert predictor["terminationGracePeriodSeconds"] > 5 + 30


def test_arguments_of_the_manifest_exist():
    manifest = yaml.safe_load((FOLDER / "kserve.yaml").read_text())
    (container,) = manifest["spec"]["predictor"]["containers"]
    from service import PROGRAM

    page = subprocess.run([PROGRAM, "--help"], check=True, capture_output=True, text=True).stdout
    flags = [argument for argument in container["args"] if argument.startswith("--")]
    assert flags and all(flag in page for flag in flags)
