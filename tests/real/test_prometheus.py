"""Prometheus itself asks a real host for its metrics, by the rules and for the dashboard of examples/deploy.

Real clock: Prometheus looks each second, and hosts start and lose a server.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.kit.ports import free_port
from tests.kit.stateless import stateless_request
from tests.test_deploy_metrics import (
    DASHBOARD,
    DEPLOY,
    RULES,
    dashboard_expressions,
    dashboard_targets,
    without_variables,
)

from .running import BARE_PYTHON, SERVERS, colonnade, pid_of, serving, until, write_config

FOLDER = DEPLOY / "prometheus"

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")


def promtool(*arguments: object, standard_input: str | None = None) -> str:
    done = subprocess.run(
        ["promtool", *map(str, arguments)],
        input=standard_input,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_rules_fire_when_they_should() -> None:
    promtool("check", "config", FOLDER / "prometheus.yml")
    promtool("test", "rules", FOLDER / "colonnade.rules.test.yml")


def test_prometheus_reads_each_question_of_the_dashboard(tmp_path: Path) -> None:
    questions = [
        {"record": f"question:{at}", "expr": without_variables(each)} for at, each in enumerate(dashboard_expressions())
    ]
    file = tmp_path / "questions.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": questions}]}))
    assert f"{len(questions)} rules found" in promtool("check", "rules", file)


def test_the_dashboard_marks_a_start_of_another_version_and_no_other(tmp_path: Path) -> None:
    """A version is a label, so that another one is another series of the same value. In Kubernetes it is at another
    instance, too."""
    expression = without_variables(DASHBOARD["annotations"]["list"][0]["target"]["expr"])
    labels = 'colonnade_build_info{job="colonnade", instance="%s", version="%s"}'
    former, later, more, pod = (labels % each for each in (("a", "1"), ("a", "2"), ("b", "2"), ("c", "3")))
    series = {former: "1x20 stale", later: "_x21 1x30", more: "_x30 1x20", pod: "_x36 1x20"}
    expected = {"2m": [], "20m": [], "22m": [later], "25m": [later], "27m": [], "32m": [], "37m": [pod], "42m": []}
    tests = {
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [
            {"expr": expression, "eval_time": at, "exp_samples": [{"labels": each, "value": 1} for each in found]}
            for at, found in expected.items()
        ],
    }
    file = tmp_path / "versions.yml"
    file.write_text(json.dumps({"evaluation_interval": "1m", "tests": [tests]}))
    promtool("test", "rules", file)


class Prometheus:
    """A running Prometheus that asks one host."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def asks(self, expression: str) -> list[Any]:
        found: list[Any] = self.get("query", query=expression)["result"]
        return found

    def is_up(self) -> bool:
        try:
            return bool(self.asks('up{job="colonnade"} == 1'))
        except OSError:  # it starts
            return False

    def firing(self) -> set[tuple[str, str]]:
        """Each alert that fires, with the server that it is about."""
        alerts = self.get("alerts")["alerts"]
        labels = [each["labels"] for each in alerts if each["state"] == "firing"]
        return {(each["alertname"], each.get("server", "")) for each in labels}


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[Prometheus]:
    """Prometheus with the files of the example, but each second, and with rules that wait for nothing."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    rules = [{name: value for name, value in rule.items() if name != "for"} for rule in RULES]
    (folder / "colonnade.rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "colonnade", "rules": rules}]}))
    address = f"127.0.0.1:{free_port()}"
    arguments = f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            ["prometheus", *arguments, f"--web.listen-address={address}"], stdout=log, stderr=log, cwd=folder
        )
    try:
        yield Prometheus(f"http://{address}")
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_an_alert_fires_for_a_server_that_is_lost_and_the_dashboard_shows_what_was_called(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    shutil.copy(SERVERS / "recorder.py", program)
    port = free_port()
    lost: dict[str, Any] = {"command": [sys.executable, "-I", str(program), str(tmp_path / "log")]}
    lost |= {"consent": {"tools": {"ask": ["odd"], "allow": ["*"]}}, "limits": {"message": "64KiB"}}
    own = {"grant": "client_credentials", "client_id": "a", "client_secret": "b"}
    nobody = {"url": f"http://127.0.0.1:{free_port()}/mcp", "oauth": own}
    file = write_config(tmp_path, {"lost": lost, "nobody": nobody}, listen={"metrics": f"127.0.0.1:{port}"})
    with serving(file, "lost") as host, prometheus(tmp_path, port) as asked:
        until(asked.is_up, f"Prometheus asks: {(tmp_path / 'prometheus.log').read_text()}")
        tool, *_ = (line.split()[1] for line in listed(file).splitlines() if line.startswith("tool"))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            lint = promtool("check", "metrics", standard_input=answer.read().decode())
        assert lint == ""

        def calls_are_counted() -> bool:
            """Prometheus sees no increase in a series that begins after all calls."""
            colonnade("call", "--config", str(file), tool, "{}", COLONNADE_STATE=str(tmp_path / "state"))
            return bool(asked.asks("rate(colonnade_calls_total[1m]) > 0"))

        for own_name, arguments in (("wipe", {}), ("odd", {}), ("much", {"size": 100_000})):
            # A refused attempt, a confirmation that nobody answers, and a message that is dropped.
            headers, message = stateless_request("tools/call", {"name": f"lost__{own_name}", "arguments": arguments})
            httpx.post(host.url, headers=headers, json=message, trust_env=False)
        for own_name, arguments in (("wipe", {}), ("odd", {}), ("much", {"size": 100_000})):
            # A refused attempt, a confirmation that nobody answers, and a message that is dropped.
            headers, message = stateless_request("tools/call", {"name": f"lost__{own_name}", "arguments": arguments})
            httpx.post(host.url, headers=headers, json=message, trust_env=False)
        until(calls_are_counted, "the calls are counted")
        assert ("ColonnadeServerAway", "lost") not in asked.firing()
        program.write_text("raise SystemExit('gone')")
        assert host.status()["lost"]["state"] == "ready"
        colonnade("restart", "--config", str(file), "lost", COLONNADE_STATE=str(tmp_path / "state"))
        until(lambda: ("ColonnadeServerAway", "lost") in asked.firing(), "the alert fires", 60)
        for target in dashboard_targets():
            found = asked.asks(without_variables(target["expr"]))
            assert found, target["expr"]
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert all(shown <= each["metric"].keys() for each in found), target["legendFormat"]


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_a_call_is_counted_by_its_tool_and_an_alert_fires_when_a_server_is_killed(tmp_path: Path) -> None:
    # A program that cannot be started again: what a kill leaves is gone for good.
    program = tmp_path / "server.py"
    shutil.copy(SERVERS / "recorder.py", program)
    port = free_port()
    servers = {"a": {"command": [*BARE_PYTHON, str(program), str(tmp_path / "a.log")]}}
    file = write_config(tmp_path, servers, listen={"metrics": f"127.0.0.1:{port}"}, metrics={"tools": True})
    with serving(file, "a") as host, prometheus(tmp_path, port) as asked:
        headers, message = stateless_request("tools/call", {"name": "a__together", "arguments": {"of": 1}})
        assert "result" in httpx.post(host.url, headers=headers, json=message, trust_env=False).json()
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
        assert promtool("check", "metrics", standard_input=text) == ""
        by_tool = 'mcp_client_operation_duration_seconds_count{gen_ai_tool_name="together"}'
        (sample,) = until(lambda: asked.is_up() and asked.asks(by_tool), "the call is known")
        assert float(sample["value"][1]) == 1
        assert not asked.firing()
        program.unlink()
        os.kill(pid_of(host.process.pid, str(program)), signal.SIGKILL)
        until(lambda: ("ColonnadeServerAway", "a") in asked.firing(), "the alert fires")


def test_a_server_that_a_reload_removes_is_told_no_more_and_begins_at_0_when_it_comes_back(tmp_path: Path) -> None:
    port = free_port()
    servers = {id: {"command": [*BARE_PYTHON, str(SERVERS / "recorder.py"), str(tmp_path / id)]} for id in ("a", "b")}
    with_metrics = {"listen": {"metrics": f"127.0.0.1:{port}"}}
    file = write_config(tmp_path, servers, **with_metrics)

    def told() -> set[str]:
        """The servers with samples, and each again with `calls` if it has calls."""
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
        lines = re.findall(r'^(\w+)\{.*\bserver="(\w+)"', text, re.MULTILINE)
        return {server for _, server in lines} | {f"{server} calls" for name, server in lines if "calls_total" in name}

    def reload(*ids: str) -> None:
        write_config(tmp_path, {id: servers[id] for id in ids}, **with_metrics)
        colonnade("reload", "--config", str(file), COLONNADE_STATE=str(tmp_path / "state"))

    with serving(file, "a", "b") as host:
        for id in servers:
            headers, message = stateless_request("tools/call", {"name": f"{id}__together", "arguments": {"of": 1}})
            assert "result" in httpx.post(host.url, headers=headers, json=message, trust_env=False).json()
        assert told() == {"a", "b", "a calls", "b calls"}
        reload("a")
        until(lambda: told() == {"a", "a calls"}, "nothing is told of the server")  # a text is a second old at most
        reload("a", "b")
        until(lambda: told() == {"a", "b", "a calls"}, "its counters begin anew")


def listed(file: Path) -> str:
    return colonnade("list", "--config", str(file), COLONNADE_STATE=str(file.parent / "state")).stdout
