"""The dashboard and the rules of examples/deploy ask for metrics, labels and states that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from host.admin.schema import ServerState
from host.attempts import Reason
from host.telemetry.counts import OUTCOMES_OF_RELOADS
from host.telemetry.names import METRICS

DEPLOY = Path(__file__).parents[1] / "examples" / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "colonnade.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "colonnade.rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
LABELS = {
    name: set(each.labels)
    for each in METRICS
    for name in (
        [f"{each.name}_{end}" for end in ("bucket", "sum", "count")] if each.kind == "histogram" else [each.shown]
    )
}
OF_LIBRARY = {"process_open_fds", "process_max_fds", "process_resident_memory_bytes", "process_cpu_seconds_total", "up"}
OF_PROMETHEUS = {"job", "instance", "le", "alertname", "alertstate"}


def dashboard_targets() -> list[dict[str, str]]:
    return [target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def dashboard_expressions() -> list[str]:
    return [target["expr"] for target in dashboard_targets()]


def without_variables(expression: str) -> str:
    """As Grafana sends it, for all servers of the job."""
    return expression.replace("$__rate_interval", "1m").replace("$server", ".*").replace("$job", "colonnade")


EXPRESSIONS = [
    *dashboard_expressions(),
    *(rule["expr"] for rule in RULES),
    *(each["definition"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"),
    *(each["target"]["expr"] for each in DASHBOARD["annotations"]["list"]),
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_each_metric_label_and_state_exists(expression: str) -> None:
    names = re.findall(r"\b(?:mcp|colonnade|process)_\w+|\bup\b", re.sub(r'"[^"]*"', '""', expression))
    known = set(names) - {"mcp_method_name"}
    assert known, "it asks for nothing of ours"
    assert known <= LABELS.keys() | OF_LIBRARY
    for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", expression):
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', "", matchers)))
        assert used <= LABELS.get(name, set()) | OF_PROMETHEUS, name
    grouped = {label.strip() for each in re.findall(r"by \(([^)]*)\)", expression) for label in each.split(",")}
    assert grouped <= set().union(*(LABELS.get(name, set()) for name in known)) | OF_PROMETHEUS
    states = {state for each in re.findall(r'\bstate=~?"([^"]*)"', expression) for state in each.split("|")}
    assert states <= set(get_args(ServerState))
    reasons = {reason for each in re.findall(r'\breason!?=?~?"([^"]*)"', expression) for reason in each.split("|")}
    assert reasons <= set(Reason)
    assert set(re.findall(r'\boutcome="([^"]*)"', expression)) <= set(OUTCOMES_OF_RELOADS)


def test_each_alert_says_what_is_wrong_and_the_page_what_to_do() -> None:
    page = (DEPLOY.parents[1] / "docs" / "operations.md").read_text()
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert f"| `{rule['alert']}` |" in page
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 12


def test_each_alert_fires_in_a_case() -> None:
    """promtool runs the cases (tests/real/test_prometheus.py)."""
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "colonnade.rules.test.yml").read_text())["tests"]
    fired = {each["alertname"] for each in group["alert_rule_test"] if each.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in RULES}


def test_the_panels_of_the_dashboard_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def unit_of(expression: str) -> str:
    """Grafana's name for the unit of its values; `short` of plain numbers."""
    if "_bytes" in expression:
        return "Bps" if "rate(" in expression else "bytes"
    if "histogram_quantile(" in expression:
        return "s"
    is_share = "/" in re.sub(r'"[^"]*"', "", expression) or "cpu_seconds" in expression
    return "percentunit" if is_share else "short"


def test_each_panel_has_the_unit_of_its_values() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            unit = panel["fieldConfig"]["defaults"]["unit"].replace("reqps", "short")  # plain numbers, too
            assert unit == unit_of(target["expr"]), panel["title"]


def test_prometheus_and_grafana_find_each_other_and_the_metrics() -> None:
    services = yaml.safe_load((DEPLOY / "monitoring.yaml").read_text())["services"]
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (scrape,) = prometheus["scrape_configs"]
    assert scrape["static_configs"][0]["targets"] == [
        yaml.safe_load((DEPLOY / "gateway" / "colonnade.yaml").read_text())["listen"]["metrics"]
    ]
    assert services["prometheus"]["network_mode"] == "service:gateway"
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://gateway:9090"
    assert services["gateway"]["ports"] == ["127.0.0.1:9090:9090"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "dashboards.yaml").read_text())["providers"]
    mounts = dict(each.split(":")[:2] for service in services.values() for each in service.get("volumes", ()))
    own = {name: place for name, place in mounts.items() if name.startswith("./")}
    assert all((DEPLOY / name).exists() for name in own)
    assert own["./grafana/colonnade.json"].startswith(provider["options"]["path"])
    assert prometheus["rule_files"] == ["colonnade.rules.yml"]
