# Fuzzers.
#
# tests/fuzz/fuzz_X.c is a libFuzzer target, tests/fuzz/corpus/X its inputs. `make fuzz` runs them
# under clang's sanitizers, each for FUZZ_SECONDS or FUZZ_INPUTS, whichever ends first, and keeps new
# inputs and findings in $(BUILD)/fuzz. FUZZ_SEED draws the inputs; 0, the default, is another one each
# time. A seed and FUZZ_INPUTS try the same inputs each time (but for a few of fuzz_request), where addresses
# may be fixed (setarch) and $(BUILD)/fuzz/new is empty. $(BUILD)/fuzz-replay
# has the same targets under $(CC): they read the corpus once and belong to the tests. The toolkit's
# allocations pass through tests/fuzz/fail.c.

FUZZ_CC ?= clang
FUZZ_SEED ?= 0
# Numbers that are compared become parts of inputs, and some of them are addresses.
FUZZ_FIXED = $(if $(filter-out 0,$(FUZZ_SEED)),$(shell setarch -R true 2>/dev/null && echo setarch -R))
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZ_NAMES := $(FUZZ_SRC:tests/fuzz/fuzz_%.c=%)
FUZZ_DIR := $(BUILD)/fuzz
# As in the Makefile: what the address sanitizer finds is not checked twice.
FUZZ_SANITIZE ?= -fsanitize=address,undefined -fno-sanitize=null,object-size,pointer-overflow
FUZZ_FLAGS := -std=c11 -O1 -gline-tables-only -Ilib -Ikernels -DMOE_VERSION='"$(VERSION)"' \
              -ffp-contract=off -fno-omit-frame-pointer -fno-sanitize-recover=all \
              -fsanitize=fuzzer-no-link $(FUZZ_SANITIZE) -D__SANITIZE_ADDRESS__ # as gcc says it
# What the targets use; the archive gives each only what it needs. Rooms of which they use little are listed by
# file: when the linker misses a name, add the file that defines it.
FUZZ_ROOMS := base cache quant fmt model text prompt grammar profile pack
FUZZ_FILES :=
FUZZ_FILES += $(addprefix sched/,exactness inventory pace strategy)
FUZZ_FILES += $(addprefix plan/,plan routing_figures)
FUZZ_FILES += infer/run_stats engine/sampler
FUZZ_FILES += $(addprefix serve/,coe_collection coe_costs coe_dispatch coe_plan coe_simulate lines_io \
              reply request api_chat api_completion api_embeddings api_messages api_ollama api_responses api_tokens)
