"""A configuration file, read strictly into one frozen object.

`load` is the way in; what comes back is described in `config.model`, what can go wrong in `config.problems`. Nothing
here imports the host.
"""

from config.diff import Difference, difference
from config.form import schema
from config.interpolate import Secret
from config.load import load
from config.model import (
    AskSpec,
    Channel,
    Check,
    Condition,
    Config,
    Consent,
    ConsoleSpec,
    HttpServer,
    Isolation,
    KindConsent,
    Limits,
    Listen,
    Protocol,
    Rate,
    Rule,
    ServerSpec,
    StdioServer,
    Trust,
    Verdict,
    is_loopback,
    is_protocol_header,
)
from config.problems import ConfigError, Problem
from config.when import WhenError, read_when

__all__ = [
    "AskSpec",
    "Channel",
    "Check",
    "Condition",
    "Config",
    "ConfigError",
    "Consent",
    "ConsoleSpec",
    "Difference",
    "HttpServer",
    "Isolation",
    "KindConsent",
    "Limits",
    "Listen",
    "Problem",
    "Protocol",
    "Rate",
    "Rule",
    "Secret",
    "ServerSpec",
    "StdioServer",
    "Trust",
    "Verdict",
    "WhenError",
    "difference",
    "is_loopback",
    "is_protocol_header",
    "load",
    "read_when",
    "schema",
]
