PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

demo: $(VENV)/ready
	$(BIN)/jaxsplice demo

test: $(VENV)/ready
	$(BIN)/python -m pytest

$(VENV)/ready: pyproject.toml
	@if command -v uv >/dev/null; then \
	  uv venv --quiet --clear --python $(PYTHON) $(VENV) && uv pip install --quiet --python $(BIN)/python -e '.[test]'; \
	else \
	  $(PYTHON) -m venv --clear $(VENV) && $(BIN)/python -m pip install --quiet -e '.[test]'; \
	fi
	@touch $@

.PHONY: demo test
