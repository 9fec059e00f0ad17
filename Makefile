# The two commands of the README do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-slow test-flower test-frameworks chaos soak bench bench-ddp gpu-check results docs dist lint clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[flower,lab,dev,docs]'
	touch $(READY)

demo: $(READY)
	$(BIN)/dagc compare mlp@digits --methods dagc,thrifty,none --local-steps 10 --rounds 60 --seeds 3 --output runs/demo
	@echo
	@echo "The command dagc is in .venv: run .venv/bin/dagc --help, or put it on your path with  . .venv/bin/activate"

test: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# Real Flower processes on this computer: Ray, and a SuperLink with three SuperNodes.
test-flower: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt 'flwr[simulation]'
	$(BIN)/python -m pytest -m slow tests/flower/test_processes.py

# accelerate, Trainer and Lightning: every example of examples/frameworks/ on two ranks.
test-frameworks: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[frameworks]'
	$(BIN)/python -m pytest -m slow tests/ddp/test_frameworks.py

# Faults of every kind, from a seed: make chaos SEED=1 MINUTES=30
SEED ?= 0
MINUTES ?= 15
chaos: $(READY)
	$(BIN)/python -m tests.chaos --seed $(SEED) --minutes $(MINUTES)

# The server's half with 1,000 clients for 10,000 rounds, 5 % of which fail.
soak: $(READY)
	$(BIN)/python -m benchmarks.soak

bench: $(READY)
	$(BIN)/python -m benchmarks

# Needs root and Debian's iproute2: four hosts in network namespaces, 10 Mb/s each.
bench-ddp: $(READY)
	$(BIN)/python -m benchmarks.ddp
	$(BIN)/python -m benchmarks.internet

# On a computer with a GPU: correctness, transfers and speed on the device, in ten minutes.
gpu-check: $(READY)
	$(BIN)/python -m benchmarks.gpu_check

# The site, in site/: opens from the disk, fetches nothing. Every warning is an error.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "site/index.html"

# The tables of README.md and docs/ again, from the records in results/.
results: $(READY)
	$(BIN)/python -m research.tables
	$(BIN)/python -m tools.settings

dist: $(READY)
	$(BIN)/python -c "from setuptools import build_meta as b; print(b.build_sdist('dist'), b.build_wheel('dist'))"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python tools/prose.py

clean:
	rm -rf .venv build dist *.egg-info src/*.egg-info
