# Everything happens in a virtual environment of its own; nothing else is touched.
# PYTHON=python3.12 make test  uses another Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check clean

demo: $(VENV)/installed
	$(BIN)/traceq lint --fail-on error fixtures/attn_mask_fmha/trace.json.gz

test: $(VENV)/test-installed check
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

check: $(VENV)/test-installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/traceq check --no-cache fixtures

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

# torch is for the tests that read what the real profiler writes.
$(VENV)/test-installed: $(VENV)/installed requirements-test.txt
	$(BIN)/python -m pip install --quiet --requirement requirements-test.txt
	touch $@

clean:
	rm -rf $(VENV)
