"""The manifests of examples/deploy, held against the files that they serve and against the limits of a drain."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from config import AuditPlace, Config, load
from tests.image import AS_DEPLOYED

DEPLOY = Path(__file__).parents[1] / "examples" / "deploy"
GATEWAY = DEPLOY / "gateway"
KUBERNETES = DEPLOY / "kubernetes"
SYSTEMD = DEPLOY / "systemd"
ENDPOINT = (DEPLOY.parents[1] / "host" / "downstream" / "http" / "app.py").read_text()
BESIDE_DRAIN = 10
"""Seconds that a host needs beside `drain` (docs/operations.md, "What is under way")."""
KEY = "ab" * 32


def file_variables(text: str) -> set[str]:
    return set(re.findall(r"\$\{env:(\w+)", text))


def secret_files(text: str) -> set[Path]:
    return set(map(Path, re.findall(r"\$\{file:([^}]+)\}", text) + re.findall(r"\w+: (/run/\S+)$", text, re.MULTILINE)))


def loaded(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The example with values in the place of secrets: no machine of a test has files in /run/secrets."""
    text = file.read_text()
    for name in file_variables(text):
        monkeypatch.setenv(name, "10.0.0.7" if name == "POD_IP" else KEY)
    for path in secret_files(text):
        own = folder / path.name
        own.write_text("postgresql://db.example.com/gateway?sslmode=verify-full" if path.name == "store" else KEY)
        own.chmod(0o600)
        text = text.replace(str(path), str(own))
    (folder / "colonnade.yaml").write_text(text)
    return load(folder / "colonnade.yaml")


def documents() -> dict[str, Any]:
    """The manifests for Kubernetes, by their kinds."""
    return {each["kind"]: each for each in yaml.safe_load_all((KUBERNETES / "gateway.yaml").read_text())}


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


@pytest.fixture(params=[GATEWAY / "colonnade.yaml", KUBERNETES / "colonnade.yaml"], ids=["compose", "kubernetes"])
def read(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Config]:
    return lambda: loaded(request.param, tmp_path, monkeypatch)


def test_each_file_is_valid_and_fits_into_a_container(read: Callable[[], Config]) -> None:
    config = read()
    assert config.audit.to is AuditPlace.STDOUT
    assert (config.listen.address.host, config.listen.auth is not None, config.console) == ("0.0.0.0", True, None)
    assert not [spec.problem for spec in config.servers.values() if spec.problem]


