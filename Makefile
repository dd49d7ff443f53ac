# moe-toolkit: build, test, install.
#
#   make                 the five programs in build/bin (those that exist so far)
#   make demo            install what is missing, build, run the bundled model: start here
#   make check           install what is missing, build and run every test that needs no GPU
#   make quick           a one-minute part of the tests, for the edit loop
#   make bench           benchmarks, with ratios from one run (tests/bench)
#   make fuzz            the fuzzers, FUZZ_SECONDS each (needs clang)
#   make asan tsan       builds under sanitizers, in their own directories, and their tests
#   make neon            cross-build for 64-bit ARM and, where qemu-user is there, its kernel tests
#   make install         into $(DESTDIR)$(PREFIX)
#   make format          clang-format over all sources; format-check only looks
#   make help            this text
#
# Knobs: CC, NVCC, CFLAGS, OPENMP=0|1, CUDA=auto|0|1, WERROR=1, SANITIZE=address,undefined|thread,
#        BUILD=dir, PREFIX=/usr/local, DESTDIR=, V=1 (show commands)

CC ?= cc
AR ?= ar
PREFIX ?= /usr/local
OPENMP ?= 1
CUDA ?= auto
BUILD ?= build
FUZZ_SECONDS ?= 10
VERSION := 0.1.0

CFLAGS ?= -O3 -g
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
            -Wvla -Wundef -Wno-unused-parameter
# Contraction would make a result depend on the compiler's taste: fma is written where it is meant.
ALL_CFLAGS := -std=c11 $(CFLAGS) $(WARNINGS) -ffp-contract=off -fno-math-errno \
              -Ilib -Ikernels -DMOE_VERSION='"$(VERSION)"'
LIBS := -ljansson -lpcre2-8 -lzstd -lyaml -luring -lm -lpthread

ifeq ($(WERROR),1)
ALL_CFLAGS += -Werror
endif
ifeq ($(OPENMP),1)
ALL_CFLAGS += -fopenmp
LIBS += -fopenmp
endif
ifneq ($(SANITIZE),)
ALL_CFLAGS += -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer
LIBS += -fsanitize=$(SANITIZE)
endif
ifneq ($(V),1)
Q := @
SAY = @printf '  %-6s %s\n' $(1) $(2)
endif

