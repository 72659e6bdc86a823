"""Settings that hold for every test."""

from __future__ import annotations

import gc
import os
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings
from trio.abc import Clock
from trio.testing import MockClock

from host.seal import CIPHERS
from tests.kit.examples import examples
from tests.kit.folders import folder
from tests.kit.kernel import NOT_HERE
from tests.real.conftest import is_left_out

if TYPE_CHECKING:
    from tests.kit.postgres import PostgresServer

# How long an example takes, and how soon there is one, depends on what else the machine does.
settings.register_profile(
    "any machine",
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")

# A host loads it in a thread when it first seals: a clock that jumps would jump meanwhile.
import_module(CIPHERS)

# No test shows anything on the desktop of whoever runs it: there is no session bus, unless a test makes one.
os.environ.pop("DBUS_SESSION_BUS_ADDRESS", None)
os.environ["XDG_RUNTIME_DIR"] = "/dev/null"
# Nor do variables for traces of whoever runs it say anything.
for each in [name for name in os.environ if name.startswith("OTEL_")]:
    del os.environ[each]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None]:
    """The thousands of tests are no garbage: without this, each collection of garbage walks through all of them. A test
    leaves less than is worth a collection of its own."""
    gc.disable()
    try:
        _import_all_tests(session.config)
        yield
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)


def _import_all_tests(config: pytest.Config) -> None:
    """Each process of a run of all tests imports them, and compiles what no other has compiled yet. They begin at
    different places, or each would compile everything."""
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    tests = Path(__file__).parent
    files = [path for path in sorted(tests.rglob("test_*.py")) if not is_left_out(path, config)]
    paths = [path.relative_to(tests.parent).with_suffix("") for path in files]
    begin = len(paths) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in paths[begin:] + paths[:begin]:
        with suppress(Exception, pytest.skip.Exception):  # its collection says so
            import_module(".".join(path.parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file that is marked so run by a clock that jumps, without asking for it one by one. Most cases of
    a table that is marked so are slow."""
    tables: dict[str, list[pytest.Item]] = {}
    for item in items:
        is_async = isinstance(item, pytest.Function) and iscoroutinefunction(item.obj)
        if is_async and item.get_closest_marker("virtual_time") is not None:
            item.add_marker(pytest.mark.trio(run=_run_virtually), append=False)
        if item.get_closest_marker("few") is not None:
            tables.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tables.values():
        _leave_few(cases)


def _leave_few(cases: list[pytest.Item]) -> None:
    """The first and the last case stay, and those between at equal distances: where a table has several dimensions,
    these differ in each of them."""
    mark = cases[0].get_closest_marker("few")
    assert mark is not None
    (number,) = mark.args
    left = {round(at * (len(cases) - 1) / max(number - 1, 1)) for at in range(number)}
    for at, case in enumerate(cases):
        if at not in left:
            case.add_marker(pytest.mark.slow)


def _run_virtually(work: Callable[[], Awaitable[object]], clock: Clock | None = None, instruments: Any = ()) -> object:
    return trio.run(work, clock=clock or MockClock(autojump_threshold=0), instruments=instruments)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A process of a run sends one report of a test that passes, not also its beginning, its end, and what was made
    ready and taken down: to write and read those takes longer than most tests."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI everything is there that a test may need, but what its kernel refuses: what is skipped otherwise is a
    failure that nobody would see."""
    report = yield
    if report.skipped and os.environ.get("CI") and NOT_HERE not in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"skipped, which no test may be in CI: {report.longrepr}"
    return report


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory, but for slow tests and those that are marked so: each decision that is stored waits for a disk, and
    pytest looks at the folders of all tests before for a name that is free."""
    if any(request.node.get_closest_marker(mark) for mark in ("disk", "slow")):
        yield tmp_path_factory.mktemp("disk")
        return
    with folder(of_programs=True) as made:
        yield made


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A PostgreSQL server for the run."""
    from tests.kit.postgres import shared_server  # most processes of a run need none of it

    base = tmp_path_factory.getbasetemp()
    with shared_server(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) as server:
        yield server
