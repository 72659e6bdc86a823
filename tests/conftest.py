"""Settings that hold for every test."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, and how soon there is one, depends on what else the machine does. There are fewer examples
# than in CI, where nobody waits for them.
settings.register_profile(
    "any machine",
    max_examples=100 if os.environ.get("CI") else 40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None]:
    """The thousands of tests are no garbage: without this, each collection of garbage walks through all of them."""
    gc.disable()
    try:
        _import_all_tests(session.config)
        yield
    finally:
        gc.enable()
        gc.freeze()


def _import_all_tests(config: pytest.Config) -> None:
    """Each process of a run of all tests imports them, and compiles what no other has compiled yet. They begin at
    different places, or each would compile everything."""
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    tests = Path(__file__).parent
    paths = [path.relative_to(tests.parent).with_suffix("") for path in sorted(tests.rglob("test_*.py"))]
    begin = len(paths) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in paths[begin:] + paths[:begin]:
        with suppress(Exception, pytest.skip.Exception):  # its collection says so
            import_module(".".join(path.parts))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI everything is there that a test may need: what is skipped is a failure that nobody would see."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which no test may be in CI: {report.longrepr}"
    return report
