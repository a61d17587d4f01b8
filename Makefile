# Every command is one line over `uv run`; uv itself comes into .uv/ when the machine has none.
SHELL := /bin/sh
UV_VERSION := 0.13.8
UV := $(shell command -v uv || echo .uv/bin/uv)
RUN := $(UV) run --frozen
DEV := $(RUN) --group dev

# The locked Python, never a downloaded one; and a cache of our own where there is no usable home.
export UV_PYTHON_DOWNLOADS := never
export UV_NO_PROGRESS := 1
ifeq ($(shell test -w "$${HOME:-/nowhere}" && echo yes),)
export UV_CACHE_DIR := .uv/cache
endif

.PHONY: up test lint fix bench e2e docs
.DEFAULT_GOAL := up

up: $(UV)
	@$(RUN) python -m portal.embedded up

test: $(UV)
	@$(DEV) --group e2e pytest $(ARGS)

lint: $(UV)
	@$(DEV) sh .ci/lint

fix: $(UV)
	@$(DEV) sh .ci/lint --fix

bench: $(UV)
	@$(DEV) python -m tools.bench $(ARGS)

e2e: $(UV)
	@$(DEV) --group e2e pytest -m e2e --screenshots $(ARGS)

docs: $(UV)
	@$(DEV) pytest tests/docs $(ARGS)

# Not found on PATH: a private copy. pip alone is quicker, venv is there where pip is not.
.uv/bin/uv:
	@echo "Installing uv $(UV_VERSION) into .uv/"
	@python3 -c 'import sys; sys.exit("Berth needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@python3 -m pip install --quiet --disable-pip-version-check --no-warn-script-location --target .uv "uv==$(UV_VERSION)" 2>.uv.log \
	  || { python3 -m venv .uv && .uv/bin/pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"; } \
	  || { cat .uv.log; rm -rf .uv; exit 1; }
	@rm -f .uv.log
