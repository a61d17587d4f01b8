# Every command is one line over `uv run`; uv itself comes into .uv/ where the machine has none.
UV_VERSION := 0.13.8
UV := $(shell command -v uv >/dev/null && echo uv || echo .uv/bin/uv)
PRIVATE_UV := $(filter .uv/bin/uv,$(UV))
BROWSER := $(shell command -v chromium-headless-shell || command -v chromium || command -v chromium-browser || command -v google-chrome)
RUN := $(UV) run --frozen
DEV := $(RUN) --group dev

# The Python that is here, never a downloaded one; and a cache of our own where there is no usable home.
export UV_PYTHON_DOWNLOADS := never
ifeq ($(shell test -w "$${HOME:-/nowhere}" && echo yes),)
export UV_CACHE_DIR := .uv/cache
endif

# An environment that forbids byte code beside the sources (those of containers do) would have each of some hundred
# processes compile Django and SciPy anew: it is kept in a folder of our own instead.
ifdef PYTHONDONTWRITEBYTECODE
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/.uv/bytecode
endif

.PHONY: deep notebook package package-check sbom test-next up test coverage lint fix bench drill e2e docs mutants hostile
.DEFAULT_GOAL := up

up: $(PRIVATE_UV)
	@$(RUN) python -m portal.embedded up

# JupyterLab for the leases of `make up`, which otherwise installs it when somebody first opens a notebook.
notebook: $(PRIVATE_UV)
	@PATH="$(CURDIR)/.uv/bin:$$PATH" $(RUN) python -m portal.embedded.notebook

test: $(PRIVATE_UV)
	@$(DEV) $(if $(BROWSER),--group e2e) $(if $(ARGS),pytest $(ARGS),python -m tools.suite)

# What make test leaves out because it takes long and finds what is rare (tests/deep.py).
deep: $(PRIVATE_UV)
	@$(DEV) python -m tools.suite --deep

# How many branches of what decides, holds state and counts money the whole suite takes (docs/measurements.md). With ARGS
# it adds to what was measured before, so that folders can be run one by one. Compiled kernels show no lines: they run as
# Python.
MEASURED := scheduler/engine portal/quotas portal/leases portal/billing nodeagent/reconcile
coverage: $(PRIVATE_UV)
	@$(if $(ARGS),,$(DEV) coverage erase)
	@BERTH_KERNELS=python $(DEV) coverage run -m pytest -m "not e2e" $(or $(ARGS),-n auto --maxprocesses 4 --dist loadfile)
	@$(DEV) coverage combine --append --quiet
	@for part in $(MEASURED); do printf '%s ' $$part; $(DEV) coverage report --include="$$part/*" --format=total; done

lint: $(PRIVATE_UV)
	@$(DEV) .ci/lint

fix: $(PRIVATE_UV)
	@$(DEV) .ci/lint --fix

bench: $(PRIVATE_UV)
	@$(DEV) $(if $(BROWSER),--group e2e) python -m tools.bench $(ARGS)

drill: $(PRIVATE_UV)
	@$(DEV) python -m tools.drill $(ARGS)

e2e: $(PRIVATE_UV)
	@$(DEV) --group e2e pytest -m e2e $(ARGS)

# Checks that the docs say what the code does, then builds them into site/, where the portal serves them at /docs/.
# A page that no menu leads to, or a link that leads nowhere, fails it.
docs: $(PRIVATE_UV)
	@$(DEV) pytest tests/docs $(ARGS)
	@NO_MKDOCS_2_WARNING=1 $(RUN) --group docs mkdocs build --strict --quiet

# Builds wheels and source archives of portal and agent, and the agent's Debian package, into build/. The portal's wheel
# is made from the tree: the documentation is in it, which no source archive has.
package: $(PRIVATE_UV)
	@NO_MKDOCS_2_WARNING=1 $(RUN) --group docs mkdocs build --strict --quiet
	@$(UV) build --quiet --all-packages --sdist --out-dir build && $(UV) build --quiet --all-packages --wheel --out-dir build
	@$(RUN) python -m tools.debian build

# Builds the wheels of agent and portal, installs each into an empty environment and starts what is in it.
package-check: $(PRIVATE_UV)
	@UV=$(abspath $(shell command -v uv || echo .uv/bin/uv)) $(RUN) python -m tools.package_check

# The suite on the newest Django that the registry has, beside the lock. Django 6 needs Python 3.12 or newer: one that uv
# finds here, or PYTHON=/path/of/python3.13.
test-next: $(PRIVATE_UV)
	@$(RUN) --isolated --python '$(or $(PYTHON),>=3.12)' --group dev --with 'django>=6' pytest $(or $(ARGS),-m "not e2e" -n auto --maxprocesses 4 --dist loadfile)

# What the portal is made of, as CycloneDX.
sbom: $(PRIVATE_UV)
	@mkdir -p build && $(UV) export --frozen --quiet --no-default-groups --format cyclonedx1.5 --output-file build/sbom.cdx.json >/dev/null && echo build/sbom.cdx.json

# Takes each guard of tools/mutants/guards.toml away in a copy of the tree: a test has to notice.
mutants: $(PRIVATE_UV)
	@$(DEV) python -m tools.mutants $(ARGS)

# A hundred thousand hostile inputs, or BERTH_HOSTILE_INPUTS of them by BERTH_HOSTILE_SEED; `make test` throws a few. Then
# every odd value in every field, of which `make test` tries a fifth, and a thousand random installations instead of 40.
hostile: $(PRIVATE_UV)
	@BERTH_HOSTILE_INPUTS=$${BERTH_HOSTILE_INPUTS:-100000} $(DEV) --group hostile pytest $(or $(ARGS),tests/hostile tests/api/test_nonsense.py tests/api/test_bad_input.py tests/web/test_nonsense.py tests/engine/test_no_ping_pong.py)

# pip alone is the quicker way, venv brings its own pip where there is none.
.uv/bin/uv:
	@echo "Installing uv $(UV_VERSION) into .uv/"
	@python3 -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Berth needs Python 3.11 or newer; python3 is " + sys.version.split()[0])'
	@python3 -m pip install -qq --disable-pip-version-check --target .uv uv==$(UV_VERSION) 2>.uv.log || { python3 -m venv .uv && .uv/bin/python -m pip install -qq --disable-pip-version-check uv==$(UV_VERSION); } || { cat .uv.log; exit 1; }
	@rm -f .uv.log
