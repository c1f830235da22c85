# `make demo` and `make test` do everything; see README.md. Set PYTHON to choose an interpreter.
export PYTHON ?= python3
HVDC := .venv/bin/hvdc
OUT := build/demo
EXAMPLE := examples/moving_shapes/model
# qnn where Qualcomm's compiler can be used, else onnx: the decoder then has no binary for the phone.
QNN := .venv/bin/python -c "from exporters.qnn.available import why_not; print('onnx' if why_not() else 'qnn')"
CLIP := --frames 17 --height 128 --width 128
# Both engines where there is an OpenCL driver for the GPU's, else the NPU's alone.
ENGINES := ls /etc/OpenCL/vendors/*.icd >/dev/null 2>&1 && echo hetero || echo npu

.PHONY: demo test test-long lint format generate bench-compile bench-calibrate bench-decoder bench-deploy bench-hexagon bench-opencl bench-runtime bench-stream quality reproduce clean

demo: ## calibrate and compile the trained example model and its decoder, validate the artifact, make clips with it
	@tools/setup.sh run
	@mkdir -p $(OUT)
	$(HVDC) calibrate $(EXAMPLE)/transformer --prompts $(EXAMPLE)/prompts.safetensors --prompts-limit 8 $(CLIP) --force \
		-o $(OUT)/calibration.safetensors --save-latents $(OUT)/latents.safetensors
	$(HVDC) compile $(EXAMPLE)/transformer --calibration $(OUT)/calibration.safetensors $(CLIP) --force \
		--vae $(EXAMPLE)/vae --latents $(OUT)/latents.safetensors --decoder-backend $$($(QNN)) -o $(OUT)/moving_shapes.hvdc
	$(HVDC) validate --deep --against $(EXAMPLE)/transformer $$(test $$($(QNN)) = onnx || echo --emulate) $(OUT)/moving_shapes.hvdc
	$(HVDC) evaluate $(EXAMPLE)/transformer --artifact $(OUT)/moving_shapes.hvdc --prompts $(EXAMPLE)/prompts.safetensors \
		--prompts-limit 2 --seeds 7 --cut 6 $(CLIP)
	$(HVDC) inspect $(OUT)/moving_shapes.hvdc
	$(HVDC) run $(OUT)/moving_shapes.hvdc --prompts $(EXAMPLE)/prompts.safetensors --prompts-limit 2 --seeds 3 \
		--mode $$($(ENGINES)) --trace $(OUT)/trace.json --format gif --force -o $(OUT)/clips
	$(HVDC) plan memory $(OUT)/moving_shapes.hvdc
	$(HVDC) report $(OUT)/moving_shapes.hvdc --force -o $(OUT)/report.html
	@echo "clips: $(OUT)/clips/sheet.png, $(OUT)/clips/video-000000.gif; all about the artifact: $(OUT)/report.html"

test: ## everything but the benchmarks; a process for each core, one thread in each; bytecode is kept, as many start
	@tools/setup.sh dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n auto --dist worksteal

test-long: ## the same, with repetitions in full: minutes more
	@HVDC_TEST_LONG=1 $(MAKE) test

lint: ## ruff, mypy, clang-format, clang-tidy
	@tools/setup.sh dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/python tools/lint_c.py

format: ## Python, and C with its relatives
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
	.venv/bin/python tools/lint_c.py --fix

generate: ## C headers and JSON Schema from their one description
	.venv/bin/python -m hvdc.artifact.generate

bench-compile: ## full-size figures into docs/BENCHMARKS.md; needs 16 GB of disk
	@tools/setup.sh dev
	.venv/bin/python -m benchmarks.bench_compile

bench-calibrate: ## calibration at full size into docs/BENCHMARKS.md; needs a CUDA GPU
	@tools/setup.sh dev
	.venv/bin/python -m benchmarks.bench_calibrate

bench-decoder: ## the VAE decoder at full size into docs/BENCHMARKS.md; an hour on two cores, needs 16 GB of memory
	@tools/setup.sh dev
	.venv/bin/python -m benchmarks.bench_decoder

bench-deploy: ## a verified push of 1.3 GiB beside a plain adb push, on loopback, into docs/BENCHMARKS.md
	@tools/setup.sh dev
	.venv/bin/python -m benchmarks.bench_deploy

bench-hexagon: ## packets of the NPU's kernels and a roofline of a block into docs/BENCHMARKS.md; needs clang-22, lld-22, llvm-22
	@tools/setup.sh dev
	.venv/bin/python -m benchmarks.hexagon_cost

bench-opencl: ## the GPU executor through a real GPU's OpenCL driver, into docs/BENCHMARKS.md; needs CUDA
	@tools/setup.sh dev
	.venv/bin/python -m benchmarks.bench_opencl $(addprefix --example ,$(wildcard $(OUT)/moving_shapes.hvdc))

bench-runtime: ## both engines, streams and memory into docs/BENCHMARKS.md; ten minutes on two idle cores, after `make demo`
	@tools/setup.sh dev
	.venv/bin/python -m benchmarks.bench_runtime

bench-stream: ## simulated streams of 100,000 videos into docs/BENCHMARKS.md; a minute
	@tools/setup.sh dev
	.venv/bin/python -m benchmarks.bench_stream

quality: ## the tables and figures of docs/QUALITY.md
	@tools/setup.sh dev
	.venv/bin/python -m benchmarks.quality

reproduce: ## the paper's figures beside what hvdc plan computes: docs/REPRODUCTION.md and its pictures; seconds
	@tools/setup.sh dev
	.venv/bin/python -m examples.reproduction

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
