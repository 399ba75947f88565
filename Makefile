# `make demo` and `make test` each work alone on a fresh machine with Python >= 3.11: they make .venv and fill it.

PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
# Bytecode is compiled when a module is first imported, of the few that are.
PIP := $(BIN)/python -m pip install --no-compile --disable-pip-version-check --progress-bar off \
	--constraint constraints.txt
# Shows the name of each package as pip comes to it, and ends with pip's exit status.
INSTALL = @{ $(PIP) --editable $(1); echo $$? > .venv/.status; } | while read -r line; do \
		case "$$line" in \
			"Collecting "*) name="$${line\#Collecting }"; printf '%s ' "$${name%%[!A-Za-z0-9_.-]*}";; \
			"Installing collected"*) printf '\nUnpacking them into .venv ...\n';; \
		esac; \
	done; exit "$$(cat .venv/.status)"
COMMA := ,
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo chat test soak mutants smoke release docs lint types format install install-dev clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name what; do \
		printf '  make %-12s %s\n' "$$name" "$$what"; done

demo: .venv/.light  ## generate code with the bundled model, show its drafts, and compare with plain decoding
	@$(BIN)/jaxspec demo

chat: .venv/.light  ## fetch a small chat model (SmolLM2-135M-Instruct) if it is not here, and talk with it
	@$(BIN)/jaxspec get smollm2
	@$(BIN)/jaxspec chat --target smollm2 --method eagle3,history=4+chain,length=3 --show-drafts

test: .venv/.dev  ## the tests, on WORKERS=2 processes
	@$(PYTEST)

soak: .venv/.dev  ## the tests, with the full product of methods; PART=2/8 for a part; resumes where it stopped
	@$(PYTEST) --soak --resume $(if $(PART),--part $(PART))

mutants: .venv/.dev  ## break the library in many ways, and report which faults the tests find; ONLY=names
	@$(BIN)/python -m tests.mutants.run $(if $(ONLY),--only $(ONLY))

smoke:  ## a short test of an installation: with another PYTHON, the LOWEST=1 or LATEST=1 versions, WITH=other packages
	@$(PYTHON) -m venv --clear .cache/smoke
	@$(if $(LATEST),true,$(if $(LOWEST),$(PYTHON) -m tests.smoke --lowest,cat constraints.txt)) > .cache/smoke/versions.txt
	@.cache/smoke/bin/python -m pip install --quiet --disable-pip-version-check --constraint .cache/smoke/versions.txt \
		--editable '.[quant,report,search]' $(WITH)
	@.cache/smoke/bin/python -m tests.smoke

release:  ## build sdist and wheel, test both in fresh environments, write dist/NOTES.md, and tag the commit
	@$(PYTHON) -m tests.release

docs: .venv/.docs  ## the documentation as a site, in build/site; fails on a dead link
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

lint: .venv/.dev  ## ruff: rules and formatting
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: .venv/.dev  ## pyright
	@$(BIN)/pyright

format: .venv/.dev  ## let ruff fix what it can
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

install: .venv/.light  ## .venv with everything but the test tools and PyTorch

install-dev: .venv/.dev  ## .venv with everything

clean:  ## remove .venv and all caches
	rm -rf .venv .cache .hypothesis .pytest_cache .ruff_cache build dist jax_specdec.egg-info

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("jaxspec needs Python 3.11 or newer, and $(PYTHON) is %d.%d; name another: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/.light: .venv/.made pyproject.toml constraints.txt
	@echo 'Installing jaxspec into .venv (the first time: some 240 MB to download) ...'
	$(call INSTALL,'.[gguf$(COMMA)quant$(COMMA)report$(COMMA)search]')
	@touch $@

.venv/.dev: .venv/.made pyproject.toml constraints.txt
	@echo 'Installing jaxspec, its test tools and PyTorch into .venv (the first time: 500 MB and more to download) ...'
	$(call INSTALL,'.[dev]')
	@touch $@

.venv/.docs: .venv/.made pyproject.toml constraints.txt
	$(call INSTALL,'.[docs]')
	@touch $@
