# `make demo` and `make test` do everything; see README.md. Set PYTHON to choose an interpreter.
export PYTHON ?= python3
HVDC := .venv/bin/hvdc
OUT := build/demo

.PHONY: demo test lint format generate bench-compile bench-calibrate quality clean

demo: ## compile the small example checkpoint, validate it, show what was made
	@tools/setup.sh run
	@mkdir -p $(OUT)
	$(HVDC) synth checkpoint --preset tiny --force -o $(OUT)/tiny.safetensors
	$(HVDC) compile $(OUT)/tiny.safetensors --frames 17 --height 64 --width 64 --set text_tokens=16 --force -o $(OUT)/tiny.hvdc
	$(HVDC) validate --deep --against $(OUT)/tiny.safetensors $(OUT)/tiny.hvdc
	$(HVDC) inspect $(OUT)/tiny.hvdc

test: ## everything but the full-size benchmark
	@tools/setup.sh dev
	.venv/bin/python -m pytest

lint: ## ruff, mypy
	@tools/setup.sh dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format:
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

generate: ## C headers and JSON Schema from their one description
	.venv/bin/python -m hvdc.artifact.generate

bench-compile: ## full-size figures into docs/BENCHMARKS.md; needs 16 GB of disk
	@tools/setup.sh dev
	.venv/bin/python -m benchmarks.bench_compile

bench-calibrate: ## calibration at full size into docs/BENCHMARKS.md; needs a CUDA GPU
	@tools/setup.sh dev
	.venv/bin/python -m benchmarks.bench_calibrate

quality: ## the tables and figures of docs/QUALITY.md
	@tools/setup.sh dev
	.venv/bin/python -m benchmarks.quality

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
