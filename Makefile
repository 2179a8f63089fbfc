# Everything happens in a virtual environment of its own; nothing else is touched.
# PYTHON=python3.12 make test  uses another Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A process for each core: more threads of Polars beside them only take turns.
PYTEST := POLARS_MAX_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --no-loadscope-reorder

# What is spelled right: all that people read, code and tests included.
TEXTS := *.md docs rules collect traceq benchmarks fixtures tests action.yml mkdocs.yml

# Tests start many processes: let the first of them compile what all import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick slow check tests docs fuzz soak goldens clean

demo: $(VENV)/installed
	$(BIN)/traceq lint --fail-on error fixtures/attn_mask_fmha/trace.json.gz

# All that must pass, but for what `make slow` runs; what is not pytest runs beside it.
test: $(VENV)/test-installed
	$(MAKE) --jobs 2 check tests

# What to run after each change: no recordings, no processes, no torch.
quick: $(VENV)/test-installed
	$(PYTEST) -m "not real and not slow and not collect"

# What takes long by its nature: programs under torch, browsers, fuzzing, every recording,
# and the pages.
slow: $(VENV)/test-installed docs
	$(PYTEST) -m slow --durations 25

check: $(VENV)/test-installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell $(TEXTS)
	POLARS_MAX_THREADS=1 $(BIN)/traceq check --no-run --no-cache fixtures

tests: $(VENV)/test-installed
	$(PYTEST) -m "not slow" --durations 25

# The pages that one can browse, in build/site; a dead link fails.
docs: $(VENV)/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Mutated inputs through the commands, for an hour or more; not a part of test.
# FUZZ="--count 300 --seed 2" make fuzz  runs others.
fuzz: $(VENV)/test-installed
	POLARS_MAX_THREADS=1 $(BIN)/python benchmarks/fuzz.py $(FUZZ)

# A thousand files in one process, in turn and on 20 threads: nothing is left behind.
soak: $(VENV)/test-installed
	POLARS_MAX_THREADS=1 $(BIN)/python benchmarks/soak.py $(SOAK)
	POLARS_MAX_THREADS=1 $(BIN)/python benchmarks/soak.py --threads 20 $(SOAK)

# Writes again what someone has to read: golden files, the README's blocks and what is
# expected of fixtures. Refused where CI is set.
goldens: $(VENV)/test-installed
	$(BIN)/traceq check --update --no-cache fixtures
	UPDATE_GOLDEN=1 $(BIN)/python -m pytest -m golden

$(VENV)/installed: pyproject.toml hatch_build.py $(wildcard traceq/native/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

# torch is for the tests that read what the real profiler writes.
$(VENV)/test-installed: $(VENV)/installed requirements-test.txt
	$(BIN)/python -m pip install --quiet --requirement requirements-test.txt
	touch $@

$(VENV)/docs-installed: $(VENV)/installed requirements-docs.txt
	$(BIN)/python -m pip install --quiet --requirement requirements-docs.txt
	touch $@

clean:
	rm -rf $(VENV)
