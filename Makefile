# make install  .venv with the command and all that it needs to train, report and serve
# make demo   a first model in a few minutes, nothing to download but packages
# make quick  a choice of tests over most packages, in a minute and a half on two quiet cores
# make docs   the documentation site, in build/site; it opens without a server or a network
# make notebooks  examples/, a notebook for each tutorial, from the pages
# make recording  docs/terminal.svg, the film in the README: the commands are run
# make dist   wheel and source distribution in dist, checked
# make test   the whole test suite, with the same answer every time
# make fuzz   the tests of properties, with new random examples; failures are kept in tests/.found
# make faults all that is done to break infolm (hours, resumed; SCALE=0.01 for a hundredth): file
#             operations that fail, 1,000 kills, power cuts, fuzzing, threads, an hour's soak
# Each makes .venv with what it needs. PYTHON chooses the interpreter (3.11 or newer).

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEMO := runs/demo
SCALE ?= 1

.PHONY: install demo docs notebooks recording dist quick test fuzz faults check format clean

.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[report,serve]'
	touch $@

.venv/dev: .venv/core
	$(PIP) --editable '.[dev]'
	touch $@

.venv/docs: .venv/core
	$(PIP) --editable '.[docs]'
	touch $@

install: .venv/core

demo: .venv/core
	$(BIN)/infolm train awd-lstm/demo --out $(DEMO) --resume
	$(BIN)/infolm evaluate $(DEMO) --split test --cache --baseline
	$(BIN)/infolm generate $(DEMO) --num 3 --tokens 40 --temperature 0.8 --no-unk
	@$(BIN)/infolm report $(DEMO) > /dev/null
	@echo
	@echo "The run is in $(DEMO), its report in $(DEMO)/report.html."

docs: .venv/docs
	$(BIN)/python docs/site/notebooks.py --check
	$(BIN)/python docs/site/site_pages.py write build/docs
	$(BIN)/zensical build --strict --clean
	$(BIN)/python docs/site/site_pages.py check build/site
	@echo "Open build/site/index.html."

notebooks: .venv/core
	$(BIN)/python docs/site/notebooks.py

FILM := 'infolm train awd-lstm/demo --out runs/first' \
	'infolm score runs/first --text "Return the number of items in the list."' \
	'infolm generate runs/first --prompt "the function returns" --no-unk --tokens 30' \
	'infolm report runs/first'

recording: .venv/docs
	rm -rf build/film && mkdir -p build/film
	cd build/film && PATH="$(CURDIR)/$(BIN):$$PATH" $(CURDIR)/$(BIN)/python ../../docs/site/record.py ../../docs/terminal.svg $(FILM)

dist: .venv/core
	$(PIP) --editable '.[release]'
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/twine check --strict dist/*

QUICK := tests/test_layout.py tests/test_space.py tests/*/test_conformance.py \
	tests/data/test_stream.py tests/data/test_sentences.py tests/data/test_pairs.py \
	tests/data/test_masking.py tests/data/test_registry.py tests/data/test_store.py \
	tests/nn/test_softmax.py tests/nn/test_dropout.py tests/nn/test_stack.py \
	tests/information/test_discrete.py tests/information/test_bounds.py \
	tests/training/test_checkpoint.py tests/evaluation/test_measurement.py \
	tests/evaluation/test_bleu.py tests/generation/test_sampling.py tests/reports/test_history.py \
	tests/finetuning/test_metrics.py tests/finetuning/test_spans.py \
	tests/finetuning/test_inputs.py tests/studies/test_pool.py \
	tests/studies/reproduction/test_frontier.py tests/studies/tuning/test_claims.py \
	tests/recipes/test_brought_along.py tests/faults/test_metrics.py

# Tests write and flush thousands of files: into memory, where 4 GB of it are free for files.
SCRATCH := $(shell df --output=avail,target -BG /dev/shm 2> /dev/null | awk 'NR > 1 && $$1 + 0 >= 4 {print $$2}')
PYTEST := OMP_NUM_THREADS=1 $(and $(SCRATCH),TMPDIR=$(SCRATCH)) $(BIN)/pytest --numprocesses 2 --dist worksteal

quick: .venv/dev
	$(PYTEST) $(QUICK)

test: .venv/dev
	$(PYTEST)

fuzz: .venv/dev
	$(PYTEST) -m hypothesis --hypothesis-profile fuzz

faults: .venv/dev
	$(PIP) atheris
	INFOLM_TESTS=whole OMP_NUM_THREADS=1 $(BIN)/python tests/support/fault_programme.py --scale $(SCALE) --workers 2

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache
