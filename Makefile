# Every verb sets up .venv on its first call and never again until pyproject.toml or constraints.txt change.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# One thread per process: OpenMP threads of neighbouring processes spin against each other.
export OMP_NUM_THREADS := 1
# Digits as on processors without AVX-512: what rivals did is kept, and is found again where the table's smooth surface
# has the same digits.
RACE := OPENBLAS_CORETYPE=Haswell NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR" $(BIN)/python benchmarks/tuners/race.py --processes 2

BENCHMARKS := training_speed noise_overhead sweep_throughput analysis_speed analysis_sources suggest_speed report_speed
PROOFS := kills budgets ranks prepare_memory noise_coverage sweep_kills sweep_drivers sweep_price ray_cluster import_fuzz analysis_coverage_surface analysis_controls tune_kills tune_live tuner_coverage tuner_tables

# Fast tuners with all seeds, slow ones (and ours without its parts) with fewer.
RACERS := isotune,oracle,grid,random,sobol,sobol-quadratic,lr-only,lr-then-wd,tpe,tpe-elr,cma-es,tpe-hyperband,tpe-hyperband-decayed,asha,asha-decayed,asha-decayed-unpaused,asha-syne-tune
BOHB := bohb:60,bohb-decayed:60
SLOW_RACERS := gp:30,gp-elr:30,bohb-syne-tune:30
SEED_RACERS := isotune,oracle:10,grid,sobol-quadratic,lr-only,lr-then-wd,tpe,tpe-elr,cma-es,asha,asha-decayed,tpe-hyperband,grid-by-seed,lr-only-by-seed,lr-then-wd-by-seed,sobol-quadratic-by-seed,halving-by-seed
SHUFFLED := shuffled-wd,shuffled-wd-2,shuffled-wd-3,shuffled-wd-4,shuffled-wd-5,shuffled-wd-6,shuffled-lr,shuffled-lr-2,shuffled-lr-3,shuffled-lr-4,shuffled-lr-5,shuffled-lr-6
PARTS := isotune-without-readings:30,isotune-without-invariance:30,isotune-without-rungs:30,isotune-without-prefixes:30,isotune-one-seed:30

.PHONY: tune test check bench race prove docs clean

# Some four minutes on two cores that are quiet: LR and WD of a language model of 133K parameters. The hours are for machines that are busy.
tune: .venv/ready-train
	$(BIN)/isotune tune --tolerance 0.05 --max-tokens 17.5M --max-hours 0.125 $(ARGS)

test: .venv/ready-test
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

check: .venv/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready-test
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit 1; done

# An hour or two of two cores, and many hours with ARGS=--afresh, which runs isotune's rivals again, too; kill and repeat it
# as you like. A tuner that changed since the last call: ARGS="--again isotune".
race: .venv/ready-race
	$(RACE) --table german48 --seeds 200 --tuners $(RACERS),$(PARTS),$(BOHB),$(SLOW_RACERS) $(ARGS)
	$(RACE) --table german48 --scenario 16-seeds --seeds 200 --tuners $(SEED_RACERS) --add $(ARGS)
	$(RACE) --table german48 --scenario lower-lrs,upper-lrs --seeds 100 --tuners $(RACERS) --add $(ARGS)
	$(RACE) --table small32 --family "batch 4" --seeds 200 --tuners $(RACERS),$(PARTS),$(BOHB),$(SLOW_RACERS) --add $(ARGS)
	$(RACE) --table small32 --family "batch 64" --seeds 200 --tuners $(RACERS),$(PARTS),$(BOHB) --add $(ARGS)
	$(RACE) --table nano --family "batch 4,batch 64" --seeds 20 --tuners $(RACERS) --add $(ARGS)
	$(RACE) --table small32 --family "batch 4,batch 64" --scenario 16-seeds --seeds 200 --tuners $(SEED_RACERS) --add $(ARGS)
	$(RACE) --table nano,made --family "batch 4" --budget 1376256,2752512 --scenario $(SHUFFLED),made-round,made-between --seeds 25 --tuners isotune,sobol-quadratic,random --add $(ARGS)
	$(BIN)/python benchmarks/tuners/head_to_head.py

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

.venv/ready-race: .venv/ready-test
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps syne-tune
	touch $@

.venv/ready-docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@
