# Tests, checks, sanitized builds.

.PHONY: replays check check-all quick check-rooms check-headers check-scripts check-man \
        check-format format format-check asan tsan
replays: $(REPLAYS)
check: deps
	@sh tests/tools/install-tools.sh tmux
	@$(MAKE) --no-print-directory -j2 WERROR=1 all tests replays shim shim-programs
	@$(MAKE) --no-print-directory -j2 WERROR=1 check-all
check-all: check-rooms check-headers check-scripts check-man check-format
	@BUILD=$(BUILD) sh tests/run.sh all
# Hours: the soak, which mostly waits, and beside it one script after the other; torture-X runs
# tests/torture/X.sh alone.
TORTURES := $(patsubst tests/torture/%.sh,torture-%,$(wildcard tests/torture/*.sh))
.PHONY: torture torture-build $(TORTURES)
torture: torture-build
	@BUILD=$(BUILD) JOBS=2 sh tests/run.sh torture
torture-build: deps
	@sh tests/tools/install-tools.sh tmux clang libclang-rt-14-dev fuse3 libfuse3-dev
	@$(MAKE) --no-print-directory -j2 all tests tools
$(TORTURES): torture-%: torture-build
	@BUILD=$(BUILD) sh tests/torture/$*.sh
quick: all tests check-scripts
	@BUILD=$(BUILD) sh tests/run.sh quick

# Another trained model, from texts that the bundled one writes: over an hour on two cores. PYTHON has PyTorch.
PYTHON ?= python3
SECOND = $(BUILD)/models/second
.PHONY: second-model
second-model:
	@$(PYTHON) -c 'import torch, tokenizers, safetensors' 2>/dev/null || \
	    { echo "second-model: $(PYTHON) lacks PyTorch, tokenizers or safetensors (PYTHON=...)"; exit 1; }
	@$(MAKE) --no-print-directory all $(BUILD)/models/tiny-moe/model.safetensors
	@mkdir -p $(SECOND)
	@BUILD=$(BUILD) sh tests/models/second/write.sh $(SECOND)/texts.jsonl
	@$(PYTHON) tests/models/second/train.py $(SECOND) $(BUILD)/models/tiny-moe $(SECOND)/texts.jsonl \
	    tests/data/stories.calib.txt tests/data/math.calib.txt tests/data/code.calib.txt

# Clients of others against a real server, in environments of their own. uv, from PyPI too, fills them: where the newest
# versions exclude each other, pip takes old ones after a long search. pydantic and
# frameworks: those that want others than the rest.
# CLIENTS_VENV=DIR: an environment that is there, taken as it is.
CLIENTS_VENV ?= $(BUILD)/clients
.PHONY: check-clients
UV = $(CLIENTS_VENV)/uv/bin/uv
fill = $(UV) venv -q --allow-existing $(1) && $(UV) pip install -q --python $(1)/bin/python
$(UV):
	@python3 -m venv $(CLIENTS_VENV)/uv && $(@D)/pip install -q uv || rm -rf $(CLIENTS_VENV)/uv
$(CLIENTS_VENV)/bin/python:
	@echo "Installing clients into $(CLIENTS_VENV)"
	@$(MAKE) -s $(UV)
	@{ $(call fill,$(CLIENTS_VENV)) litellm openai anthropic instructor langchain-openai llm ollama \
	        langchain-ollama 'lm-eval[api]' transformers mcp && \
	    $(call fill,$(CLIENTS_VENV)/pydantic) 'pydantic-ai-slim[openai,anthropic]' && \
	    $(call fill,$(CLIENTS_VENV)/frameworks) 'strands-agents[openai,ollama]' llama-index-llms-openai-like; } || \
	    rm -rf $(CLIENTS_VENV)
# Coding agents, whose packages want others than these, or than each other: those that can be had here.
AGENTS := aider:aider-chat cecli:cecli-dev code-puppy:code-puppy gptme:gptme hermes:hermes-agent \
          interpreter:open-interpreter,setuptools==80.9.0 vibe:mistral-vibe
$(CLIENTS_VENV)/agents/bin/python:
	@echo "Installing coding agents into $(CLIENTS_VENV)/agents"
	@$(MAKE) -s $(UV)
	@$(call fill,$(CLIENTS_VENV)/agents) openai-codex-cli-bin claude-agent-sdk mini-swe-agent || \
	    rm -rf $(CLIENTS_VENV)/agents
	@comma=,; for agent in $(AGENTS); do \
	    venv=$(CLIENTS_VENV)/agents/$${agent%%:*}; \
	    { $(call fill,$$venv) $$(echo $${agent#*:} | tr $$comma ' ') && \
	        ln -s ../$${agent%%:*}/bin/$${agent%%:*} $(@D); } 2>/dev/null || \
	        { rm -rf $$venv; echo "check-clients: $${agent%%:*} cannot be had here"; }; \
	done
check-clients: all
	@$(MAKE) -s $(CLIENTS_VENV)/bin/python
	@if [ -x $(CLIENTS_VENV)/bin/python ]; then \
	    $(MAKE) -s $(CLIENTS_VENV)/agents/bin/python; \
	    BUILD=$(BUILD) PYTHON_OPENAI=$(CLIENTS_VENV)/bin/python PYTHON_AGENTS=$(CLIENTS_VENV)/agents/bin/python \
	    PYTHON_PYDANTIC=$(CLIENTS_VENV)/pydantic/bin/python PYTHON_FRAMEWORKS=$(CLIENTS_VENV)/frameworks/bin/python \
	    sh tests/cli/serve-clients.sh; \
	else echo "check-clients: skipped: PyPI cannot be reached from here"; fi

check-rooms: all
	@BUILD=$(BUILD) sh tests/check-rooms.sh
check-headers:
	@CC='$(CC)' sh tests/check-headers.sh
# A script that no test has run since it was changed is still one that the shell accepts.
check-scripts:
	@status=0; for script in $(wildcard .ci/run cmd/moe-pipeline */*.sh */*/*.sh); do \
	    sh -n "$$script" || { echo "$$script: sh does not accept it"; status=1; }; done; exit $$status
check-man: all
	@BUILD=$(BUILD) sh tests/check-man.sh

# Other versions lay out some lines differently.
FORMAT_VERSION := 14
FORMATTED := $(sort $(wildcard lib/*/*.[ch] cmd/*.[ch] cmd/*/*.[ch] kernels/*.[ch] kernels/*.cu \
                               tests/*.[ch] tests/*/*.[ch] tests/*/*/*.[ch] \
                               kernels/*.cuh tests/shim/*.cc tests/gpu/*.cu))
format:
	@clang-format -i $(FORMATTED)
format-check:
	@clang-format --dry-run -Werror $(FORMATTED)
check-format:
	@if clang-format --version 2>/dev/null | grep -q 'version $(FORMAT_VERSION)\.'; then \
	    $(MAKE) --no-print-directory format-check; \
	else echo "no clang-format $(FORMAT_VERSION) here: the format is not checked"; fi

# These tests have threads: those of loops; the loader's, alone and under the engine; those that compute on
# the host; those of a server; and on the shim the device's streams, tiers and uploads.
THREADED := $(patsubst %,tests/unit/%,test_par test_loader test_loader_faults test_cached test_host test_server \
                                          test_ranks) \
            $(patsubst %,shim/tests/gpu/%,test_uploads test_tiers test_tiers_faults test_engine \
                                              test_server_device) \
            tests/unit/test_http
SHIM_SCRIPTS = $(filter-out $(LEAVE_OUT),cuda.sh serve-cuda.sh plan-cuda.sh)
asan:
	$(MAKE) BUILD=build-asan SANITIZE=address,undefined CFLAGS='-O1 -g1' -j$(JOBS) all tests replays \
	    UNBUILT='$(LEAVE_OUT)' $(if $(filter 1,$(SHIM)),shim $(if $(SHIM_SCRIPTS),shim-programs))
	BUILD=build-asan JOBS=$(JOBS) LEAVE_OUT='$(LEAVE_OUT)' sh tests/run.sh all
tsan:
	$(MAKE) BUILD=build-tsan SANITIZE=thread CFLAGS='-O1 -g' -j$(JOBS) \
	    $(THREADED:%=build-tsan/%)
	set -e; for test in $(THREADED); do \
	    case ' $(LEAVE_OUT) ' in *" $${test##*/} "*) continue ;; esac; \
	    TSAN_OPTIONS=suppressions=tests/tsan.supp build-tsan/$$test; done
