# Every target works on a fresh machine that has python3.11, gcc, g++ and make: what is missing is installed into .venv.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Interpreter for .venv; empty takes python3.11, python3.12 or python3, the first that is new enough.
PYTHON ?=
# More arguments for pytest, the demo and the benchmark: make test ARGS="-k replay".
ARGS ?=
FUZZ_SECONDS ?= 60
SOAK_MINUTES ?= 10
HOSTILE_SECONDS ?= 60
REPLICA_RATE ?= 500
# Seconds of each phase, and for which the server between the replicas is away.
REPLICA_PHASE_S ?= 60
REPLICA_GONE_S ?= 60
REPLICA_FIGURES := build/replica-check.jsonl
# Where vllm-check installs vLLM and keeps its logs; checkouts can share one.
VLLM_DIR ?= .vllm-check
# Tests wait for half of their time, so four of them keep two cores busy.
TESTS_AT_ONCE ?= $(shell expr 2 \* $$(nproc))

# Twice quiet: warnings of the build backend are for its authors, errors still show.
PIP := -m pip --disable-pip-version-check -qq --no-input
PROTOS := $(wildcard api/*/*.proto)
# Services that have a generated Python client.
CLIENTS := $(wildcard api/client/*.proto)
# Generated code refuses a protobuf older than the one that made it, so the oldest supported one makes it.
PROTO_TOOLS := grpcio-tools==1.66.2 mypy-protobuf==3.6.0
PROTO_VENV := build/proto
FUZZ := build/fuzz
CORE := events/*,indexer/*,scorers/*,configs/*
SHELLS_IN_CORE := events/subscriber.py,events/subscription.py,events/connected.py,events/bound.py,events/replay.py,events/sockets.py,events/tasks.py,events/receiver.py,events/inbox.py,events/inboxes.py,events/native_inbox.py,events/admission.py,events/turns.py

export PYTHON
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: replica-check replica-figures replicas slo curves ladders stages compatibility engines hostile test-programs docs schema sanitize tsan paper vllm-check help setup demo test lint types check slow fuzz soak cov bench format wheel proto constraints clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

NATIVE := setup.py $(wildcard $(foreach folder,events indexer scorers api/http2 api/extproc tokenization/encoding,$(folder)/native/*.cpp $(folder)/native/*.h))

$(INSTALLED): pyproject.toml constraints.txt scripts/venv.sh scripts/debian.sh $(NATIVE)
	@scripts/venv.sh $(VENV)
	@echo "kvatlas: installing into $(VENV), about a minute"
	@$(BIN)/python $(PIP) install -c constraints.txt --upgrade numpy pip setuptools
	@$(BIN)/python $(PIP) install -c constraints.txt --no-build-isolation -e '.[demo,otlp-http,plots,transformers,tune]' --group dev
	@touch $@

setup: $(INSTALLED) ## Make .venv with kvatlas and its tools (the other targets do it themselves)

demo: $(INSTALLED) ## Simulated servers, kvatlas and Envoy on this machine
	@$(BIN)/kvatlas demo $(ARGS)

test: $(INSTALLED) test-programs ## All tests
	$(BIN)/pytest -n $(TESTS_AT_ONCE) --dist loadfile $(ARGS)

test-programs: $(INSTALLED) ## Chromium, promtool, redis-server and libfaketime from Debian, for tests (make test does it itself)
	@scripts/test_programs.sh $(BIN)

docs: $(INSTALLED) ## The documentation as a site in build/site, without dead links or pages outside its navigation
	@$(BIN)/python scripts/docs_site.py

lint: $(INSTALLED) ## Style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(INSTALLED) ## mypy and pyright, both strict
	$(BIN)/mypy
	$(BIN)/pyright

check: lint types test ## What a commit must pass

slow: $(INSTALLED) ## All tests with 1000 examples a property
	HYPOTHESIS_PROFILE=ci $(BIN)/pytest --timeout=3600 $(ARGS)

fuzz: $(INSTALLED) ## Broken and odd events made by a coverage-guided fuzzer, for FUZZ_SECONDS
	@$(BIN)/python $(PIP) install -c constraints.txt --upgrade --target $(FUZZ)/lib --group fuzz
	PYTHONPATH=$(FUZZ)/lib:tests $(BIN)/python tests/fuzz/fuzz_wire.py $(FUZZ)/corpus \
		-max_total_time=$(FUZZ_SECONDS) -artifact_prefix=$(FUZZ)/ $(ARGS)

hostile: $(INSTALLED) ## Hostile bodies, events and frames against a running server, each for HOSTILE_SECONDS
	PYTHONPATH=tests $(BIN)/python -m hostile.run --seconds $(HOSTILE_SECONDS) $(ARGS)

bench: $(INSTALLED) ## The index beside Dynamo's if installed, then writes docs/benchmarks.md; ARGS=--list shows others
	$(BIN)/python -m bench $(ARGS)

replicas: $(INSTALLED) ## Several replicas beside one picker, and what siblings cost; writes docs/replicas-equality.md
	$(BIN)/python -m bench replicas --write $(ARGS)
	$(BIN)/python -m bench replica-cost --write

replica-check: $(INSTALLED) test-programs ## Three replicas behind Envoy, killed, frozen, cut off, updated, without their server, at REPLICA_RATE requests/s: 50 minutes
	@rm -f $(REPLICA_FIGURES)
	KVATLAS_REPLICA_RATE=$(REPLICA_RATE) KVATLAS_REPLICA_PHASE_S=$(REPLICA_PHASE_S) KVATLAS_REPLICA_GONE_S=$(REPLICA_GONE_S) \
		KVATLAS_REPLICA_FIGURES=$(REPLICA_FIGURES) $(BIN)/pytest -s --timeout=3600 tests/integration/test_replicas_envoy.py tests/integration/test_replicas_partition.py \
		tests/integration/test_workers_envoy.py $(ARGS)

replica-figures: $(INSTALLED) ## Writes what make replica-check has measured into docs/replicas.md
	PYTHONPATH=tests $(BIN)/python -m support.replica_figures $(REPLICA_FIGURES) docs/replicas.md

soak: $(INSTALLED) ## Mixed traffic with faults for SOAK_MINUTES: memory stays flat, and nothing is left behind
	$(BIN)/python -m bench soak --minutes $(SOAK_MINUTES) $(ARGS)

paper: $(INSTALLED) ## The published tiered-cache benchmark on simulated servers; writes docs/benchmark-tiered.md
	$(BIN)/python -m kvatlas.sim.published $(ARGS)

ladders: $(INSTALLED) ## Published runs with rising rates on simulated servers; writes a page in docs
	$(BIN)/python -m kvatlas.sim.published.ladders $(ARGS)

curves: $(INSTALLED) ## Policies over the load on simulated servers, hours of it; goes on where it was; writes a page in docs
	$(BIN)/python -m kvatlas.sim.load_curves $(ARGS)

slo: $(INSTALLED) ## Requests that meet their objectives, by policy; ARGS="--write docs/slo.md" writes the page
	$(BIN)/python -m kvatlas.sim.slo $(ARGS)

stages: $(INSTALLED) ## Where prompts are computed on servers with roles; ARGS="--conversation FILE" writes a page in docs
	$(BIN)/python -m kvatlas.sim.stages $(ARGS)

cov: $(INSTALLED) ## Branch coverage: 100 % of the core, 90 % of the shells
	$(BIN)/pytest --cov --cov-report= $(ARGS)
	$(BIN)/coverage report --include='$(CORE)' --omit='$(SHELLS_IN_CORE)' --fail-under=100
	$(BIN)/coverage report --include='tokenization/*,fleet/*,routing/*,api/*,app/*,sim/*,$(SHELLS_IN_CORE)' --fail-under=90

format: $(INSTALLED) ## Mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

SANITIZER := -fsanitize=address,undefined -fno-sanitize-recover=undefined

NATIVE_TOKENIZATION_TESTS := $(addprefix tests/unit/tokenization/encoding/,test_byte_pairs.py test_cuts.py test_segment_encoder.py)

sanitize: $(INSTALLED) ## Tests of the native parts under ASAN and UBSAN
	rm -rf build/sanitize
	CXXFLAGS="$(SANITIZER) -g -fno-omit-frame-pointer" LDFLAGS="$(SANITIZER)" \
		$(BIN)/python setup.py -q build --build-base build/sanitize --build-lib build/sanitize/lib
	PYTHONPATH=build/sanitize/lib ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
		LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
		$(BIN)/pytest tests/contract tests/unit/events tests/integration/test_inboxes.py tests/unit/indexer tests/unit/api/http2 \
			tests/integration/test_http2_traffic.py tests/integration/test_http2_handshakes.py \
			tests/unit/api/extproc tests/unit/scorers $(NATIVE_TOKENIZATION_TESTS)

NATIVE_THREAD_TESTS := tests/unit/test_native_threads.py tests/unit/indexer/test_native_index.py tests/unit/indexer/test_native_paths.py \
	tests/unit/tokenization/encoding/test_segment_encoder.py tests/unit/tokenization/encoding/test_segment_cache.py \
	tests/integration/test_http2_traffic.py

# The interpreter and its libraries are not compiled for it, so locks alone show it their order: the lock of the interpreter
# is one. Reports name races inside of the native parts only.
tsan: $(INSTALLED) ## Tests of the native parts in threads under ThreadSanitizer
	rm -rf build/tsan
	CXXFLAGS="-fsanitize=thread -g -O1 -fno-omit-frame-pointer" LDFLAGS="-fsanitize=thread" \
		$(BIN)/python setup.py -q build --build-base build/tsan --build-lib build/tsan/lib
	PYTHONPATH=build/tsan/lib TSAN_OPTIONS="halt_on_error=1 exitcode=66 suppressions=scripts/tsan.supp" \
		LD_PRELOAD="$$(gcc -print-file-name=libtsan.so) $$(gcc -print-file-name=libstdc++.so)" \
		$(BIN)/pytest -p no:cacheprovider -k "thread or writer" $(NATIVE_THREAD_TESTS) $(ARGS)

vllm-check: $(INSTALLED) ## Check against two real vLLM servers (optional, about 4 GB of packages)
	@tests/vllm_check/run.sh $(VLLM_DIR) $(ARGS)

wheel: $(INSTALLED) ## dist/*.whl
	rm -rf build dist
	$(BIN)/python -m build --wheel --no-isolation

schema: $(INSTALLED) ## configs/schema.json from the configuration's types
	$(BIN)/kvatlas config schema > configs/schema.json

compatibility: $(INSTALLED) ## docs/reference-compatibility.md from the code
	cd tests && ../$(BIN)/python -m support.compatibility

engines: $(INSTALLED) ## docs/engines.md from recordings of engines
	cd tests && ../$(BIN)/python -m support.engine_page

proto: $(INSTALLED) ## Python code and types from the .proto files
	@$(BIN)/python -m venv --clear $(PROTO_VENV)
	@$(PROTO_VENV)/bin/python $(PIP) install $(PROTO_TOOLS)
	$(PROTO_VENV)/bin/python -m grpc_tools.protoc --plugin=protoc-gen-mypy=$(PROTO_VENV)/bin/protoc-gen-mypy \
		-I . --python_out=. --mypy_out=quiet:. $(PROTOS)
	$(PROTO_VENV)/bin/python -m grpc_tools.protoc --plugin=protoc-gen-mypy_grpc=$(PROTO_VENV)/bin/protoc-gen-mypy_grpc \
		-I . --grpc_python_out=. --mypy_grpc_out=quiet:. $(CLIENTS)
	sed -i 's/^from api\.client import/from . import/; s/^import api\.client\.\(.*\)/from . import \1/; s/api\.client\.//g' \
		api/client/*_pb2_grpc.py*

constraints: $(INSTALLED) ## constraints.txt from what .venv holds
	$(BIN)/python -m pip list --format=freeze --exclude-editable | LC_ALL=C sort -f > constraints.txt

clean: ## Remove what the tools leave behind, but not .venv
	rm -rf build dist *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .demo
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
