# make report   sets up .venv and runs the main job; ARGS="--refit ..." are handed on
# make test     the same set-up with the development tools, then every check
# make calibration   the full-size checks whose strength is their number; make test has a short version of each
# make docs     the same with Sphinx: the documentation into site/, a warning being an error
#
# A second run installs nothing: the stamps below are newer than pyproject.toml and constraints.txt.
# They carry the checkout's place, so that a moved checkout is linked anew; an install that was broken
# off leaves .venv/.installing behind and starts over. Python: found below, or make PYTHON=/path/to/python.

VENV := .venv
BIN := $(VENV)/bin
HERE := $(shell pwd | cksum | cut -d ' ' -f 1)
RUN_READY := $(VENV)/.ready-$(HERE)-run
DEV_READY := $(VENV)/.ready-$(HERE)-dev
DOCS_READY := $(VENV)/.ready-$(HERE)-docs
WITH_DOCS := .[dev,docs]

NEEDED := import ensurepip, sys; sys.version_info >= (3, 12) or sys.exit(1); print(sys.executable)
PYTHON = $(shell for python in python3 python3.12 python3.13 python3.14 \
	$${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.1[2-9].*/bin/python3; do \
	"$$python" -c '$(NEEDED)' 2>/dev/null && break; done)

# $(call set_up,WHAT): WHAT (the checkout, with or without its extra) and its pinned dependencies into .venv
define set_up
	$(eval FOUND := $(PYTHON))
	$(if $(FOUND),,$(error rooffloor needs Python 3.12 or newer with venv, and none was found: install one or say make PYTHON=/path/to/python))
	@set -eu; \
	if [ -e $(VENV)/.installing ] || ! $(BIN)/python -c '$(NEEDED)' >/dev/null 2>&1; then \
		rm -rf $(VENV); \
		mkdir $(VENV); \
		touch $(VENV)/.installing; \
		"$(FOUND)" -m venv $(VENV); \
	fi; \
	echo "Installing $(1) and its pinned dependencies into $(VENV) (a minute or two, once)"; \
	touch $(VENV)/.installing; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '$(1)'; \
	rm $(VENV)/.installing
endef

.PHONY: report test calibration docs
.NOTPARALLEL:

report: $(RUN_READY)
	@$(BIN)/rooffloor report $(ARGS)

test: $(DEV_READY)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy -p rooffloor
	$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

calibration: $(DEV_READY)
	$(BIN)/python -m pytest -m calibration -n auto --dist loadfile $(ARGS)

docs: $(DOCS_READY)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --doctree-dir site/.doctrees docs site $(ARGS)

$(RUN_READY): $(BIN)/python pyproject.toml constraints.txt
	$(call set_up,.)
	@touch $@

$(DEV_READY): $(BIN)/python pyproject.toml constraints.txt
	$(call set_up,.[dev])
	@touch $(RUN_READY) $@

$(DOCS_READY): $(BIN)/python pyproject.toml constraints.txt
	$(call set_up,$(WITH_DOCS))
	@touch $(RUN_READY) $(DEV_READY) $@

# Made by set_up. Named here so that an interpreter that has gone (a dead link) sets it up again.
$(BIN)/python: ;
