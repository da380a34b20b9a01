# The environment and the two commands. Everything else is `dvc` itself: activate the environment and use it.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: repro test test-quick

repro: $(STAMP)  ## data, models, metrics and plots
	dvc repro

test: $(STAMP)  ## lint, and every test, the slow ones included: two at a time, then alone those that compare times
	ruff check . && ruff format --check .
	python -m pytest -m "not timed" --numprocesses 2 --dist loadfile --no-loadscope-reorder
	python -m pytest -m timed

test-quick: $(STAMP)  ## the tests that take seconds
	python -m pytest -m "not slow"

$(STAMP): requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@
