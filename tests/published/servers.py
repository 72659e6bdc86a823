"""Published servers that answer without a key and without a network, each with a version and a call that changes
nothing. In all texts, `{folder}` stands for an empty folder of the run, and `{port}` for a free port."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Server:
    """A published server.

    Args:
        package: `npm:NAME` or `pypi:NAME`.
        program: npm: the script, in the folder of the package; PyPI: the command.
        call: a tool and its arguments.
        args: for stdio.
        http: the arguments for Streamable HTTP; None where it has none.
        http_env: variables for that, beside those of `env`.
        path: of its endpoint.
        varies: a word before a number that differs from call to call.
        ci: whether it is one of the twelve.
    """

    package: str
    version: str
    program: str
    call: tuple[str, Mapping[str, Any]]
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    http: tuple[str, ...] | None = None
    http_env: Mapping[str, str] = field(default_factory=dict)
    path: str = "/mcp"
    varies: str = ""
    ci: bool = False


_NOWHERE = {"URL": "http://127.0.0.1:1", "USERNAME": "a", "API_TOKEN": "none"}
_ATLASSIAN = {f"{each}_{key}": value for each in ("JIRA", "CONFLUENCE") for key, value in _NOWHERE.items()}
_MYSQL = {"HOST": "127.0.0.1", "PORT": "1", "USER": "a", "PASSWORD": "b", "DATABASE": "c"}

SERVERS = (
    Server(
        "npm:@modelcontextprotocol/server-everything",
        "2026.8.31",
        "dist/index.js",
        ("get-sum", {"a": 2, "b": 3}),
        args=("stdio",),
        http=("streamableHttp",),
        http_env={"PORT": "{port}"},
        ci=True,
    ),
    Server(
        "npm:@modelcontextprotocol/server-filesystem",
        "2026.8.31",
        "dist/index.js",
        ("list_directory", {"path": "{folder}"}),
        args=("{folder}",),
        ci=True,
    ),
    Server(
        "npm:@modelcontextprotocol/server-memory",
        "2026.8.31",
        "dist/index.js",
        ("read_graph", {}),
        env={"MEMORY_FILE_PATH": "{folder}/memory.jsonl"},
        ci=True,
    ),
    Server(
        "npm:@modelcontextprotocol/server-sequential-thinking",
        "2026.8.31",
        "dist/index.js",
        ("sequentialthinking", {"thought": "x", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}),
        varies="thoughtHistoryLength",
        ci=True,
    ),
    Server("npm:@modelcontextprotocol/server-pdf", "2.0.4", "dist/index.js", ("list_pdfs", {}), args=("--stdio",)),
    Server("npm:@modelcontextprotocol/server-github", "2025.4.8", "dist/index.js", ("search_repositories", {})),
    Server(
        "npm:@modelcontextprotocol/server-google-maps",
        "0.6.2",
        "dist/index.js",
        ("maps_geocode", {}),
        env={"GOOGLE_MAPS_API_KEY": "none"},
    ),
    Server(
        "npm:@modelcontextprotocol/server-postgres",
        "0.6.2",
        "dist/index.js",
        ("query", {"sql": "select 1"}),
        args=("postgresql://127.0.0.1:1/none",),
    ),
    Server(
        "npm:@modelcontextprotocol/server-slack",
        "2025.4.25",
        "dist/index.js",
        ("slack_post_message", {}),
        env={"SLACK_BOT_TOKEN": "none", "SLACK_TEAM_ID": "T0"},
    ),
    Server(
        "npm:@upstash/context7-mcp",
        "4.1.1",
        "dist/index.js",
        ("query-docs", {"libraryId": "none", "query": "none"}),
        http=("--transport", "http", "--port", "{port}"),
        ci=True,
    ),
    Server(
        "npm:@playwright/mcp",
        "0.0.83",
        "cli.js",
        ("browser_close", {}),
        args=("--headless", "--executable-path=/nowhere"),
        http=("--headless", "--executable-path=/nowhere", "--port", "{port}"),
        ci=True,
    ),
    Server(
        "npm:chrome-devtools-mcp",
        "1.11.0",
        "build/src/bin/chrome-devtools-mcp.js",
        ("list_pages", {}),
        args=("--no-usage-statistics", "--executablePath=/nowhere"),
        env={"CHROME_DEVTOOLS_MCP_NO_UPDATE_CHECKS": "1"},
    ),
    Server(
        "npm:@brave/brave-search-mcp-server",
        "2.1.4",
        "dist/index.js",
        ("brave_web_search", {}),
        env={"BRAVE_API_KEY": "none"},
        http=("--transport", "http", "--host", "127.0.0.1", "--port", "{port}"),
    ),
    Server(
        "npm:@notionhq/notion-mcp-server",
        "2.5.2",
        "bin/cli.mjs",
        ("API-get-user", {}),
        http=("--transport", "http", "--unsafe-disable-auth", "--port", "{port}"),
    ),
    Server(
        "npm:@antv/mcp-server-chart",
        "0.9.10",
        "build/index.js",
        ("generate_area_chart", {"data": 1}),
        http=("--transport", "streamable", "--port", "{port}"),
    ),
    Server(
        "npm:figma-developer-mcp",
        "0.13.2",
        "dist/bin.js",
        ("get_figma_data", {"fileKey": "?"}),
        args=("--stdio", "--figma-api-key=none"),
        http=("--figma-api-key=none", "--port", "{port}"),
    ),
    Server("npm:@eslint/mcp", "0.3.13", "src/mcp-cli.js", ("lint-files", {"filePaths": []})),
    Server(
        "npm:@coo-quack/calc-mcp",
        "2.1.1",
        "dist/index.js",
        ("base64", {"input": "x", "action": "encode"}),
        ci=True,
    ),
    Server("npm:@drawio/mcp", "1.6.1", "src/index.js", ("open_drawio_xml", {})),
    Server(
        "npm:@kazuph/mcp-taskmanager",
        "1.1.1",
        "dist/index.js",
        ("list_requests", {}),
        env={"TASK_MANAGER_FILE_PATH": "{folder}/tasks.json"},
    ),
    Server("npm:exa-mcp-server", "3.4.1", "dist/stdio.cjs", ("web_fetch_exa", {}), env={"EXA_API_KEY": "none"}),
    Server("npm:tavily-mcp", "0.2.22", "build/index.js", ("tavily_search", {}), env={"TAVILY_API_KEY": "none"}),
    Server("npm:firecrawl-mcp", "3.26.0", "dist/index.js", ("firecrawl_map", {}), env={"FIRECRAWL_API_KEY": "none"}),
    Server("npm:@mobilenext/mobile-mcp", "1.0.4", "lib/index.js", ("mobile_list_apps", {})),
    Server(
        "npm:@elastic/mcp-server-elasticsearch",
        "0.3.1",
        "dist/index.js",
        ("get_mappings", {}),
        env={"ES_URL": "http://127.0.0.1:1", "ES_API_KEY": "none"},
    ),
    Server(
        "pypi:mcp-server-time",
        "2026.10.19",
        "mcp-server-time",
        ("convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "UTC"}),
        args=("--local-timezone", "UTC"),
        ci=True,
    ),
    Server("pypi:mcp-server-git", "2026.10.19", "mcp-server-git", ("git_status", {"repo_path": "{folder}"}), ci=True),
    Server("pypi:mcp-server-fetch", "2026.10.24", "mcp-server-fetch", ("fetch", {"url": "http://127.0.0.1:1/"})),
    Server(
        "pypi:mcp-atlassian",
        "0.23.1",
        "mcp-atlassian",
        ("jira_get_user_profile", {}),
        env={**_ATLASSIAN, "PYTHONHASHSEED": "0"},
    ),
    Server(
        "pypi:mcp-shell-server",
        "1.1.14",
        "mcp-shell-server",
        ("shell_execute", {"command": ["pwd"], "directory": "{folder}"}),
        env={"ALLOW_COMMANDS": "pwd"},
        ci=True,
    ),
    Server(
        "pypi:awslabs.aws-documentation-mcp-server",
        "1.2.3",
        "awslabs.aws-documentation-mcp-server",
        ("read_documentation", {"url": "http://127.0.0.1:1/"}),
    ),
    Server("pypi:office-word-mcp-server", "1.1.11", "word_mcp_server", ("list_available_documents", {})),
    Server(
        "pypi:excel-mcp-server",
        "2.2.2",
        "excel-mcp-server",
        ("describe_workbook", {"path": "none.xlsx"}),
        args=("stdio",),
    ),
    Server(
        "pypi:duckduckgo-mcp-server",
        "0.7.0",
        "duckduckgo-mcp-server",
        ("expand_link", {"token": "none"}),
        http=("--transport", "streamable-http", "--port", "{port}"),
        ci=True,
    ),
    Server(
        "pypi:wikipedia-mcp",
        "2.0.1",
        "wikipedia-mcp",
        ("search_wikipedia", {"query": ""}),
        http=("--transport", "http", "--port", "{port}"),
    ),
    Server(
        "pypi:mcp-server-calculator", "0.2.1", "mcp-server-calculator", ("calculate", {"expression": "6*7"}), ci=True
    ),
    Server(
        "pypi:mysql-mcp-server",
        "0.4.4",
        "mysql_mcp_server",
        ("execute_sql", {"query": "select 1"}),
        env={f"MYSQL_{key}": value for key, value in _MYSQL.items()},
    ),
    Server("pypi:mcp-pandoc", "0.11.1", "mcp-pandoc", ("convert-contents", {})),
    Server(
        "pypi:mcp-server-odoo",
        "0.9.0",
        "mcp-server-odoo",
        ("search_records", {"model": "none"}),
        env={"ODOO_URL": "http://127.0.0.1:1", "ODOO_API_KEY": "none"},
        http=("--transport", "streamable-http", "--port", "{port}"),
    ),
    Server(
        "pypi:markitdown-mcp",
        "0.0.1a8",
        "markitdown-mcp",
        ("convert_to_markdown", {"uri": "data:text/plain,x"}),
        http=("--http", "--port", "{port}"),
    ),
)
BY_PACKAGE = {each.package: each for each in SERVERS}
