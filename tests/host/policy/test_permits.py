"""Permits are issued by the gate and by what admits requests of servers, and by nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

import host
from host.jsonrpc.raw import EMPTY_OBJECT
from host.policy.decision_log import RequestRecord
from host.policy.gate import Admission, CallPermit, WatchPermit
from host.policy.server_requests import ServerRequestPermit
from host.protocol.methods import Kind
from host.protocol.server_requests import ServerRequest
from tests.kit.gates import entry

from .servers import DESK, call, gate

HOST = Path(host.__file__).parent


@pytest.mark.parametrize("forged", [None, object(), "gate", True])
async def test_nobody_else_makes_a_permit(forged: object) -> None:
    with gate() as opened:
        judgement = opened.policies.rules("strict").evaluate(Kind.TOOL, "get_x")
        ref = entry("strict", Kind.RESOURCE, "x://y")
        admission, meter = Admission(judgement, opened.state), opened.policies.meter("strict")
        record = RequestRecord(opened.decision_log)
        with pytest.raises(TypeError, match="only the policy"):
            CallPermit(forged, opened, call(), ref, admission, meter, record)
        with pytest.raises(TypeError, match="only the policy"):
            WatchPermit(forged, opened, call(), ref, admission)
    with pytest.raises(TypeError, match="only the policy"):
        ServerRequestPermit(forged, "strict", ServerRequest.URL, EMPTY_OBJECT, DESK, judgement)


def test_two_files_issue_them() -> None:
    users = {path.name for path in HOST.rglob("*.py") if "ISSUER" in path.read_text()}
    assert users == {"permits.py", "gate.py", "server_requests.py"}
