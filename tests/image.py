"""Builds the image of examples/deploy/Containerfile, and runs it as its manifests do: `make image`.

podman does both, by whichever of its runtimes can start a container here. Where none can, the image is built without
one, and not run; where there is no podman, neither. The last line says which. The image that is named in the file is
taken if it can be had; otherwise mmdebstrap makes one of Debian, once, in `build/image`.

Real clock: the container takes the time that it takes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.real.running import until

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "image"
CONTAINERFILE = ROOT / "examples" / "deploy" / "Containerfile"
SUITE = "trixie"
RUNTIMES = ("crun", "runc")
AS_DEPLOYED = (*("--read-only", "--tmpfs=/tmp", "--cap-drop=all"), "--security-opt=no-new-privileges")
"""The options with which compose.yaml runs it; a test compares them."""
WITHOUT_SYSTEMD = ("--no-healthcheck", "--ulimit=nofile=1024:4096", "--ulimit=nproc=4096:4096")
"""podman lets systemd look at a container's health, and asks for higher limits than an ordinary machine may give."""
NAME = "colonnade-image-test"
CONFIG = """
listen: {address: "127.0.0.1:8808"}
console: off
audit: {to: stdout}
servers: {clock: {command: [python3, /srv/clock.py]}}
"""


class Failed(Exception):
    """The image is not what it should be."""


def podman(*arguments: object, runtime: str = "", fails: bool = False) -> str:
    """The output of podman. Its images and containers are here, beside those of nobody else.

    Args:
        fails: an exit code that is not 0 is an answer, too.
    """
    own = ["--root", BUILD / "storage", "--runroot", BUILD / "run", "--storage-driver", "overlay"]
    command = ["podman", *own, *(["--runtime", str(shutil.which(runtime))] if runtime else []), *arguments]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode and not fails:
        raise Failed(f"podman {' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip() if done.returncode == 0 else ""


def main() -> int:
    if shutil.which("podman") is None:
        print("Neither built nor run: podman is not installed")
        return 0
    BUILD.mkdir(parents=True, exist_ok=True)
    podman("rm", "--force", "--time=0", NAME, fails=True)
    base = base_image()
    runtime = next(filter(lambda each: starts(base, each), RUNTIMES), "")
    isolation = ("--isolation=oci",) if runtime else ("--isolation=chroot",)
    certificates = ("--volume=/etc/ssl/certs:/etc/ssl/certs:ro", "--env=PIP_CERT=/etc/ssl/certs/ca-certificates.crt")
    arguments = "--format=docker", "--network=host", "--layers", *isolation, *certificates, f"--build-arg=BASE={base}"
    podman("build", *arguments, f"--file={CONTAINERFILE}", f"--tag={NAME}", ROOT, runtime=runtime)
    health = check_image()
    size = int(podman("image", "inspect", NAME, "--format={{.Size}}")) // 1024**2
    if not runtime:
        print(f"Built on {base} ({size} MiB), not run: neither {' nor '.join(RUNTIMES)} starts a container here")
        return 0
    volume = f"{NAME}-state"
    podman("volume", "rm", "--force", volume, fails=True)
    try:
        use(runtime, volume, health)
        said = use(runtime, volume, health)  # with the state of the first
    finally:
        podman("rm", "--force", "--time=0", NAME, runtime=runtime, fails=True)
        podman("volume", "rm", "--force", volume, fails=True)
    print(f"Built on {base} ({size} MiB) and run by podman with {runtime}: {said}")
    return 0


def base_image() -> str:
    """The image to build on."""
    (named,) = re.findall(r"^ARG BASE=(\S+)$", CONTAINERFILE.read_text(), re.MULTILINE)
    if podman("pull", "--quiet", named, fails=True):
        return str(named)
    own = f"localhost/debian-{SUITE}-python"
    if not podman("image", "inspect", own, fails=True):
        archive = BUILD / "base.tar"
        packages = "--include=python3,python3-venv,ca-certificates"
        mirror = "http://deb.debian.org/debian"
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", packages, SUITE, archive, mirror], check=True)
        podman("import", "--quiet", archive, own)
        archive.unlink()
    return own


def starts(image: str, runtime: str) -> bool:
    if shutil.which(runtime) is None:
        return False
    return bool(podman("run", "--rm", "--network=none", *WITHOUT_SYSTEMD, image, "id", runtime=runtime, fails=True))


def check_image() -> list[str]:
    """The command of the health check; raises Failed if the image is another one than its file says."""
    inspected = json.loads(podman("image", "inspect", NAME))[0]
    config = inspected["Config"]
    expect(config["User"] == "10001:10001", f"the image runs as {config['User']!r}")
    expect(config["Entrypoint"] == ["tini", "--", "colonnade"], f"it starts {config['Entrypoint']}")
    expect("/state" in config["Volumes"], "its state is no volume")
    kind, *command = inspected["Healthcheck"]["Test"]
    expect(kind == "CMD", f"its health check is {kind}")
    return list(command)


def use(runtime: str, volume: str, health: list[str]) -> str:
    """Start, call, look and stop; raises Failed if something is not as promised."""
    file = BUILD / "colonnade.yaml"
    file.write_text(CONFIG)
    servers = ROOT / "examples" / "quickstart"
    mounts = (
        f"--volume={file}:/etc/colonnade/colonnade.yaml:ro",
        f"--volume={servers}:/srv:ro",
        f"--volume={volume}:/state",
    )
    podman(
        *("run", "--detach", f"--name={NAME}", "--network=none", *AS_DEPLOYED, *WITHOUT_SYSTEMD, *mounts, NAME),
        runtime=runtime,
    )

    def inside(*command: str, fails: bool = False) -> str:
        return podman("exec", NAME, *command, runtime=runtime, fails=fails)

    until(lambda: inside(*health[:-1], health[-1] + "; print('well')", fails=True), "its health check passes")
    expect("+00:00" in inside("colonnade", "call", "clock__now"), "a call was not answered")
    writable = inside("sh", "-c", "for d in / /etc /opt/colonnade /state /tmp; do test -w $d && echo $d; done; true")
    expect(writable.split() == ["/state", "/tmp"], f"{writable.split()} can be written to")
    expect(inside("stat", "-c", "%a %u", "/state/colonnade") == "700 10001", "the state is open to others")
    expect(not inside("sh", "-c", "ls -d /src /wheels 2>/dev/null; true"), "the first stage is in the image")
    inside("sh", "-c", "(sleep 0.2 &)")  # an orphan, which ends and has nobody but process 1
    orphans = "grep -l '^PPid:.1$' /proc/[0-9]*/status | xargs grep -l '^State:.Z'; true"
    until(lambda: not inside("sh", "-c", "pgrep sleep; true") and not inside("sh", "-c", orphans), "orphans are reaped")
    python = inside("python3", "-c", "import platform; print(platform.python_version())")
    begun = time.monotonic()
    podman("stop", "--time=60", NAME, runtime=runtime)
    took = time.monotonic() - begun
    code = podman("inspect", NAME, "--format={{.State.ExitCode}}")
    expect(code == "0", f"SIGTERM ended it with {code}: {podman('logs', NAME)}")
    podman("rm", NAME, runtime=runtime)
    held = "health check, a call, a read-only root, orphans reaped, its state kept"
    return f"Python {python}, {held}, ended in {took:.1f} s"


def expect(condition: bool, problem: str) -> None:
    if not condition:
        raise Failed(f"{problem}; see {CONTAINERFILE.relative_to(ROOT)}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as problem:
        sys.exit(str(problem))
