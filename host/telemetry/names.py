"""The metrics: their names, kinds, labels and meanings. docs/metrics.md has this table.

`mcp_*` are the metrics of OpenTelemetry's conventions for MCP (`open-telemetry/semantic-conventions-genai` v0.1.0,
"Semantic conventions for Model Context Protocol / Metrics", status: development), with the names and labels that
OpenTelemetry's rules for Prometheus make of them. `colonnade_*` are our own.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

CONVENTIONS = "open-telemetry/semantic-conventions-genai v0.1.0"
METHOD, ERROR, TOOL = "mcp_method_name", "error_type", "gen_ai_tool_name"
STATUS, OPERATION = "rpc_response_status_code", "gen_ai_operation_name"
REVISION, TRANSPORT = "mcp_protocol_version", "network_transport"


class Metric(Struct, frozen=True):
    """One metric. `name` has its unit, and no `_total`, which counters have behind it. The last of `labels` is there
    only with `metrics: {tools: true}` if `may_name_tools`."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
    help: str
    labels: tuple[str, ...] = ()
    may_name_tools: bool = False

    @property
    def shown(self) -> str:
        """The name as it is asked for."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    @property
    def of_servers(self) -> bool:
        """Whether its first label is a server of the configuration."""
        return self.labels[:1] == ("server",)

    def labels_with(self, *, tools: bool) -> tuple[str, ...]:
        return self.labels[:-1] if self.may_name_tools and not tools else self.labels


SERVER_OPERATION = Metric(
    "mcp_server_operation_duration_seconds",
    "histogram",
    "Requests of clients, and of servers to clients, from their arrival to their answer.",
    (METHOD, ERROR, STATUS, OPERATION, REVISION, TRANSPORT),
)
CLIENT_OPERATION = Metric(
    "mcp_client_operation_duration_seconds",
    "histogram",
    "Requests to servers, from their sending to their result.",
    ("server", METHOD, ERROR, STATUS, OPERATION, REVISION, TRANSPORT, TOOL),
    may_name_tools=True,
)
SERVER_SESSION = Metric(
    "mcp_server_session_duration_seconds",
    "histogram",
    "Sessions of clients that have ended. A stateless client over HTTP has none.",
    (REVISION, TRANSPORT),
)
CLIENT_SESSION = Metric(
    "mcp_client_session_duration_seconds",
    "histogram",
    "Connections to servers that have ended, from ready to their end, without those of dedicated instances.",
    ("server", ERROR, REVISION, TRANSPORT),
)
WAITS = Metric(
    "colonnade_wait_duration_seconds",
    "histogram",
    "Waiting of requests, for a person who confirms, for a slot of the server, or for the server to start.",
    ("wait",),
)
CALLS = Metric(
    "colonnade_calls",
    "counter",
    "Requests that passed the gate, to entries of servers and to clients for servers. Kind: of the entry, or what the "
    "server requests. Verdict: of the rules. Outcome: answered, error, failed or called off; of servers' requests also "
    "handed on (its client answers with another request) and told (roots).",
    ("server", METHOD, "kind", "verdict", "outcome"),
)
ARGUMENT_BYTES = Metric(
    "colonnade_argument_bytes", "counter", "Bytes of the arguments of the same requests.", ("server", "kind")
)
RESULT_BYTES = Metric("colonnade_result_bytes", "counter", "Bytes of their results.", ("server", "kind"))
IN_FLIGHT = Metric("colonnade_calls_in_flight", "gauge", "Calls that are at a server now.", ("server",))
ATTEMPTS = Metric(
    "colonnade_refused_attempts",
    "counter",
    "Requests refused before they reached a server, counted within a minute.",
    ("reason",),
)
DENIED = Metric(
    "colonnade_calls_denied", "counter", "Calls of entries that the rules deny with their arguments.", ("server",)
)
LIMITED = Metric(
    "colonnade_limit_refusals", "counter", "Calls and sampling requests that a limit has refused.", ("server",)
)
QUEUED = Metric("colonnade_calls_queued", "gauge", "Calls that wait for a slot of the server now.", ("server",))
CONFIRMATIONS = Metric(
    "colonnade_confirmations",
    "counter",
    "Confirmations that were asked for and have ended, and other decisions of people.",
    ("server", "answer"),
)
PENDING = Metric("colonnade_confirmations_pending", "gauge", "Confirmations that wait for a person now.")
SERVER_STATE = Metric(
    "colonnade_server_state", "gauge", "1 for the state that the server is in, 0 for the others.", ("server", "state")
)
SERVER_STARTS = Metric("colonnade_server_starts", "counter", "Times that the server became ready.", ("server",))
SERVER_FAILURES = Metric(
    "colonnade_server_failures", "counter", "Connections that ended by a failure or could not be made.", ("server",)
)
ENTRIES = Metric("colonnade_server_entries", "gauge", "Entries in the lists of the server.", ("server", "kind"))
DEFINITION_TOKENS = Metric(
    "colonnade_server_definition_tokens",
    "gauge",
    "Estimate of the tokens that the tools of the server cost a model that sees all of them.",
    ("server",),
)
HELD = Metric(
    "colonnade_held_definitions",
    "gauge",
    "Definitions and launches of the server that wait for a person's approval.",
    ("server",),
)
INSTANCES = Metric("colonnade_server_instances", "gauge", "Dedicated instances of the server now.", ("server",))
DROPPED = Metric(
    "colonnade_dropped_messages",
    "counter",
    "Messages of the server that were dropped.",
    ("server", "reason"),
)
LOGINS = Metric("colonnade_logins", "counter", "Logins at servers, by their outcome.", ("server", "outcome"))
SESSIONS = Metric("colonnade_sessions", "gauge", "Sessions of clients that are open now.", ("transport",))
STREAMS = Metric(
    "colonnade_streams",
    "gauge",
    "Streams that clients over HTTP keep open without a call: standing streams of sessions, those of HTTP+SSE, and "
    "subscriptions/listen.",
    ("kind",),
)
PARKED = Metric("colonnade_parked_calls", "gauge", "Calls that wait for an answer of their client, or may have to.")
TASKS = Metric("colonnade_tasks", "gauge", "Unfinished calls that are tasks, or may become some.")
MEMORY_LIMIT = Metric("colonnade_message_memory_limit_bytes", "gauge", "Bytes that messages may take.")
MEMORY = Metric("colonnade_message_memory_bytes", "gauge", "Bytes that messages take, by their use.", ("use",))
AUDIT_WORKS = Metric("colonnade_audit_works", "gauge", "1 while records can be written, else 0: nothing is sent.")
AUDIT_LAG = Metric(
    "colonnade_audit_lag_seconds", "gauge", "Time for which records may not be on the disk; 0 if all of them are."
)
COMMITS = Metric("colonnade_store_commit_duration_seconds", "summary", "Transactions that change what is stored.")
RELOADS = Metric("colonnade_config_reloads", "counter", "Readings of the configuration.", ("outcome",))
INTERNAL_ERRORS = Metric("colonnade_internal_errors", "counter", "Mistakes of Colonnade itself.")
BUILD = Metric("colonnade_build_info", "gauge", "1, with the version.", ("version",))

METRICS = tuple(each for each in list(globals().values()) if isinstance(each, Metric))


def table() -> str:
    """The metrics as a table of docs/metrics.md."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for each in METRICS:
        *names, last = (f"`{name}`" for name in each.labels or ("",))
        named = [*names, f"{last} with `tools`" if each.may_name_tools else last]
        rows.append(f"| `{each.shown}` | {each.kind} | {', '.join(named) if each.labels else ''} | {each.help} |")
    return "\n".join(rows)
