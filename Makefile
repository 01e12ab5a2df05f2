# Each target installs what it needs into .venv when it is missing.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format bench clean

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

demo: .venv/installed
	$(BIN)/python examples/demo.py

test: .venv/installed
	$(BIN)/pytest

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed
	$(BIN)/python -m benchmarks.heuristic
	$(BIN)/python -m benchmarks.solver
	$(BIN)/python -m benchmarks.runtime_store
	$(BIN)/python -m benchmarks.runtime_trace
	$(BIN)/python -m benchmarks.emulated_stages
	$(BIN)/python -m benchmarks.post_validated
	$(BIN)/python -m benchmarks.profiling
	$(BIN)/python -m benchmarks.partition
	$(BIN)/python -m benchmarks.service

clean:
	rm -rf .venv build dist *.egg-info
