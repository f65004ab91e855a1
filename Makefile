# Everything a developer or CI runs. Each target sets up what it needs first, and setting up again costs nothing.
# What a target does stands behind its two hashes; `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
BIN := .venv/bin

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

.PHONY: setup
setup: ## make .venv from requirements.lock; says what is missing
	@PYTHON="$(PYTHON)" sh tools/setup.sh

.PHONY: test
test: lint ## set up, then lint, types, import rules, house rules and every test but those of `make endure`
	@echo "== tests"
	@$(BIN)/pytest -q --ignore tests/crash --ignore tests/soak --ignore tests/sweep

.PHONY: endure
endure: setup ## the tests of crashes, of the soak and of faults at n-th steps, reduced; SLICE=K for other steps; under 3 minutes
	@GENRM_TRIO_SWEEP=$(SLICE) $(BIN)/pytest -q tests/crash tests/soak tests/sweep

.PHONY: sweep
sweep: setup ## put a fault at every step, behind HTTP too; about half an hour
	@GENRM_TRIO_SWEEP=full $(BIN)/pytest -q tests/sweep

.PHONY: fuzz
fuzz: setup ## try hostile bodies, judge replies, files and schedules for longer; EXAMPLES of each test, 2000 unless told
	@GENRM_TRIO_FUZZ=$(or $(EXAMPLES),2000) $(BIN)/pytest -q tests/fuzz tests/runtime/test_played_schedules.py

.PHONY: mutants
mutants: setup ## break each rule of the source in a copy and see its tests fail; THIRD=1/3 for every third, ONLY=NAME for one
	@$(BIN)/python tests/mutants/run.py $(if $(THIRD),--third $(THIRD)) $(if $(ONLY),--only $(ONLY))

.PHONY: spec
spec: setup ## check the formal model with TLC, replay its graphs on the code, check traces of the server; under 12 minutes
	@$(BIN)/python -m spec.tools.check

.PHONY: spec-reduced
spec-reduced: setup ## the same in its reduced form; under 4 minutes; PART=1/6 for a sixth of the mutants that it leaves out, as CI does
	@$(BIN)/python -m spec.tools.check --reduced $(if $(PART),--part $(PART))

.PHONY: spec-deep
spec-deep: setup ## the same, with the large models, random behaviours, more graphs and traces, and every mutant in every place
	@$(BIN)/python -m spec.tools.check --deep

.PHONY: crash
crash: setup ## kill and restore the real server in SCHEDULES (200) random schedules from SEED (1); a failure says how to replay it
	@$(BIN)/python -m tests.crash.runs --schedules $(or $(SCHEDULES),200) --seed $(or $(SEED),1)

.PHONY: soak
soak: setup ## send VERIFIES (200000) in mixed endings to one server after another; fails unless memory stays flat
	@$(BIN)/python -m tests.soak $(or $(VERIFIES),200000)

.PHONY: bench
bench: setup ## measure latencies under load, costs of verifies and judge calls, and memory; prints tables
	@$(BIN)/python -m bench.health
	@$(BIN)/python -m bench.costs
	@$(BIN)/python -m bench.stretches
	@$(BIN)/python -m bench.trace

.PHONY: lint
lint: setup ## ruff, formatting, strict types and the direction of imports
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== types"
	@$(BIN)/mypy
	@echo "== imports"
	@$(BIN)/lint-imports --no-logo

.PHONY: format
format: setup ## let ruff fix and format everything
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: demo
demo: setup ## play real cohorts against the real server with a recorded judge, under a minute
	@$(BIN)/genrm-trio demo

.PHONY: lock
lock: ## pin the newest allowed versions anew into requirements.lock
	@sh tools/lock.sh
