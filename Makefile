# Every verb sets up .venv on its first call and never again until pyproject.toml or constraints.txt change.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# One thread per process: OpenMP threads of neighbouring processes spin against each other.
export OMP_NUM_THREADS := 1

BENCHMARKS := training_speed noise_overhead sweep_throughput analysis_speed analysis_sources suggest_speed report_speed
PROOFS := kills budgets ranks prepare_memory noise_coverage sweep_kills sweep_drivers sweep_price ray_cluster import_fuzz analysis_coverage_surface analysis_controls tune_kills tune_live tuner_coverage

.PHONY: tune test check bench prove docs clean

# Some minutes on two cores: LR and WD of a language model of 133K parameters. The limit is for machines that are busy.
tune: .venv/ready-train
	$(BIN)/isotune tune --max-hours 0.12 $(ARGS)

test: .venv/ready-test
	$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

check: .venv/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready-test
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit 1; done

prove: .venv/ready-test
	for name in $(PROOFS); do $(BIN)/python proofs/$$name.py || exit 1; done

# Warnings of mkdocs (a broken link, a missing anchor, a page that no menu names) are errors. The variable silences a
# notice of the theme about its successor.
docs: .venv/ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in site/: open site/index.html, or serve it with $(BIN)/python -m http.server --directory site"

clean:
	rm -rf site .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/ready-train: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train]'
	touch $@

.venv/ready-test: .venv/ready-train
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable '.[train,gpt2,huggingface,lightning,tensorboard,wandb,mlflow,optuna,ray,test,docs,dev]'
	touch $@

.venv/ready-docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@
