# Everything a fresh machine needs: git, Python 3.11 or later, pip and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DIST := build/dist
TOOLS := build/tools/bin
RESULTS := results
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check -c constraints.txt
# a part of the tests that needs no torch, of all layers: derivations, kernels, published numbers, files and commands
QUICK := tests/symbolic/test_saddle_point.py tests/faults/test_kernel_cache.py tests/published \
	tests/problem/test_declaration.py tests/shell/test_datasets.py tests/shell/test_commands.py
TRIED := import sys, pytest; code = pytest.main(sys.argv[1:]); import attnphase, derivations; \
	[sys.exit(f"{one} is not the wheel") for one in (attnphase.__file__, derivations.__file__) if "site-packages" not in one]; \
	sys.exit(code)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help phase-diagram test test-long reference coverage mutations lint docs linkcheck benchmark dist lowest release-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("attnphase needs Python 3.11 or later, but $(PYTHON) is %d.%d: run make with PYTHON=/path/to/python3.x." % sys.version_info[:2])'
	@echo "Installing attnphase and its dependencies into $(VENV) (a few minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP_INSTALL) --upgrade pip
	@$(BIN)/python $(PIP_INSTALL) -e '.[torch,distributed,explore]' --group dev
	@touch $@

build/tools/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -m venv build/tools
	@$(TOOLS)/python $(PIP_INSTALL) --upgrade pip
	@$(TOOLS)/python $(PIP_INSTALL) --group dist
	@touch $@

phase-diagram: $(STAMP) ## compute the phase diagram and draw it into results/
	$(BIN)/attnphase phase-diagram --output $(RESULTS) --force

test: $(STAMP) ## run the whole test suite, slow tests included
	$(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart=0

test-long: $(STAMP) ## run the tests that take an hour: many random problems, others every time
	$(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart=0 -m long --hypothesis-profile=long

reference: $(STAMP) ## compare 200 points of all kinds with those of the code before the redesign
	$(BIN)/python tests/reference/compare.py

coverage: $(STAMP) ## run the whole test suite, and list the lines of Python that it does not run
	$(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart=0 --cov --cov-report=term-missing:skip-covered

mutations: $(STAMP) ## see whether the tests notice forty wrong numbers, in about ten minutes of CPU time
	$(BIN)/python tests/mutations/run.py --jobs 2

lint: $(STAMP) ## check lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/pyright -p tests/typing
	cd tests/typing && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml everything.py
	$(BIN)/repo-review --show errskip

docs: $(STAMP) ## build the site into docs/_build/html
	$(BIN)/python $(PIP_INSTALL) -e '.[torch,explore]' --group docs
	$(BIN)/sphinx-build -j 2 -W --keep-going -q docs docs/_build/html

linkcheck: $(STAMP) ## follow the links of the site to other sites, which needs a network
	@$(BIN)/python docs/network.py
	$(BIN)/python $(PIP_INSTALL) -e '.[torch,explore]' --group docs
	$(BIN)/sphinx-build -b linkcheck -q -D nb_execution_mode=off -D plot_gallery=0 docs docs/_build/linkcheck

benchmark: $(STAMP) ## time everything and the published recipe; OPTIONS="--against FILE" shows changes
	$(BIN)/python -m benchmarks $(OPTIONS)

# The tests come from the sdist and the package from the wheel: beside the tests no package lies that they could import.
dist: build/tools/.installed ## build sdist and wheel into dist/, check them, and try the wheel in an empty environment
	rm -rf dist $(DIST)
	$(TOOLS)/python -m build
	$(TOOLS)/twine check --strict dist/*
	$(TOOLS)/check-wheel-contents --toplevel attnphase,derivations dist/*.whl
	$(TOOLS)/python -c 'from rattler_build import Stage0Recipe; print(*Stage0Recipe.from_file("recipe/recipe.yaml").render())'
	$(PYTHON) -m venv $(DIST)/venv
	$(DIST)/venv/bin/python $(PIP_INSTALL) --upgrade pip
	$(DIST)/venv/bin/python $(PIP_INSTALL) dist/*.whl --group test
	mkdir $(DIST)/tests
	tar -xzf dist/*.tar.gz -C $(DIST)/tests --strip-components=1
	rm -r $(DIST)/tests/attnphase $(DIST)/tests/derivations
	cd $(DIST)/tests && ../venv/bin/python -c '$(TRIED)' $(QUICK) -m "not slow and not long"

lowest: build/tools/.installed ## try the lowest versions that pyproject.toml allows, on Python 3.11 without torch
	rm -rf build/lowest
	$(TOOLS)/uv venv --quiet --python 3.11 build/lowest
	$(TOOLS)/uv pip install --quiet --python build/lowest --resolution lowest-direct -e '.[distributed,explore]' --group test
	build/lowest/bin/python -m pytest $(QUICK) -m "not slow and not long"

release-check: ## refuse a release of TAG whose version, date, authors or addresses are not in order
	@$(PYTHON) tools/release.py "$(TAG)"

clean: ## remove the environment, the results and every cache
	rm -rf $(VENV) $(RESULTS) build dist docs/_build docs/gallery_pages .pytest_cache .ruff_cache .hypothesis tests/typing/.mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
