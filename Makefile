# `make serve` and `make test` do everything from a fresh clone; each makes the virtual environment first.
# Another Python than 3.11: `make serve PYTHON=python3.12`.
PYTHON ?= python3.11
VENV   := .venv
CLIENTS := $(VENV)/clients
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SERVER := $(VENV)/.server-installed
# The prompt files of the benches and of `make exact`: make bench PROMPTS="a.jsonl b.jsonl"; their form: README.md.
PROMPTS ?=
# How many processes `make test` runs tests in.
WORKERS ?= 2

export RAY_USAGE_STATS_ENABLED := 0

.PHONY: audit burst counters dev faults help sessions soak shards serve test lint bench exact equivalence slots ranks families telemetry clients clean

$(SERVER) $(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "$(PYTHON) is missing or is older than Python 3.11. Install Python 3.11 or newer with its venv module," >&2; \
		echo "or name the one you have: make $(or $(MAKECMDGOALS),serve) PYTHON=/path/to/python3" >&2; \
		exit 1; }
	@echo 'Installing into $(VENV): about 2 GB, some minutes'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(if $(filter $(SERVER),$@),tensor-parallel,dev)]'
	@touch $@

# The texts behind ## are its list.
help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

serve: $(SERVER) ## Start a server with the embedded model on port 8000
	$(BIN)/goose model pull
	@echo 'Starting; it says when it is ready. Then see README.md for a first request. Ctrl-C stops it.'
	$(BIN)/goose serve --config deployments/goose.yaml

dev: $(STAMP) ## Install what tests and linters need, and run nothing
	$(BIN)/goose model pull

# Tests that need no running application in WORKERS processes, a file at a time, on one thread each; then the others.
test: $(STAMP) ## All tests; a quarter of an hour
	$(BIN)/goose model pull
	OMP_NUM_THREADS=1 $(BIN)/pytest --ignore=tests/serve --ignore=tests/chaos --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder
	$(BIN)/pytest tests/serve tests/chaos

lint: $(STAMP) ## ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Mean acceptance length of every policy, chat-templated.
bench: $(STAMP) ## Acceptance of every policy on the files in PROMPTS
	@test -n "$(PROMPTS)" || { echo 'Name prompt files: make bench PROMPTS=goose_ray/bench/data/calibration_prompts.jsonl' >&2; exit 1; }
	for policy in autoregressive chain recycling balanced suffix goose anisotropic; do \
		$(BIN)/goose bench tau --chat --limit 10 --policy $$policy --prompts $(PROMPTS) || exit 1; done

# The whole of what tests/equivalence/test_embedded_exact.py samples; takes well over an hour on two cores.
exact: $(STAMP) ## Answers against transformers' generate on the files in PROMPTS
	@test -n "$(PROMPTS)" || { echo 'Name prompt files: make exact PROMPTS=goose_ray/bench/data/calibration_prompts.jsonl' >&2; exit 1; }
	$(BIN)/goose bench exact --limit 10 --temperature 0.8 --prompts $(PROMPTS)

# Every policy, batch and preemption against plain decoding; tests/equivalence/test_embedded_matrix.py samples it. About
# three quarters of an hour of one core with the 60 prompts of twelve files.
equivalence: $(STAMP) ## Every policy, batch and preemption against plain decoding
	@test -n "$(PROMPTS)" || { echo 'Name prompt files: make equivalence PROMPTS=goose_ray/bench/data/calibration_prompts.jsonl' >&2; exit 1; }
	$(BIN)/goose bench equivalence --limit 5 --max-tokens 48 --json --prompts $(PROMPTS)

# Memory at length: 100,000 random operations, a prompt of 32768 tokens, 10,000 requests that are refused, cancelled or
# answered, by the engine alone and over HTTP.
slots: $(STAMP) ## Memory at length
	GOOSE_CACHE_STEPS=100000 GOOSE_LONG_PROMPT=32768 GOOSE_CHURN=10000 \
		$(BIN)/pytest tests/property/test_engine_prefixes.py tests/property/test_engine_bounds.py \
		tests/property/test_engine_resident.py tests/behaviours/test_bad_requests.py

# Gangs of four ranks, gangs over two nodes and over two hosts, shared prompts answered by two ranks, another model by the
# environment, killed and stopped ranks and replicas under load, and updates under load; `make test` has the rest. Twenty
# minutes.
ranks: $(STAMP) ## Models on several ranks, killed and updated under load; twenty minutes
	GOOSE_RANKS=4 $(BIN)/pytest tests/unit/runner/test_shard_slices.py tests/serve/test_rank_gang.py \
		tests/serve/test_rank_environment.py tests/serve/test_tensor_parallel.py tests/serve/test_rank_chaos.py \
		tests/serve/test_rolling_updates.py

# The most memory that ranks have while they read a checkpoint of 4 GB, at two ranks and at four.
shards: $(STAMP) ## Memory of ranks while they read a checkpoint of 4 GB
	GOOSE_SHARD_GB=4 $(BIN)/pytest tests/serve/test_shard_memory.py

# Every causal language model of transformers that can be made tiny: refused, or right; and the compiled attention kernel.
# About ten minutes.
families: $(STAMP) ## Every model family of transformers; ten minutes
	GOOSE_ARCHITECTURES=all $(BIN)/pytest -q tests/equivalence/test_architectures.py tests/unit/runner/test_runner_flex.py

