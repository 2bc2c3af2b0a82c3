PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

demo: $(VENV)/ready
	$(BIN)/jaxsplice demo

test: $(VENV)/ready
	$(BIN)/python -m pytest -n auto --maxprocesses 8

# TPU ahead-of-time compiles, long fuzzing; needs no TPU, but installs its compiler
slow: $(VENV)/ready
	$(PIP) -e '.[test,tpu]'
	$(BIN)/python -m pytest -m slow

ifneq ($(shell command -v uv),)
MAKE_VENV = uv venv --quiet --clear --python $(PYTHON) $(VENV)
PIP       = uv pip install --quiet --python $(BIN)/python
else
MAKE_VENV = $(PYTHON) -m venv --clear $(VENV)
PIP       = $(BIN)/python -m pip install --quiet
endif

$(VENV)/ready: pyproject.toml
	$(MAKE_VENV)
	$(PIP) -e '.[test]'
	@touch $@

.PHONY: demo test slow