def test_compose_gives_what_its_file_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = loaded(GATEWAY / "colonnade.yaml", tmp_path, monkeypatch)
    gateway = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["gateway"]
    port = config.listen.address.port
    assert gateway["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert set(gateway["environment"]) == file_variables((GATEWAY / "colonnade.yaml").read_text())
    assert seconds(gateway["stop_grace_period"]) >= config.drain + BESIDE_DRAIN
    (path,) = re.findall(rf"http://127\.0\.0\.1:{port}(/\w+)'", (DEPLOY / "Containerfile").read_text())
    assert f'path == "{path}"' in ENDPOINT
    given = {"--read-only"} if gateway["read_only"] else set()
    given |= {f"--tmpfs={each}" for each in gateway["tmpfs"]}
    given |= {f"--cap-drop={each.lower()}" for each in gateway["cap_drop"]}
    given |= {f"--security-opt={each.removesuffix(':true')}" for each in gateway["security_opt"]}
    assert given == set(AS_DEPLOYED), "`make image` tries what is deployed"
    assert gateway["ulimits"]["nofile"] > config.capacity.connections + 1000
    assert (DEPLOY / gateway["build"]["context"] / gateway["build"]["dockerfile"]).samefile(DEPLOY / "Containerfile")
    assert "./gateway:/etc/colonnade:ro" in gateway["volumes"], "a mount of the file would not show what replaces it"


def test_the_container_is_started_with_a_command_that_there_is() -> None:
    """SIGTERM must reach Colonnade, through a process that reaps what others leave."""
    text = (DEPLOY / "Containerfile").read_text()
    assert 'ENTRYPOINT ["tini", "--", "colonnade"]\nCMD ["serve", "/etc/colonnade/colonnade.yaml"]' in text
    assert "[postgres,metrics,otel]" in text
    assert "COLONNADE_STATE=/state/colonnade" in text, "a directory of its own, which it makes for itself alone"


def unit(path: Path) -> dict[str, list[str]]:
    """The settings of a unit, in order, by their names."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_the_units_give_what_their_file_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = loaded(SYSTEMD / "colonnade.yaml", tmp_path, monkeypatch)
    assert not [spec.problem for spec in config.servers.values() if spec.problem]
    address = f"{config.listen.address.host}:{config.listen.address.port}"
    for folder in (SYSTEMD, SYSTEMD / "user"):
        assert unit(folder / "colonnade.socket")["ListenStream"] == [address]
    for path in (SYSTEMD / "colonnade.service", SYSTEMD / "colonnade-programs.service"):
        service = unit(path)
        (limit,) = service["LimitNOFILE"]
        assert int(limit) > config.capacity.connections + 1000
        (state,) = service["Environment"]
        assert state == f"COLONNADE_STATE=/var/lib/{service['StateDirectory'][0]}/state"
        credentials = dict(each.split(":") for each in service["LoadCredential"])
        assert secret_files((SYSTEMD / "colonnade.yaml").read_text()) == {
            Path("/run/credentials/colonnade.service") / name for name in credentials
        }
        steps = (SYSTEMD / "colonnade.service").read_text()
        assert all(f"> {source}" in steps for source in credentials.values()), "it says how to make each"
        assert f"u {service['User'][0]} -" in (SYSTEMD / "sysusers.conf").read_text()
    for options, place in re.findall(r"install (.*?) (/etc/\S+)", (SYSTEMD / "colonnade.service").read_text()):
        assert "-D" in options.split() or place == "/etc/systemd/system/", "Debian has no such folder"
    services = {path.stem: unit(path) for path in SYSTEMD.rglob("*.service") if path.parent == SYSTEMD}
    assert "yes" in services["colonnade"]["MemoryDenyWriteExecute"]
    assert not {"MemoryDenyWriteExecute", "RestrictNamespaces"} & services["colonnade-programs"].keys()


@pytest.mark.parametrize("path", sorted(SYSTEMD.rglob("*.service")), ids=lambda path: str(path.relative_to(SYSTEMD)))
def test_each_unit_lets_colonnade_end_and_be_seen(path: Path) -> None:
    """`mixed`: SIGTERM for its servers at the same time would end the calls that it drains. And colonnade ask, as the
    same user, must see from which processes it comes (host/wire/descent.py)."""
    service = unit(path)
    assert (service["Type"], service["KillMode"]) == (["notify"], ["mixed"])
    assert seconds(f"{service['TimeoutStopSec'][0]}s") >= 30 + BESIDE_DRAIN
    assert service["RestartPreventExitStatus"] == ["2"]
    assert not {"ProtectProc", "ProcSubset"} & service.keys()


def test_the_installed_program_is_that_of_the_clone_and_finds_what_starts_servers() -> None:
    """No name of a registry is ours, and the manager of a user knows no directory of the user."""
    for path in DEPLOY.rglob("*"):
        assert path.is_dir() or not re.search(r"install\s+colonnade\b", path.read_text()), path
    service = unit(SYSTEMD / "user" / "colonnade.service")
    directory = service["ExecStart"][0].rpartition("/colonnade serve ")[0]
    assert directory in service["Environment"][0].removeprefix("PATH=").split(":")


def test_the_pods_have_the_ports_files_and_time_that_their_file_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = loaded(KUBERNETES / "colonnade.yaml", tmp_path, monkeypatch)
    assert config.fleet is not None
    assert config.fleet.inner is not None
    found = documents()
    deployment = found["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    inner = config.fleet.inner
    assert ports == {"mcp": config.listen.address.port, "inner": inner.listen.port}
    assert inner.address.port == inner.listen.port
    for probe in (container["readinessProbe"], container["livenessProbe"]):
        get = probe["httpGet"]
        assert (get["port"], get["httpHeaders"]) == ("mcp", [{"name": "Host", "value": "localhost"}])
        assert f'path == "{get["path"]}"' in ENDPOINT
    ready = container["readinessProbe"]
    assert (ready["httpGet"]["path"], ready["periodSeconds"], ready["failureThreshold"]) == ("/readyz", 2, 2)
    assert pod["terminationGracePeriodSeconds"] >= config.drain + BESIDE_DRAIN
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert found["PodDisruptionBudget"]["spec"]["minAvailable"] < deployment["replicas"]
    labels = deployment["template"]["metadata"]["labels"]
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec = found[kind]["spec"]
        selected = spec.get("podSelector") or spec["selector"]
        assert (selected.get("matchLabels", selected), deployment["selector"]["matchLabels"]) == (labels, labels)
    text = (KUBERNETES / "colonnade.yaml").read_text()
    assert {each["name"] for each in container["env"]} == file_variables(text)
    volumes = {each["name"]: each for each in pod["volumes"]}
    mounts = {Path(each["mountPath"]): volumes[each["name"]] for each in container["volumeMounts"]}
    assert {mounts[path.parent]["secret"]["secretName"] for path in secret_files(text)} == {"gateway", "gateway-inner"}
    assert mounts[Path("/state")] == {"emptyDir": {}, "name": "state"}
    (generated,) = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["configMapGenerator"]
    assert mounts[Path("/etc/colonnade")]["configMap"]["name"] == generated["name"]
    assert generated["files"] == ["colonnade.yaml"]
    limit = container["resources"]["limits"]["memory"]
    assert limit == "1Gi"
    assert config.memory + config.capacity.idle_memory < 1024**3
