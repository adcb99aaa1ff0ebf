"""What `cluster/` starts goose with: by the schemas of those who read it, and the same as `deployments/`.

`GOOSE_KUBERAY_CRD` names KubeRay's `ray.io_rayservices.yaml`; without it that schema is not looked at.
"""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve.schema import ServeDeploySchema

from goose_ray.cli.serving import CONTROLLER_SETTINGS
from goose_ray.config import GooseConfig

REPOSITORY = Path(__file__).resolve().parents[3]
CLUSTER = REPOSITORY / "cluster"
SERVICES = ["goose", "qwen3-32b"]


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def service(name: str) -> dict[str, Any]:
    return load(CLUSTER / "kuberay" / f"{name}.yaml")


def ray_version() -> str:
    pinned = re.search(r"^ray==(.*)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    return pinned[1]


def strict(schema: Any) -> Any:
    """Kubernetes drops fields that a schema does not know; here they are errors."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found["additionalProperties"] = False
    return found


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_serves_the_deployment_of_its_name_on_all_addresses(name: str) -> None:
    served = yaml.safe_load(service(name)["spec"]["serveConfigV2"])
    ServeDeploySchema.model_validate(served)
    (application,) = served["applications"]
    GooseConfig.from_args(application["args"])
    assert served.pop("http_options") == {"host": "0.0.0.0", "port": 8000}
    expected = load(REPOSITORY / "deployments" / f"{name}.yaml")
    expected.pop("http_options")
    assert served == expected, f"copy deployments/{name}.yaml into serveConfigV2 of cluster/kuberay/{name}.yaml"


@pytest.mark.parametrize("name", SERVICES)
def test_the_pods_have_what_the_deployment_needs(name: str) -> None:
    spec = service(name)["spec"]
    cluster = spec["rayClusterConfig"]
    assert cluster["rayVersion"] == ray_version()
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    (application,) = yaml.safe_load(spec["serveConfigV2"])["applications"]
    (server,) = [one for one in application["deployments"] if one["name"] == "GooseServer"]
    (group,) = cluster["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    ranks = application["args"].get("tensor_parallel_size", 1)
    replicas = server["autoscaling_config"]["max_replicas"]
    assert group["maxReplicas"] * int(limits["cpu"]) >= replicas * (1 + ranks)
    if application["args"].get("device") == "cuda":
        assert int(limits["nvidia.com/gpu"]) % ranks == 0
        assert group["maxReplicas"] * int(limits["nvidia.com/gpu"]) >= replicas * ranks
    grace = group["template"]["spec"].get("terminationGracePeriodSeconds", 30)
    assert grace >= server["graceful_shutdown_timeout_s"]


@pytest.mark.parametrize("name", SERVICES)
def test_kuberay_knows_every_field(name: str) -> None:
    definition = os.environ.get("GOOSE_KUBERAY_CRD")
    if definition is None:
        pytest.skip("GOOSE_KUBERAY_CRD names no ray.io_rayservices.yaml")
    versions = load(Path(definition))["spec"]["versions"]
    (schema,) = [one["schema"]["openAPIV3Schema"] for one in versions if one["name"] == "v1"]
    document = service(name)
    # of every object, whatever its kind
    metadata = document.pop("metadata")
    assert metadata.keys() <= {"name", "labels", "annotations"}
    jsonschema.Draft202012Validator(strict(schema)).validate(document)


def test_redis_has_the_name_and_the_secret_that_the_service_asks_for() -> None:
    options = service("qwen3-32b")["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]
    inside, stateful = yaml.safe_load_all((CLUSTER / "kuberay/redis.yaml").read_text())
    assert options["redisAddress"] == f"{inside['metadata']['name']}:{inside['spec']['ports'][0]['port']}"
    pod = stateful["spec"]["template"]
    assert pod["metadata"]["labels"].items() >= inside["spec"]["selector"].items()
    (container,) = pod["spec"]["containers"]
    (password,) = [entry for entry in container["env"] if entry["name"] == "PASSWORD"]
    assert password["valueFrom"] == options["redisPassword"]["valueFrom"]


def test_ray_s_launcher_takes_the_cluster_file() -> None:
    config = load(CLUSTER / "ray-aws.yaml")
    validate_config(prepare_config(config))
    deployment = load(REPOSITORY / "deployments/qwen3-32b.yaml")["applications"][0]
    (server,) = [one for one in deployment["deployments"] if one["name"] == "GooseServer"]
    workers = config["available_node_types"]["eight-gpus"]
    gpus = server["autoscaling_config"]["max_replicas"] * deployment["args"]["tensor_parallel_size"]
    assert workers["max_workers"] * workers["resources"]["GPU"] >= gpus
    assert "RAY_AUTH_MODE=token" in config["head_start_ray_commands"][-1]
    assert "RAY_AUTH_MODE=token" in config["worker_start_ray_commands"][-1]


def dockerfile() -> list[list[str]]:
    """Words of each instruction."""
    text = (CLUSTER / "Dockerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    return [shlex.split(line) for line in lines.splitlines() if line.strip()]


def test_the_image_copies_what_there_is_and_what_its_ignore_file_lets_through() -> None:
    copied = {source for word, *rest in dockerfile() if word == "COPY" for source in rest[:-1]}
    ignore = (CLUSTER / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignore[0] == "*"
    assert copied == {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert not [source for source in copied if not (REPOSITORY / source).exists()]


def test_the_image_tells_serve_s_controller_what_goose_serve_does() -> None:
    told = {word for instruction, *words in dockerfile() if instruction == "ENV" for word in words}
    assert {f"{name}={value}" for name, value in CONTROLLER_SETTINGS.items()} <= told


def test_the_image_installs_an_extra_that_there_is_and_runs_a_command_that_there_is() -> None:
    import tomllib

    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    instructions = dockerfile()
    (pip,) = [words for words in instructions if words[:3] == ["RUN", "pip", "install"]]
    (ours,) = [word for word in pip if word.startswith(".[")]
    assert Requirement(ours.replace(".", "goose-ray", 1)).extras <= extras.keys()
    assert ["CMD", "[goose,", "serve,", "--host,", "0.0.0.0]"] in instructions
