# make demo   a first model in a few minutes, nothing to download but packages
# make test   the whole test suite, with the same answer every time
# make fuzz   the tests of properties, with new random examples; failures are kept in tests/.found
# make faults the readers of files, fuzzed by coverage, ten minutes of CPU time each
# Each makes .venv with what it needs. PYTHON chooses the interpreter (3.11 or newer).

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEMO := runs/demo

.PHONY: demo test fuzz faults check format clean

.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[report]'
	touch $@

.venv/dev: .venv/core
	$(PIP) --editable '.[dev]'
	touch $@

demo: .venv/core
	$(BIN)/infolm train awd-lstm/demo --out $(DEMO) --resume
	$(BIN)/infolm evaluate $(DEMO) --split test --cache --baseline
	$(BIN)/infolm generate $(DEMO) --num 3 --tokens 40 --temperature 0.8 --no-unk
	@$(BIN)/infolm report $(DEMO) > /dev/null
	@echo
	@echo "The run is in $(DEMO), its report in $(DEMO)/report.html."

test: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2

fuzz: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 -m hypothesis --hypothesis-profile fuzz

faults: .venv/dev
	$(PIP) atheris
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 tests/faults
	$(BIN)/python tests/faults/fuzz.py all --minutes 10 --json results/fuzz.json

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
