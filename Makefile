# Two commands do everything: `make serve` and `make test`. Each makes the virtual environment first.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

export RAY_USAGE_STATS_ENABLED := 0

.PHONY: serve test lint bench clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

serve: $(STAMP)
	$(BIN)/goose model pull
	$(BIN)/serve run deployments/goose.yaml

test: $(STAMP)
	$(BIN)/goose model pull
	$(BIN)/pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/goose bench --help

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