# A burst over HTTP: a second replica and back, nobody fails; and no replica while nobody asks. About four minutes.
burst: $(STAMP) ## A burst of requests, and a second replica; four minutes
	GOOSE_BURST=1 $(BIN)/pytest tests/serve/test_burst.py

# Conversations over HTTP by two replicas of a small model, under our router and under Ray Serve's: what each finds in its
# cache, and how long requests wait; each router twice. A quarter of an hour.
sessions: $(STAMP) ## Conversations under our router and Ray Serve's; a quarter of an hour
	GOOSE_SESSIONS=1 $(BIN)/pytest -s tests/serve/test_sessions.py

# Replicas whose reports are lost and doubled, three aggregators and a replica killed: counters exact at the end.
# COUNTERS_REPLICAS: how many. About nine minutes with four.
COUNTERS_REPLICAS ?= 4
counters: $(STAMP) ## Counters when reports are lost and aggregators killed; nine minutes
	GOOSE_COUNTERS=1 GOOSE_COUNTERS_REPLICAS=$(COUNTERS_REPLICAS) $(BIN)/pytest tests/serve/test_cluster_counters.py

# Faults of every kind under a running application, drawn with a seed: killed and stopped processes, full disks, clients
# of all manners. Whatever happens, no answer is wrong, lost or doubled, and nothing is left behind. Half an hour.
# FAULTS_SEED: others. FAULTS_FROM=51: from the 51st on. FAULTS_KIND="kill": only those whose name has it in it.
# FAULTS_REPORT=faults.md: a file for the table. FAULTS_PATIENCE=4: where the machine does other things as well.
FAULTS ?= 200
faults: $(STAMP) ## Faults of every kind under a running application; half an hour
	FAULTS=$(FAULTS) OMP_NUM_THREADS=1 $(BIN)/pytest tests/chaos/test_faults.py

# SOAK_MINUTES of mixed traffic behind some minutes that fill what has a limit, and how much each process grows.
# SOAK_CLIENTS at once; SOAK_MODEL=tiny: more requests in the same time.
SOAK_MINUTES ?= 20
soak: $(STAMP) ## How much processes grow under mixed traffic; SOAK_MINUTES
	MALLOC_MMAP_THRESHOLD_=1048576 SOAK_MINUTES=$(SOAK_MINUTES) $(BIN)/pytest tests/chaos/test_soak.py

# The dashboard in a real browser, with pictures for docs/, and every query of Grafana's panels in a real Prometheus.
CHROMIUM   ?= chromium-headless-shell
PROMETHEUS ?= prometheus
telemetry: $(STAMP) ## The dashboard in a browser, and Grafana's queries in a Prometheus
	@for tool in $(CHROMIUM) $(PROMETHEUS); do command -v $$tool >/dev/null || { \
		echo "$$tool is missing: make telemetry CHROMIUM=/path/to/chromium PROMETHEUS=/path/to/prometheus" >&2; exit 1; }; done
	GOOSE_CHROMIUM=$(CHROMIUM) GOOSE_PROMETHEUS=$(PROMETHEUS) GOOSE_SCREENSHOTS=docs $(BIN)/pytest \
		tests/unit/telemetry/test_dashboard_browser.py tests/unit/cluster/test_cluster_dashboards.py tests/serve/test_dashboard.py

# Clients of others against a real server, in an environment of their own: docs/clients.md. CASES: schemathesis' cases of
# each operation.
CASES ?= 20
$(CLIENTS)/.installed: $(STAMP) tests/clients/requirements.txt tests/clients/package.json
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
	mkdir -p $(CLIENTS)/node
	cp tests/clients/package.json $(CLIENTS)/node
	npm install --silent --no-audit --no-fund --prefix $(CLIENTS)/node
	@touch $@

clients: $(CLIENTS)/.installed ## Other people's clients against a real server
	$(BIN)/goose model pull
	GOOSE_CLIENTS=1 GOOSE_SCHEMA_CASES=$(CASES) GOOSE_NODE_MODULES=$(CLIENTS)/node/node_modules \
		$(CLIENTS)/bin/pytest -rs tests/clients

# Known vulnerabilities of everything that is installed here, at the versions that are. It asks osv.dev, so it needs the
# internet; AUDIT: more options of pip-audit. pip itself is left out: it comes with Python, and nothing that is served runs it.
AUDIT ?=
$(VENV)/audit/.installed:
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet --disable-pip-version-check 'pip-audit>=2.10,<3'
	@touch $@

audit: $(STAMP) $(VENV)/audit/.installed ## Known vulnerabilities of what is installed
	$(BIN)/pip list --format=freeze --exclude-editable --exclude pip --disable-pip-version-check | sed 's/+.*//' \
		> $(VENV)/audit/installed.txt
	$(VENV)/audit/bin/pip-audit --vulnerability-service osv --no-deps --disable-pip --progress-spinner off \
		--requirement $(VENV)/audit/installed.txt $(AUDIT)

clean: ## Remove the virtual environment and what tools have left
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find goose -name __pycache__ -exec rm -rf {} +
