# ofpeak: `make help` lists what there is.
#
# Knobs of bench count only on make's own command line: make also reads the environment, and an OUT, DEVICE or PROFILE
# that something else exported there must not choose what is measured, with what, or where it goes.

given = $(if $(filter command line,$(origin $(1))),$($(1)))

VENV    := .venv
BASE    := $(or $(call given,BASE_PYTHON),python3)
READY   := $(VENV)/.ready
OWN     := $(call given,PYTHON)
PY      := $(or $(OWN),$(VENV)/bin/python)
SET_UP  := $(if $(OWN),,$(READY))

# One variable of make per option of `ofpeak run`.
option   = $(if $(call given,$(1)),--$(2) '$($(1))')
OPTIONS := $(call option,PROFILE,profile) $(call option,MINUTES,minutes) $(call option,ONLY,only) \
  $(call option,RUNS,runs) $(call option,OUT,out) $(call option,RESUME,resume) $(call option,GPUS,gpus) $(if $(filter 1,$(call given,CONCURRENT)),--concurrent) \
  $(call option,DECLARE,declare) $(call option,INJECT,inject) $(call option,DEVICE,device)

.DEFAULT_GOAL := help
.PHONY: help bench compare gate report test test-old-triton check fmt speed gate-calibration schema lock torture clean

# What compare and report look at unless told: the committed runs, the peers' recordings on the same model, and
# published figures. Only cases with equal keys are compared, and the protocol is part of a key.
published = $(patsubst %,results/published/nvidia-%.json,a100-sxm4-80gb h100-80gb-hbm3 h200 b200 gb200)
OTHERS  := $(published) $(wildcard results/imported/*.json)
SETS    ?= $(wildcard results/baselines/nvidia-h200/*) $(OTHERS)
PAGE    ?= report.html
REFERENCE ?= $(if $(filter file,$(origin SETS)),published NVIDIA H100 80GB HBM3)

help: ## list the targets and the knobs of bench
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "make bench knobs, e.g. make bench PROFILE=quick ONLY='gemm*' RUNS=5"
	@echo "  PROFILE=smoke|quick|standard|full   how much (default standard; a CPU runs smoke sizes)"
	@echo "  PROFILE=soak MINUTES=8              a GEMM and a copy at full load, half of the minutes each"
	@echo "  ONLY='GLOB ...'     families or keys            RUNS=N      fresh processes, one run file each"
	@echo "  OUT=FOLDER          the set to add to           RESUME=SET  measure what the set's last run did not reach"
	@echo "  GPUS=0|all          which cards, one by one     CONCURRENT=1  all at once, under keys of their own"
	@echo "  DEVICE=auto|cpu     where                       DECLARE=clocks=locked:MHZ  a regime that you have set"
	@echo "  INJECT='gemm=3%'    a slowdown on purpose, to try the gate: marked as no real run"
	@echo "  PYTHON=INTERPRETER  use that environment as it is: nothing is installed"

bench: $(SET_UP) ## measure this machine, print the table, say where the run file is
	@$(PY) -m harness run $(OPTIONS)

compare: $(SET_UP) ## put sets side by side: SETS='FOLDER FILE ...' REFERENCE=LABEL
	@$(PY) -m harness compare $(SETS) $(if $(REFERENCE),--reference '$(REFERENCE)')

gate: $(SET_UP) ## may a driver go out? BASELINE='SET ...' CANDIDATE='SET ...' GATE='further options'
	@$(PY) -m harness gate --baseline $(BASELINE) --candidate $(CANDIDATE) $(GATE)

report: $(SET_UP) ## write a page to look at: SETS='FOLDER FILE ...' PAGE=report.html
	@$(PY) -m harness report $(SETS) -o $(PAGE) $(if $(REFERENCE),--reference '$(REFERENCE)')

test: $(READY) ## every test; needs no GPU
	$(VENV)/bin/python -m pytest

# What GPU nodes have today, in a folder of its own that goes before the environment.
TRITON_36 = build/triton-3.6

test-old-triton: $(READY) ## the kernels' tests with triton 3.6, interpreted and compiled; needs no GPU
	@test -d $(TRITON_36)/triton || $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --target $(TRITON_36) triton==3.6.0
	PYTHONPATH=$(TRITON_36) $(VENV)/bin/python -m pytest tests/kernels

check: $(READY) ## what CI checks: formatting, lint, types, floors; changes nothing
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

fmt: $(READY) ## format and fix
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

speed: $(READY) ## how long comparing, drawing and gating take; fails above the limits it prints
	$(VENV)/bin/python tests/speed/speed_compare.py
	$(VENV)/bin/python tests/speed/speed_page.py
	$(VENV)/bin/python tests/speed/speed_gate.py

gate-calibration: $(READY) ## simulate how often the gate is right; writes docs/gate-calibration.md
	$(VENV)/bin/python -m tests.calibration.calibrate

schema: $(READY) ## write harness/run.schema.json anew from the data model
	$(VENV)/bin/python -c "from harness import store; print(store.schema_text(), end='')" > harness/run.schema.json

# What comes with a build of torch is left to that build.
torchs = torch cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc \
  nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse \
  nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx

lock: ## write requirements.lock anew from pyproject.toml; needs uv, keeps what is locked unless UPGRADE=PACKAGE
	uv pip compile pyproject.toml --extra dev --constraint constraints.txt --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command 'make lock' --quiet \
	  $(addprefix --no-emit-package ,$(torchs)) $(if $(call given,UPGRADE),--upgrade-package '$(UPGRADE)') \
	  --output-file requirements.lock

torture: $(READY) ## what a run survives, as a table: kills, cuts, hostile files, faults (20 minutes); FORM=--short
	$(VENV)/bin/python -m tests.torture $(call given,FORM)

clean: ## remove the environment and caches; results stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache build dist *.egg-info

# The lock first, by hash; then torch, which it cannot hold, and the project itself, built with what the lock installed.
$(READY): pyproject.toml constraints.txt requirements.lock harness/preflight.py
	@$(BASE) harness/preflight.py
	@test -x $(VENV)/bin/python || $(BASE) -m venv $(VENV)
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --no-build-isolation --editable '.[dev]'
	@touch $@
