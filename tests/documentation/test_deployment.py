"""The examples in docs/deployment: valid, and true of this project."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import kubernetes_validate
import pytest
import yaml
from dockerfile_parse import DockerfileParser

from tests.conftest import PROJECT

FOLDER = PROJECT / "docs" / "deployment"
OBJECTS = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
TEMPLATES = [found["spec"]["template"] for found in OBJECTS if "template" in found["spec"]]
CONTAINERS = [one for template in TEMPLATES for one in template["spec"]["containers"]]


@pytest.mark.parametrize("given", OBJECTS, ids=lambda given: given["kind"])
def test_objects_are_valid(given: dict[str, Any]) -> None:
    kubernetes_validate.validate(given, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda container: container["name"])
def test_flags_exist(container: dict[str, Any]) -> None:
    """What a container runs takes its flags; it would say so before it prints its help."""
    command = [sys.executable, "-m", *container["args"], "--help"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert "flags:" in done.stdout, done.stderr
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"


def of_kind(kind: str) -> Iterator[dict[str, Any]]:
    return (given["spec"] for given in OBJECTS if given["kind"] == kind)


def test_parts_belong_together() -> None:
    """Services choose containers that there are, and the router names the servers."""
    labels = [template["metadata"]["labels"] for template in TEMPLATES]
    assert all(spec["selector"] in labels for spec in of_kind("Service"))
    (servers,) = of_kind("StatefulSet")
    name = servers["template"]["spec"]["containers"][0]["name"]
    hosts = [f"{name}-{number}.{servers['serviceName']}" for number in range(servers["replicas"])]
    urls = ",".join(f"http://{host}:8000" for host in hosts)
    (router,) = (container for container in CONTAINERS if container["name"] == "router")
    assert f"--servers={urls}" in router["args"]


def test_image() -> None:
    """It copies what there is, and installs groups and extras that there are."""
    steps = DockerfileParser(fileobj=BytesIO((FOLDER / "Dockerfile").read_bytes())).structure
    copied = [step["value"].split()[:-1] for step in steps if step["instruction"] == "COPY"]
    assert all((PROJECT / source).exists() for sources in copied for source in sources)
    (installs,) = (step["value"] for step in steps if step["instruction"] == "RUN")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    groups, extras = re.findall(r"--group (\S+)", installs), re.findall(r"\.\[(\w+)\]", installs)
    assert groups
    assert set(groups) <= project["dependency-groups"].keys()
    assert extras
    assert set(extras) <= project["project"]["optional-dependencies"].keys()