FUZZ_FILES += $(addprefix show/,draw explain_records show_device show_pack show_run show_statistics show_trace)
FUZZ_LIB_OBJ := $(patsubst %.c,$(FUZZ_DIR)/%.o,$(sort $(wildcard $(FUZZ_ROOMS:%=lib/%/*.c) $(FUZZ_FILES:%=lib/%.c))))
FUZZ_LIB := $(FUZZ_DIR)/libmoe.a
FUZZ_WRAP := -Wl,--wrap=malloc,--wrap=free,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=json_loadb,--wrap=getentropy,--wrap=time
REPLAYS := $(FUZZ_NAMES:%=$(BUILD)/fuzz-replay/fuzz_%)

.PHONY: fuzz fuzz-build fuzz-replay $(FUZZ_NAMES:%=fuzz-%)
fuzz: $(FUZZ_NAMES:%=fuzz-%)
fuzz-build: $(FUZZ_NAMES:%=$(FUZZ_DIR)/fuzz_%)
$(FUZZ_NAMES:%=fuzz-%): fuzz-%: $(FUZZ_DIR)/fuzz_%
	$(Q)mkdir -p $(FUZZ_DIR)/new/$*
	$(Q)$(FUZZ_FIXED) $< -seed=$(FUZZ_SEED) -max_total_time=$(FUZZ_SECONDS) -runs=$(FUZZ_INPUTS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
	    -verbosity=0 -artifact_prefix=$(FUZZ_DIR)/$*- $(FUZZ_DIR)/new/$* tests/fuzz/corpus/$*

$(call keep_command,$(FUZZ_DIR)/.flags,$(FUZZ_CC) $(FUZZ_FLAGS))
$(FUZZ_DIR)/%.o: %.c $(FUZZ_DIR)/.flags
	$(call compile,FUZZCC,$(FUZZ_CC) $(FUZZ_FLAGS))
$(FUZZ_LIB): $(FUZZ_LIB_OBJ)
	$(archive)
$(FUZZ_NAMES:%=$(FUZZ_DIR)/fuzz_%): $(FUZZ_DIR)/%: $(FUZZ_DIR)/tests/fuzz/%.o $(FUZZ_DIR)/tests/fuzz/fail.o $(FUZZ_LIB)
	$(call link,$(FUZZ_CC) -fsanitize=fuzzer $(FUZZ_SANITIZE) $(FUZZ_WRAP),$(filter -l%,$(LIBS)))

# Which lines of each reader the inputs run: those of the corpus, and of FUZZ_CORPUS (directories
# with one for each target), which begins as what `make fuzz` has kept.
FUZZ_CORPUS ?= $(FUZZ_DIR)/new
COVERAGE_DIR := $(BUILD)/fuzz-coverage
COVERAGE_FLAGS := $(filter-out -fsanitize=% -fno-sanitize%,$(FUZZ_FLAGS)) -fprofile-instr-generate \
                  -fcoverage-mapping
COVERAGE_LIB := $(COVERAGE_DIR)/libmoe.a
.PHONY: fuzz-coverage
fuzz-coverage: $(FUZZ_NAMES:%=$(COVERAGE_DIR)/fuzz_%)
	$(Q)sh tests/fuzz/coverage.sh $(COVERAGE_DIR) $(FUZZ_CORPUS)
$(call keep_command,$(COVERAGE_DIR)/.flags,$(FUZZ_CC) $(COVERAGE_FLAGS))
$(COVERAGE_DIR)/%.o: %.c $(COVERAGE_DIR)/.flags
	$(call compile,COVCC,$(FUZZ_CC) $(COVERAGE_FLAGS))
$(COVERAGE_LIB): $(FUZZ_LIB_OBJ:$(FUZZ_DIR)/%=$(COVERAGE_DIR)/%)
	$(archive)
$(FUZZ_NAMES:%=$(COVERAGE_DIR)/fuzz_%): $(COVERAGE_DIR)/%: $(COVERAGE_DIR)/tests/fuzz/%.o $(COVERAGE_DIR)/tests/fuzz/replay_corpus.o $(COVERAGE_DIR)/tests/fuzz/fail.o $(COVERAGE_LIB)
	$(call link,$(FUZZ_CC) $(COVERAGE_FLAGS) $(FUZZ_WRAP),$(filter -l%,$(LIBS)))

fuzz-replay: $(REPLAYS)
	$(Q)set -e; for x in $(FUZZ_NAMES); do $(BUILD)/fuzz-replay/fuzz_$$x tests/fuzz/corpus/$$x; done
$(REPLAYS): $(BUILD)/fuzz-replay/%: $(BUILD)/tests/fuzz/%.o $(BUILD)/tests/fuzz/replay_corpus.o $(BUILD)/tests/fuzz/fail.o $(LIBMOE) $(CUDA_SO)
	$(call link,$(CC) $(LDFLAGS) $(AS_NEEDED) $(FUZZ_WRAP),$(LIBS) $(WHERE_BUILT))
-include $(FUZZ_LIB_OBJ:.o=.d) $(FUZZ_SRC:%.c=$(BUILD)/%.d) $(FUZZ_SRC:%.c=$(FUZZ_DIR)/%.d) \
         $(BUILD)/tests/fuzz/replay_corpus.d
