# The two commands anyone needs. Both install everything into .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Bytecode is written when a module is first imported: most of what is installed never is.
INSTALL := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable

.PHONY: demo test docs wheel-test faults clean

demo: .venv/installed
	$(BIN)/leakmeter audit examples/photos.yaml --out out/demo

test: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --ignore tests/faults

docs: .venv/installed-docs
	$(BIN)/sphinx-build -E -W --keep-going --quiet docs out/site
	@echo "site: $(CURDIR)/out/site/index.html"

# Builds the package, installs it into an empty environment and audits with it.
wheel-test: .venv/installed-dev
	.ci/wheel

# Kills, starves and corrupts sweeps, and feeds nonsense to everything that reads a file.
faults: .venv/installed-dev
	$(BIN)/pytest tests/faults

clean:
	rm -rf .venv out

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) .
	touch $@

.venv/installed-docs: .venv/installed
	$(INSTALL) '.[docs]'
	touch $@

.venv/installed-dev: .venv/installed
	$(INSTALL) '.[dev]'
	touch $@
