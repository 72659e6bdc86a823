"""The time anywhere, and a countdown that reports progress and can be cancelled."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from small_server import Refusal, SmallServer, text, tool

TOOLS = [
    tool(
        "now", "What time it is", {"zone": {"type": "string", "description": "such as Europe/Vienna; UTC if left out"}}
    ),
    tool("countdown", "Count down and report each second", {"seconds": {"type": "number"}}, ["seconds"]),
]


def call_tool(params, call):
    arguments = params.get("arguments", {})
    if params["name"] == "now":
        try:
            zone = ZoneInfo(arguments["zone"]) if "zone" in arguments else UTC
        except (ZoneInfoNotFoundError, ValueError):
            return text(f"There is no time zone {arguments['zone']!r}.", error=True)
        return text(datetime.now(zone).isoformat(timespec="seconds"))
    if params["name"] == "countdown":
        return count_down(float(arguments["seconds"]), call)
    raise Refusal(-32602, f"Unknown tool: {params['name']}")


def count_down(seconds, call):
    left = seconds
    while left > 0:
        call.progress(seconds - left, seconds, f"{left:g} s to go")
        step = min(left, 1.0)
        if call.cancelled.wait(step):
            return text("Called off.")
        left -= step
    return text("Lift-off!")


server = SmallServer(
    "clock", {"tools": {}}, {"tools/list": lambda params, call: {"tools": TOOLS}, "tools/call": call_tool}
)

if __name__ == "__main__":
    server.run()
