"""A configuration file, read strictly into one frozen object.

`load` is the way in; what comes back is described in `config.model`, what can go wrong in `config.problems`. Nothing
here imports the host.
"""

from config.form import schema
from config.interpolate import Secret
from config.load import load
from config.model import (
    Config,
    Consent,
    HttpServer,
    Isolation,
    KindConsent,
    Listen,
    Protocol,
    ServerSpec,
    StdioServer,
    Trust,
    is_loopback,
    is_protocol_header,
)
from config.problems import ConfigError, Problem

__all__ = [
    "Config",
    "ConfigError",
    "Consent",
    "HttpServer",
    "Isolation",
    "KindConsent",
    "Listen",
    "Problem",
    "Protocol",
    "Secret",
    "ServerSpec",
    "StdioServer",
    "Trust",
    "is_loopback",
    "is_protocol_header",
    "load",
    "schema",
]