# CUDA is used where its compiler is found, and left out cleanly where it is not. Sanitized builds
# leave it out: its runtime is not instrumented.
NVCC ?= $(firstword $(wildcard $(shell command -v nvcc 2>/dev/null) /usr/local/cuda/bin/nvcc))
CUDA_ARCHS ?= 75 80 86 89 90 100
ifeq ($(CUDA),auto)
USE_CUDA := $(if $(SANITIZE),,$(NVCC))
else
USE_CUDA := $(filter 1,$(CUDA))
endif
ifneq ($(USE_CUDA),)
ifeq ($(NVCC),)
$(error CUDA=1 but no nvcc: install the CUDA toolkit, set NVCC, or leave CUDA=auto)
endif
GPU_SRC := $(sort $(wildcard kernels/*.cu))
GPU_OBJ := $(GPU_SRC:%.cu=$(BUILD)/%.cu.o)
NVCC_FLAGS := -O3 -Ikernels -Ilib $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a))
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
LIBS += -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt
else
GPU_SRC := kernels/gpu_none.c
GPU_OBJ := $(GPU_SRC:%.c=$(BUILD)/%.o)
endif

LIB_SRC := $(sort $(wildcard lib/*/*.c))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o) $(GPU_OBJ)
LIBMOE := $(BUILD)/libmoe.a
CMD_MAIN := $(sort $(wildcard cmd/moe-*.c))
CMD_SHARED := $(filter-out $(CMD_MAIN),$(sort $(wildcard cmd/*.c)))
CMD_SHARED_OBJ := $(CMD_SHARED:%.c=$(BUILD)/%.o)
PROGRAMS := $(CMD_MAIN:cmd/%.c=$(BUILD)/bin/%)
TEST_SRC := $(sort $(wildcard tests/unit/test_*.c tests/kern/test_*.c))
TESTS := $(TEST_SRC:%.c=$(BUILD)/%)
TOOL_SRC := $(sort $(wildcard tests/tools/*.c tests/bench/*.c))
TOOLS := $(TOOL_SRC:%.c=$(BUILD)/%)

.PHONY: all lib tests tools help
all: $(PROGRAMS)
lib: $(LIBMOE)
tests: $(TESTS)
tools: $(TOOLS)
help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

# ---- Compilation ------------------------------------------------------------------------------

# The kernel variants alone get instruction-set flags; moe_kern_select picks at run time.
ARCH := $(shell $(CC) -dumpmachine)
ifneq ($(filter x86_64%,$(ARCH)),)
$(BUILD)/lib/kern/kern_avx2.o: VARIANT := -mavx2 -mfma -mf16c
$(BUILD)/lib/kern/kern_avx512.o: VARIANT := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl \
                                            -mavx512dq -mavx512vnni -mprefer-vector-width=512
endif
ifneq ($(filter aarch64%,$(ARCH)),)
$(BUILD)/lib/kern/kern_neon_dot.o: VARIANT := -march=armv8.2-a+dotprod
endif

# Objects depend on the flags they were made with, so that a changed knob rebuilds them.
FLAGS_STAMP := $(BUILD)/.flags
FLAGS_TEXT := $(CC) $(ALL_CFLAGS) $(LIBS)
ifneq ($(shell cat $(FLAGS_STAMP) 2>/dev/null),$(FLAGS_TEXT))
$(shell mkdir -p $(BUILD); printf '%s' '$(subst ','\'',$(FLAGS_TEXT))' > $(FLAGS_STAMP))
endif

$(BUILD)/%.o: %.c $(FLAGS_STAMP)
	$(call SAY,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(VARIANT) -MMD -MP -c $< -o $@

$(BUILD)/%.cu.o: %.cu $(FLAGS_STAMP)
	$(call SAY,NVCC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -c $< -o $@

$(LIBMOE): $(LIB_OBJ)
	$(call SAY,AR,$@)
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $^

$(BUILD)/bin/%: $(BUILD)/cmd/%.o $(CMD_SHARED_OBJ) $(LIBMOE)
	$(call SAY,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) -ledit

$(TESTS) $(TOOLS): $(BUILD)/%: $(BUILD)/%.o $(LIBMOE)
	$(call SAY,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) -lcmocka

-include $(LIB_OBJ:.o=.d) $(CMD_MAIN:%.c=$(BUILD)/%.d) $(CMD_SHARED_OBJ:.o=.d) \
         $(TEST_SRC:%.c=$(BUILD)/%.d) $(TOOL_SRC:%.c=$(BUILD)/%.d)
.SECONDARY:

.PHONY: clean
clean:
	rm -rf $(BUILD)

# ---- 64-bit ARM ----------------------------------------------------------------------------------
# Cross-builds the floors below the kernels and the kernel tests, and runs these under qemu-user:
# once on a processor with the dot-product extension, once on one without (cortex-a53).

NEON_CC ?= aarch64-linux-gnu-gcc
NEON_RUN ?= qemu-aarch64 -L /usr/aarch64-linux-gnu
NEON_DIR := $(BUILD)/neon
NEON_SRC := $(filter-out lib/base/hash.c,$(sort $(wildcard lib/base/*.c))) \
            lib/quant/layout.c $(sort $(wildcard lib/kern/*.c)) tests/kern/test_kernels.c
NEON_OBJ := $(NEON_SRC:%.c=$(NEON_DIR)/%.o)
NEON_FLAGS := -std=c11 -O2 -g $(WARNINGS) -Werror -ffp-contract=off -fno-math-errno -fopenmp \
              -Ilib -Itests/kern/plain

.PHONY: neon
neon: $(NEON_DIR)/test_kernels
	$(Q)if command -v $(firstword $(NEON_RUN)) >/dev/null; then \
	    $(NEON_RUN) -cpu max $< && $(NEON_RUN) -cpu cortex-a53 $<; \
	else echo "skipped: $(firstword $(NEON_RUN)) is not installed (package qemu-user)"; fi

$(NEON_DIR)/lib/kern/kern_neon_dot.o: VARIANT := -march=armv8.2-a+dotprod
$(NEON_DIR)/%.o: %.c
	$(call SAY,NEON,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(NEON_CC) $(NEON_FLAGS) $(VARIANT) -MMD -MP -c $< -o $@
$(NEON_DIR)/test_kernels: $(NEON_OBJ)
	$(call SAY,LINK,$@)
	$(Q)$(NEON_CC) -fopenmp -o $@ $^ -lm
-include $(NEON_OBJ:.o=.d)
