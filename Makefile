# Two commands are enough: `make demo` and `make test`. Works with GNU make 3.81 (macOS).
SHELL := /bin/sh

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	if command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo $$p; break; fi; done)
NEEDED_GB := 8
DEMO_HOME ?= crsbench_home
PORT ?= 3000

.PHONY: .venv demo test slow lint lock docs ui clean

.venv: .venv/.stamp

.venv/.stamp: pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed; found: `python3 --version 2>&1`. Install it, or call: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; fi
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "The venv module of $(PYTHON) is missing. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@$(PYTHON) -c 'import shutil, sys; free = shutil.disk_usage(".").free / 1e9; sys.exit(0 if free >= $(NEEDED_GB) else f"{free:.1f} GB of disk are free here; $(NEEDED_GB) GB are needed. Free space, then call again.")'
	@echo "Installing crsbench into .venv with $(PYTHON); the first time takes a few minutes (torch is large)."
	@$(PYTHON) -m venv .venv
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,encoders,demo,report]'
	@touch .venv/.stamp

demo: .venv/.stamp   ## the demo panel, from cards to a leaderboard
	@.venv/bin/crsbench demo --home $(DEMO_HOME)

test: .venv/.stamp   ## the default tests, under 10 minutes on two cores
	@.venv/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile

slow: .venv/.stamp   ## the slow lane
	@.venv/bin/python -m pytest -m slow --timeout 1800

lint: .venv/.stamp   ## style, types, import contracts, dependencies
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo
	@.venv/bin/deptry .

lock: .venv/.stamp   ## constraints.txt, over all extras and platforms
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header --all-extras \
		--no-emit-index-url --no-emit-find-links pyproject.toml -o constraints.txt

docs: .venv/.stamp   ## docs/warehouse.md from the table shapes
	@.venv/bin/python -m crsbench_assets.operations.generated_docs

ui: .venv/.stamp   ## the Dagster UI of the demo home
	@.venv/bin/crsbench ui --home $(DEMO_HOME) --port $(PORT)

clean:   ## the virtual environment, not your home
	@rm -rf .venv
