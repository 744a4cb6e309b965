# `make` or `make help` lists the targets.

# The Python that the virtual environment is made with: 3.10 to 3.13.
PYTHON ?= python3
# Where the virtual environment lies.
VENV ?= .venv
# Passed on to the command of `run`, `test`, `fuzz` and the benches.
ARGS ?=
# Passed on to every `pip install`.
PIP_ARGS ?=

# For `tune-a100` and its siblings: all but the measuring (1), or not (0, or empty).
DRY_RUN ?=
# For `gpu-bundle`: the GPU that it is for.
GPU ?= nvidia-h200

# How many processes the tests are shared out to.
TEST_PROCESSES ?= 2

BIN := $(VENV)/bin
TUNE_GPU = $(BIN)/moonpoly tune --gpu nvidia-$(@:tune-%=%) $(if $(filter-out 0,$(DRY_RUN)),--dry-run) $(ARGS)
CORES = nproc 2>/dev/null || getconf _NPROCESSORS_ONLN

.DEFAULT_GOAL := help
.PHONY: help run run-ocr test test-emulator lint fuzz tune-cpu tune-a100 tune-h100 tune-h200 \
	tune-rtx3090 tune-rtx4090 gpu-logs bench-gemm bench-conv bench-models bench-tables bench-planner \
	bench-instructions gpu-bundle notebooks clean need-compiler
# Every stamp is made by one pattern rule: keep it.
.SECONDARY:

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV) ARGS='...' PIP_ARGS='...'"

# Without TVM_NUM_THREADS, TVM uses half of the cores and counts them anew at each parallel call.
run: need-compiler $(VENV)/.installed-run ## Compile a sentence-embedding model, run it at many sizes
	TVM_NUM_THREADS=$${TVM_NUM_THREADS:-$$($(CORES))} $(BIN)/python -m bench.minilm $(ARGS)

run-ocr: need-compiler $(VENV)/.installed-run ## Two networks that read text: lines of every width (ARGS="--quick")
	TVM_NUM_THREADS=$${TVM_NUM_THREADS:-$$($(CORES))} $(BIN)/python -m bench.ocr $(ARGS)

test: lint ## Check style and types, then run the tests (ARGS for pytest)
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile $(ARGS)

test-emulator: need-compiler $(VENV)/.installed-test ## Every CUDA micro-kernel in the emulator (half an hour)
	$(BIN)/python -m pytest -m emulator --numprocesses $(TEST_PROCESSES) $(ARGS)

lint: need-compiler $(VENV)/.installed-test ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: need-compiler $(VENV)/.installed-test ## Random matmuls against numpy (ARGS="--cases 10000 --seed 1")
	$(BIN)/python -m bench.fuzz $(ARGS)

tune-cpu: need-compiler $(VENV)/.installed-tune ## Tune the micro-kernels for this CPU (ARGS="--quick", "--budget 10m")
	$(BIN)/moonpoly tune $(ARGS)

tune-a100: need-compiler $(VENV)/.installed-tune ## Micro-kernels for an A100; DRY_RUN=1: all but the measuring
	$(TUNE_GPU)

tune-h100: need-compiler $(VENV)/.installed-tune ## The same for an H100
	$(TUNE_GPU)

tune-h200: need-compiler $(VENV)/.installed-tune ## The same for an H200
	$(TUNE_GPU)

tune-rtx4090: need-compiler $(VENV)/.installed-tune ## The same for an RTX 4090
	$(TUNE_GPU)

tune-rtx3090: need-compiler $(VENV)/.installed-tune ## The same for an RTX 3090
	$(TUNE_GPU)

gpu-logs: need-compiler $(VENV)/.installed-tune ## Write the GPUs' logs that ship anew: computed, not measured (needs nvcc)
	for gpu in a100 h100 h200 rtx4090 rtx3090; do \
		$(BIN)/moonpoly tune --gpu nvidia-$$gpu --dry-run --write --output tuning_logs || exit 1; \
	done

bench-gemm: need-compiler $(VENV)/.installed-bench ## Matrix products against other libraries (ARGS="--quick")
	$(BIN)/python -m bench.gemm $(ARGS)

bench-conv: need-compiler $(VENV)/.installed-bench ## Convolutions against other libraries (ARGS="--quick")
	$(BIN)/python -m bench.conv $(ARGS)

bench-models: need-compiler $(VENV)/.installed-bench ## Whole networks against onnxruntime (ARGS="--quick")
	$(BIN)/python -m bench.models $(ARGS)

bench-tables: need-compiler $(VENV)/.installed-bench ## The README's tables and the pages of losses from bench/results
	$(BIN)/python -m bench.gemm.page bench/results/gemm-*-thread*.json
	$(BIN)/python -m bench.conv.page bench/results/conv-*-thread*.json
	$(BIN)/python -m bench.models.page bench/results/models-*-thread*.json

bench-planner: need-compiler $(VENV)/.installed-planner ## The choices against the best of all plans, 1 and 2 threads (ARGS="--quick")
	$(BIN)/python -m bench.planner $(ARGS)

bench-instructions: need-compiler $(VENV)/.installed-run ## Instructions before the first micro-kernel (needs valgrind)
	$(BIN)/python -m bench.instructions $(ARGS)

gpu-bundle: need-compiler $(VENV)/.installed-tune ## All that measures on a GPU elsewhere (GPU=nvidia-a100 ARGS="--python 3.12")
	$(BIN)/python -m bench.gpu --gpu $(GPU) $(ARGS)

notebooks: need-compiler $(VENV)/.installed-notebooks ## Execute bench/notebooks again (ARGS="NAME", MOONPOLY_RETUNE=1)
	$(BIN)/python -m bench.notebooks $(ARGS)

clean: ## Remove the virtual environment, build outputs and caches
	@if [ -f "$(VENV)/pyvenv.cfg" ]; then rm -rf "$(VENV)"; fi
	rm -rf build dist out *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f examples/run_cpp/run_cpp
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

need-compiler:
	@sh scripts/need_compiler.sh

$(VENV)/.created: | need-compiler
	@sh scripts/need_python.sh "$(PYTHON)"
	"$(PYTHON)" -m venv "$(VENV)"
	@touch "$@"

# One stamp an extra of setup.py: a changed setup.py installs again.
$(VENV)/.installed-%: setup.py pyproject.toml $(VENV)/.created
	$(BIN)/python -m pip install $(PIP_ARGS) --editable '.[$*]'
	@touch "$@"
