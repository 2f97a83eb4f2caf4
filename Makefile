# Everything needs only python3 (with venv and pip); the rest is installed into .venv from the pins in constraints.txt.

PYTHON ?= python3
# Processes that `make test` runs tests in.
JOBS ?= 2
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Tests that compile nothing and start few processes: descriptions, serializers, statistics, the public API.
CORE := $(filter-out %/test_in_use.py %/test_off_the_grid.py, $(wildcard tests/network/test_*.py)) \
  $(addprefix tests/brain/test_, builder.py config.py files.py registry.py spec.py) \
  tests/mesh/test_codecs.py tests/mesh/test_topology.py tests/process/test_messages.py \
  tests/report/test_spike_statistics.py tests/test_optional.py tests/test_project.py tests/test_public_api.py \
  tests/test_timed_queue.py

.PHONY: help demo patterns robot check test test-root test-gpu lint dist-check docs docs-serve docs-links bench soak fuzz chaos install clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 10

demo: .venv/base  ## watch a brain learn on all cores, and get a report
	$(BIN)/neuraxis demo

patterns: .venv/base  ## see every communication pattern run between four processes
	$(BIN)/neuraxis patterns -n 4 --html patterns.html
	@echo "The same as a page to keep open: patterns.html"

robot: .venv/base  ## a robot of four regions: one is killed and comes back, a sensor is added
	$(BIN)/python examples/robot_brain/tour.py

check: lint  ## before each commit: style, types, layers and a fast core of tests
	$(BIN)/python -m pytest -q -n 2 -m "not alone" -k "not examples_of_docstrings" $(CORE)

test: .venv/dev  ## everything that must pass before a change lands
	$(MAKE) --jobs 2 --output-sync=target docs lint dist-check
	NEURAXIS_EXAMPLES=docs/_build/examples $(BIN)/python -m pytest -n $(JOBS) -m "not alone"
	$(BIN)/python -m pytest -m alone $$(grep -rlE 'mark\.alone' tests --include='test_*.py')

test-root: .venv/dev  ## as root: cut links, several hosts and full disks, in namespaces; SECONDS and SEED can be set
	NEURAXIS_NEED_NAMESPACES=1 $(BIN)/python -m pytest $$(grep -rlE 'namespaces import|"unshare"' tests --include='test_*.py')
	NEURAXIS_NEED_NAMESPACES=1 $(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),240) --seed $(or $(SEED),1)

test-gpu: .venv/cuda  ## the tests of CUDA, on a machine with an NVIDIA GPU
	$(BIN)/python -m pytest tests/gpu tests/engine/cuda
	$(BIN)/python -m pytest -m gpu tests/brain tests/simulation tests/mesh tests/training
	$(BIN)/python -m pytest tests/test_examples.py -k cuda

lint: .venv/dev  ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

dist-check: .venv/dev  ## build the sdist and the wheel, and use the wheel in a clean environment
	rm -rf dist .venv/dist-check
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build
	$(PYTHON) -m venv .venv/dist-check
	.venv/dist-check/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd dist && ../.venv/dist-check/bin/neuraxis --version
	cd dist && ../.venv/dist-check/bin/neuraxis patterns -n 2

docs: .venv/dev  ## build the documentation into docs/_build/html; every example in it runs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "the slowest first code blocks (docs/_build/first-blocks.txt):"; head -5 docs/_build/first-blocks.txt
	@echo "docs/_build/html/index.html"

docs-serve: docs  ## build the documentation and serve it on http://127.0.0.1:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory docs/_build/html 8000

docs-links: .venv/dev  ## check the links of the documentation to other sites
	$(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/links

bench: .venv/dev  ## measure the collectives beside gloo and Open MPI
	$(BIN)/neuraxis bench collectives --plot benchmark.png

soak: .venv/dev  ## ten minutes of nodes at 1 kHz, one killed every ten seconds; then the tests marked slow
	$(BIN)/python benchmarks/soak.py --minutes 10
	$(BIN)/python -m pytest --slow -m slow $$(grep -rlE 'mark\.slow' tests --include='test_*.py')

fuzz: .venv/dev  ## a million malformed inputs for everything that reads bytes from outside
	$(BIN)/python benchmarks/fuzz.py --cases 1000000

chaos: .venv/dev  ## half an hour of kills, stops, cuts, full disks and hostile frames; SECONDS and SEED can be set
	$(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),1800) --seed $(or $(SEED),1)

install: .venv/all  ## everything, every extra included

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/base: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

.venv/dev: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	@touch $@ .venv/base

.venv/cuda: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev,cuda]'
	@touch $@ .venv/dev .venv/base

.venv/all: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[all,dev]'
	@touch $@ .venv/dev .venv/base

clean:  ## remove the environment and what tools left
	rm -rf .venv build dist docs/_build docs/reference/generated docs/gallery/generated patterns.html neuraxis-demo.html benchmark.png .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
