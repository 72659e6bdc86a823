"""Builds wheel and sdist, and runs them in clean environments: `make wheels`.

The sdist must have the tracked files that pyproject.toml names, and the wheel those of the program, all of them and no
others. The wheel is built from the sdist. uv installs it for each version of Python from 3.11 to 3.14 that is on this
machine, and it is run there as a user does. `uvx` runs it, too, and pipx the sdist, of which pip builds another wheel.
Exits with 1 if one of these fails, or if fewer than two versions of Python are here.

Beside them is written what the wheel brings along with all extras: `build/wheels/sbom.json`, in CycloneDX. pip-audit
looks all of it up where PyPI tells of vulnerabilities. One that is known fails; what could not be looked up is counted,
and does not.

Real clock: processes and registries take the time that they take.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
BUILT = ROOT / "build" / "wheels"
UV = str(Path(sys.executable).with_name("uv"))
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
FEWEST = 2
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROGRAM = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
EXTRAS = ",".join(PYPROJECT["project"]["optional-dependencies"])
SDIST = [each.removeprefix("/") for each in PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]]
ADDED = {"PKG-INFO", "pyproject.toml", ".gitignore"}
"""Files that hatchling puts into each sdist."""


class Failed(Exception):
    """The packages are not what they should be."""


def main() -> int:
    shutil.rmtree(BUILT, ignore_errors=True)
    run(UV, "build", "--quiet", "--out-dir", BUILT, ROOT)
    (wheel,), (sdist,) = BUILT.glob("*.whl"), BUILT.glob("*.tar.gz")
    check_contents(wheel, sdist)
    print(f"{wheel.name} and {sdist.name} have the files that are tracked")
    tried = []
    with TemporaryDirectory(prefix="colonnade-wheels-") as folder:
        for version in VERSIONS:
            if (python := interpreter(version)) is None:
                print(f"Python {version}: not on this machine, not tried")
                continue
            environment = Path(folder, version)
            run(UV, "venv", "--quiet", "--python", python, environment)
            run(UV, "pip", "install", "--quiet", "--python", environment, f"{wheel}[{EXTRAS}]")
            print(f"Python {version}: {use(environment / 'bin' / 'colonnade', Path(folder, f'state-{version}'))}")
            tried.append(environment)
        print(f"uvx: {run(UV, 'tool', 'run', '--isolated', '--from', wheel, 'colonnade', '--version')}")
        print(f"pipx: {by_pipx(sdist, Path(folder, 'pipx'))}, from the sdist")
        if len(tried) < FEWEST:
            raise Failed(f"only {len(tried)} versions of Python are here; install one more of {', '.join(VERSIONS)}")
        print(write_sbom(tried[-1]))
        print(audit(tried[-1]))
    return 0


def run(*command: object, environ: dict[str, str] | None = None) -> str:
    """The output of the command. Its environment has nothing of that in which this runs."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        list(map(str, command)), env=clean | (environ or {}), cwd="/", capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def check_contents(wheel: Path, sdist: Path) -> None:
    """Raises Failed if a file is missing, or if one is there that is not tracked."""
    with zipfile.ZipFile(wheel) as packed:
        compare(wheel, {name for name in packed.namelist() if ".dist-info/" not in name}, tracked(PROGRAM))
    with tarfile.open(sdist) as unpacked:
        names = {member.name.partition("/")[2] for member in unpacked if member.isfile()}
    compare(sdist, names - ADDED, tracked(SDIST))


def tracked(places: Sequence[str]) -> set[str]:
    listed = subprocess.run(["git", "ls-files", *places], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


def compare(archive: Path, found: set[str], wanted: set[str]) -> None:
    if found != wanted:
        raise Failed(
            f"{archive.name} lacks {sorted(wanted - found)[:10]}, and has {sorted(found - wanted)[:10]} beyond the "
            "tracked files; change [tool.hatch.build] in pyproject.toml"
        )


def interpreter(version: str) -> str | None:
    """A Python of this version that starts; None if there is none here."""
    found = [Path(path, f"python{version}") for path in os.environ["PATH"].split(os.pathsep)]
    for each in [*found, *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))]:
        # A file of pyenv that stands for versions which are not chosen ends with 127.
        if each.exists() and not subprocess.run([each, "-c", ""], capture_output=True).returncode:
            return str(each)
    return None


