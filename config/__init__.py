"""A configuration file, read strictly into one frozen object.

`load` is the way in; what comes back is described in `config.model`, what can go wrong in `config.problems`. Nothing
here imports the host.
"""

from config.address_zones import Zone, is_loopback, zone_of
from config.diff import Difference, difference
from config.load import load
from config.model import (
    AskSpec,
    AuditDetail,
    AuditSpec,
    Auth,
    Channel,
    Check,
    Condition,
    Config,
    Consent,
    ConsoleSpec,
    Elicitation,
    Eras,
    HttpClient,
    HttpServer,
    HttpServerChoice,
    Isolation,
    KindConsent,
    Limits,
    Listen,
    OAuth,
    OAuthGrant,
    Protocol,
    Rule,
    ServerSpec,
    Start,
    StdioServer,
    Switch,
    Tls,
    Trust,
    UriConsent,
    UriRule,
    Verdict,
)
from config.problems import ConfigError, Problem
from config.references import Secret
from config.schema import schema
from config.types import Address, Rate, is_protocol_header
from config.when import WhenError, read_when

__all__ = [
    "Address",
    "AskSpec",
    "AuditDetail",
    "AuditSpec",
    "Auth",
    "Channel",
    "Check",
    "Condition",
    "Config",
    "ConfigError",
    "Consent",
    "ConsoleSpec",
    "Difference",
    "Elicitation",
    "Eras",
    "HttpClient",
    "HttpServer",
    "HttpServerChoice",
    "Isolation",
    "KindConsent",
    "Limits",
    "Listen",
    "OAuth",
    "OAuthGrant",
    "Problem",
    "Protocol",
    "Rate",
    "Rule",
    "Secret",
    "ServerSpec",
    "Start",
    "StdioServer",
    "Switch",
    "Tls",
    "Trust",
    "UriConsent",
    "UriRule",
    "Verdict",
    "WhenError",
    "Zone",
    "difference",
    "is_loopback",
    "is_protocol_header",
    "load",
    "read_when",
    "schema",
    "zone_of",
]
