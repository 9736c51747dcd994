# Everything a fresh machine needs: git, Python 3.11+, pip and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RESULTS := results

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help phase-diagram test test-long mutations lint docs linkcheck benchmark clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.exit("attnphase needs Python 3.11 to 3.13, but $(PYTHON) is %d.%d: run make with PYTHON=/path/to/python3.x." % sys.version_info[:2])'
	@echo "Installing attnphase and its dependencies into $(VENV) (a few minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,torch,distributed,explore]' -c constraints.txt
	@touch $@

phase-diagram: $(STAMP) ## compute the phase diagram and draw it into results/
	$(BIN)/attnphase phase-diagram --output $(RESULTS) --force

test: $(STAMP) ## run the whole test suite, slow tests included
	$(BIN)/python -m pytest -n 2 --max-worker-restart=0

test-long: $(STAMP) ## run the tests that take an hour: many random problems, others every time
	$(BIN)/python -m pytest -n 2 --max-worker-restart=0 -m long --hypothesis-profile=long

mutations: $(STAMP) ## see whether the tests notice small wrong changes, in about ten minutes
	$(BIN)/python tests/mutations/run.py --jobs 2

lint: $(STAMP) ## check lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: $(STAMP) ## build the site into docs/_build/html
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[torch,explore,docs]' -c constraints.txt
	$(BIN)/sphinx-build -j 2 -W --keep-going -q docs docs/_build/html

linkcheck: $(STAMP) ## follow the links of the site to other sites, which needs a network
	@$(BIN)/python docs/network.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[torch,explore,docs]' -c constraints.txt
	$(BIN)/sphinx-build -b linkcheck -q -D nb_execution_mode=off -D plot_gallery=0 docs docs/_build/linkcheck

benchmark: $(STAMP) ## time everything and the published recipe; OPTIONS="--against FILE" shows changes
	$(BIN)/python -m benchmarks $(OPTIONS)

clean: ## remove the environment, the results and every cache
	rm -rf $(VENV) $(RESULTS) build dist docs/_build docs/gallery_pages .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