def use(colonnade: Path, state: Path) -> str:
    """The version of a program that has served a call; raises Failed if it has not."""
    version = run(colonnade, "--version")
    file = state.with_suffix(".yaml")
    servers = {"clock": {"command": ["python3", str(ROOT / "examples/quickstart/clock.py")]}}
    file.write_text(json.dumps({"listen": {"address": "127.0.0.1:0"}, "servers": servers}))
    environ = {"COLONNADE_STATE": str(state)}
    run(colonnade, "check", file, environ=environ)
    host = subprocess.Popen(
        [colonnade, "serve", file], cwd="/", env=os.environ | environ, stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    try:
        first = host.stdout.readline()
        health = first.split(" at ")[-1].strip().removesuffix("/mcp") + "/healthz"
        with urllib.request.urlopen(health, timeout=20) as answer:
            if answer.status != 200:
                raise Failed(f"{health}: {answer.status}")
        now = run(colonnade, "call", "--config", file, "clock__now", environ=environ)
        if "+00:00" not in now:
            raise Failed(f"clock__now answered {now!r}")
        host.send_signal(signal.SIGTERM)
        host.stdout.read()
        if host.wait(20):
            raise Failed(f"SIGTERM ended the host with {host.returncode}")
    finally:
        host.kill()
        host.wait()
        host.stdout.close()
    return f"{version} served a call"


def by_pipx(package: Path, folder: Path) -> str:
    environ = {"PIPX_HOME": str(folder), "PIPX_BIN_DIR": str(folder / "bin"), "PIPX_MAN_DIR": str(folder / "man")}
    run(UV, "tool", "run", "pipx", "install", "--quiet", package, environ=environ)
    return run(folder / "bin" / "colonnade", "--version")


def write_sbom(environment: Path) -> str:
    """Write what an environment has; says how much that is."""
    path = BUILT / "sbom.json"
    tool = UV, "tool", "run", "--from", "cyclonedx-bom", "cyclonedx-py"
    main_component = "--pyproject", ROOT / "pyproject.toml"
    run(*tool, "environment", "--output-reproducible", *main_component, "-o", path, environment / "bin" / "python")
    document = json.loads(path.read_text())
    installed = named(json.loads(run(UV, "pip", "list", "--format", "json", "--python", environment)))
    main = document["metadata"]["component"]
    main["version"] = installed.pop(main["name"])  # pyproject.toml says only where it is
    if (components := named(document["components"])) != installed:
        raise Failed(f"{path} and the environment differ in {sorted(components.items() ^ installed.items())}")
    path.write_text(json.dumps(document, indent=2))
    return f"sbom.json has {len(components)} packages of {main['name']} {main['version']}"


def named(packages: list[dict[str, str]]) -> dict[str, str]:
    """The versions of packages, by their names as PyPI compares them."""
    return {re.sub(r"[-_.]+", "-", each["name"]).lower(): each["version"] for each in packages}


def audit(environment: Path) -> str:
    """A sentence about known vulnerabilities in an environment; raises Failed if there is one."""
    (packages,) = environment.glob("lib/python3*/site-packages")
    tool = [UV, "tool", "run", "pip-audit", "--progress-spinner", "off", "--format", "json", "--path", str(packages)]
    done = subprocess.run(tool, capture_output=True, text=True, timeout=300, cwd="/")
    try:
        found = json.loads(done.stdout)["dependencies"]
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:]
        return f"pip-audit could not look anything up: {last}"
    wrong = [f"{each['name']} {each['version']}: {each['vulns'][0]['id']}" for each in found if each.get("vulns")]
    if wrong:
        raise Failed(f"known vulnerabilities: {'; '.join(wrong)}; change the pins in pyproject.toml")
    skipped = [each["skip_reason"] for each in found if "skip_reason" in each]
    if len(skipped) == len(found):
        return f"pip-audit could not look anything up: {skipped[0]}"
    return f"pip-audit: no vulnerability is known; {len(skipped)} of {len(found)} packages could not be looked up"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as problem:
        sys.exit(str(problem))
