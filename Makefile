# moe-toolkit: build, test, install.
#
#   make                 the programs, in build/bin
#   make demo            install what is missing, build, run the bundled model: start here; deps only installs
#   make check           install what is missing, build and run every test that needs no GPU
#   make quick           a part of the tests, three minutes on 2 cores, for the edit loop
#   make check-rooms check-headers check-man check-format   single checks of make check
#   make asan tsan       builds under sanitizers, in their own directories, and their tests
#   make fuzz            the fuzzers, FUZZ_SECONDS each (needs clang); fuzz-X: one of them
#   make fuzz-coverage   which lines of each reader the fuzzers' inputs run (needs llvm)
#   make neon            cross-build for 64-bit ARM and, where qemu-user is there, its kernel tests
#   make shim            the CUDA backend and its tests, compiled for the processor (needs g++)
#   make shim-programs   the programs with that backend, in build/shim/bin
#   make torture         what takes hours: failures at every point, kills, budgets, slow disks, a soak
#   make check-gpu       the backend's tests on a GPU; SANITIZER=1: under compute-sanitizer
#   make bench           benchmarks, with ratios from one run (tests/bench)
#   make bench-strategies  every strategy side by side: over an hour
#   make bench-calibrate   bit maps beside uniform packs and random maps: three quarters of an hour
#   make bench-coe       a collection larger than memory, CoServe's parts in turn: ten minutes (needs jq)
#   make bench-gpu       the CUDA backend on a GPU; BENCH_DIR=dir: with a model of 14 GB, made there
#   make install         programs, pages, profiles, library into $(DESTDIR)$(PREFIX); uninstall takes all away
#   make deb             Debian packages of the same, in build/deb: moe-toolkit and libmoe-dev;
#                        check-deb tries them on a bare Debian (root, debootstrap)
#   make check-slurm     moe-pipeline on a Slurm of two nodes on this machine (root), one of which dies
#   make format          clang-format over all sources; format-check only looks
#   make clean           remove the build directory
#   make help            this text
#
# tests/README.md says which of these catches which kind of mistake.
#
# Knobs: CC, CXX, NVCC, NVCC_OPT, CFLAGS, WERROR=1, SANITIZE=address,undefined|thread, BUILD=dir,
#        PREFIX=/usr/local, DESTDIR=, V=1 (show commands), CUDA=auto|0|1 (auto: kernels where nvidia-smi finds
#        a GPU, and in packages where there is a toolkit), CUDA_ARCHS='80 90', LEAVE_OUT='test_x ...' (of make
#        asan and tsan), JOBS=N (at a time, of demo, asan, tsan), SHIM=0|1 (make asan with the tests of
#        kernels/), STRIP=0 (install programs as they are built, for debuggers)

CC ?= cc
AR ?= ar
PREFIX ?= /usr/local
CUDA ?= auto
BUILD ?= build
FUZZ_SECONDS ?= 10
FUZZ_INPUTS ?= -1
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
SHIM ?= 1
STRIP ?= 1
VERSION := 0.1.0

CFLAGS ?= -O3 -g
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
            -Wvla -Wundef -Wno-unused-parameter
# No contraction: it would make results depend on the compiler. fma is written where it is meant.
# Position-independent, so that the library can become part of a shared object (a Python module).
ALL_CFLAGS := -std=c11 -pthread $(CFLAGS) $(WARNINGS) -ffp-contract=off -fno-math-errno -fPIC -fvisibility=hidden \
              -Ilib -Ikernels -DMOE_VERSION='"$(VERSION)"'
LIBS := -ljansson -lmicrohttpd -lpcre2-8 -lutf8proc -lzstd -lyaml -luring -lm -lpthread

# Not among the flags that objects are kept by: those of make are as good for make check.
ifeq ($(WERROR),1)
STRICT := -Werror
NVCC_STRICT := -Werror all-warnings -Xcompiler -Werror
endif
ifneq ($(SANITIZE),)
ALL_CFLAGS += -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer
# What the address sanitizer finds when it is read or written is not checked once more before: that takes
# a third of compiling.
ifneq ($(findstring address,$(SANITIZE)),)
ALL_CFLAGS += -fno-sanitize=null,object-size
endif
LIBS += -fsanitize=$(SANITIZE)
endif
# make -s
SILENT := $(findstring s,$(firstword -$(MAKEFLAGS)))
ifneq ($(V),1)
Q := @
SAY = $(if $(SILENT),@:,@printf) '  %-6s %s\n' $(1) $(2)
# With the number of STEPS, they are counted; LINE_END='\033[K\r' shows them on one line of a terminal.
ifneq ($(STEPS),)
LINE_END ?= \n
SAY = $(eval STEP += x)@printf '[%s/%s] %-6s %s$(LINE_END)' $(words $(STEP)) $(STEPS) $(1) $(2)
endif
endif

# The recipes of all rules that compile, archive and link, for every compiler.
define compile # NAME, COMPILER WITH FLAGS
	$(call SAY,$(1),$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(2) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
endef
define link # COMPILER WITH FLAGS, LIBRARIES
	$(call SAY,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(1) -o $@ $^ $(2)
endef
define archive
	$(call SAY,AR,$@)
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $(filter %.o,$^)
endef
# What the backend takes of the library it has a copy of; it gives out its interface alone.
define link_cuda # NAMES THAT IT GIVES OUT
	$(Q)mkdir -p $(@D)
	$(Q)echo '{ global: $(1); local: *; };' >$@.names
	$(call link,$(CC) $(LDFLAGS) -shared -Wl$(COMMA)-soname$(COMMA)$(@F) -Wl$(COMMA)-z$(COMMA)defs -Wl$(COMMA)--version-script=$@.names,$(CUDA_LIBS))
endef
# Objects depend on a file with the command that makes them, so that a changed knob rebuilds them.
quoted = '$(subst ','\'',$(1))'
define keep_command # FILE, COMMAND
$(shell mkdir -p $(dir $(1)); test "$$(cat $(1) 2>/dev/null)" = $(call quoted,$(2)) || \
    printf '%s' $(call quoted,$(2)) >$(1))
endef

COMMA := ,
# Kernels take minutes to compile, so they are compiled for a GPU that is here (nvidia-smi knows it), where the
# toolkit is too; CUDA=1 compiles them without a GPU, CUDA=0 leaves them out. Packages go elsewhere: they have
# kernels wherever there is a toolkit. Sanitized builds leave them out: CUDA's runtime is not instrumented.
NVCC ?= $(firstword $(wildcard $(shell command -v nvcc 2>/dev/null) /usr/local/cuda/bin/nvcc))
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_FOUND := $(if $(NVCC),$(wildcard $(CUDA_HOME)/include/cublas_v2.h /usr/include/cublas_v2.h))
# Kernels are for the GPUs of this machine; for all kinds where there is none, and in packages.
# CUDA_ARCHS='80 90' names others.
ALL_CUDA_ARCHS := 75 80 86 89 90 100 120
CUDA_ARCHS_HERE := $(if $(CUDA_FOUND),$(filter $(ALL_CUDA_ARCHS),$(sort $(subst .,,\
    $(shell nvidia-smi --query-gpu=compute_cap --format=csv$(COMMA)noheader 2>/dev/null)))))
PACKAGES := $(filter deb check-deb,$(MAKECMDGOALS))
CUDA_ARCHS ?= $(or $(if $(PACKAGES),,$(CUDA_ARCHS_HERE)),$(ALL_CUDA_ARCHS))
ifeq ($(CUDA),auto)
GPU_HERE := $(if $(CUDA_FOUND),$(shell nvidia-smi -L 2>/dev/null | grep '^GPU '))
USE_CUDA := $(if $(SANITIZE),,$(if $(PACKAGES)$(GPU_HERE),$(CUDA_FOUND)))
LEFT_OUT := $(if $(SANITIZE)$(USE_CUDA)$(SILENT),,$(CUDA_FOUND))
else
USE_CUDA := $(filter 1,$(CUDA))
endif
ifneq ($(USE_CUDA),)
ifeq ($(CUDA_FOUND),)
$(error CUDA=1 but no nvcc or no cuBLAS: install the CUDA toolkit, set NVCC, or leave CUDA=auto)
endif
GPU_SRC := $(sort $(wildcard kernels/*.cu))
GPU_OBJ := $(GPU_SRC:%.cu=$(BUILD)/%.cu.o)
# Machine code for all architectures takes three passes of the compiler, since the sources use nothing
# newer than what 8.0 brought; the last one adds PTX, which GPUs of later kinds (11.0, 13.0, ...)
# compile for themselves. ptx75 among CUDA_ARCHS: the PTX of the first pass alone. No contraction, as in C.
SPACE := $(subst x,,x x)
GENCODE = $(if $(2),-gencode 'arch=compute_$(1)$(COMMA)code=[$(subst $(SPACE),$(COMMA),$(patsubst sm_ptx%,compute_%,$(2:%=sm_%)))$(3)]')
NVCC_OPT ?= -O3
NVCC_FLAGS := -std=c++17 $(NVCC_OPT) -lineinfo -fmad=false -Ikernels -Ilib \
              $(call GENCODE,75,$(filter 75 ptx75,$(CUDA_ARCHS))) \
              $(call GENCODE,80,$(filter 8%,$(CUDA_ARCHS))) \
              $(call GENCODE,90,$(filter-out 75 ptx75 8%,$(CUDA_ARCHS)),$(COMMA)compute_90) \
              -Xcompiler -fPIC,-Wall,-Wextra,-Wno-unused-parameter
# cuBLAS is loaded at run time, from where it was found now.
CUDA_LIB_DIR := $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib))
CUDA_LIBS := -L$(CUDA_LIB_DIR) -Wl,-rpath,$(CUDA_LIB_DIR) -lcudart_static -lstdc++ -ldl -lrt
# One shared object for all programs: the machine code is 35 MB. Installed programs look for it beside
# them, those of the tests where it was built.
CUDA_SO := $(BUILD)/lib/moe-toolkit/libmoe-cuda.so
BESIDE := -Wl,-rpath,'$$ORIGIN/../lib/moe-toolkit'
WHERE_BUILT := -Wl,-rpath,$(abspath $(BUILD)/lib/moe-toolkit)
else
GPU_SRC := kernels/gpu_none.c
GPU_OBJ := $(GPU_SRC:%.c=$(BUILD)/%.o)
endif

LIB_SRC := $(sort $(wildcard lib/*/*.c))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o) $(if $(CUDA_SO),,$(GPU_OBJ))
LIBMOE := $(BUILD)/libmoe.a
CMD_MAIN := $(sort $(wildcard cmd/moe-*.c))
CMD_SHARED := $(filter-out $(CMD_MAIN),$(sort $(wildcard cmd/*.c cmd/*/*.c)))
CMD_SHARED_OBJ := $(CMD_SHARED:%.c=$(BUILD)/%.o)
LIBCMD := $(BUILD)/libcmd.a
PROGRAMS := $(CMD_MAIN:cmd/%.c=$(BUILD)/bin/%)
# UNBUILT: names of tests that need not be built (make asan).
build_all_but = $(sort $(filter-out $(UNBUILT:%=tests/unit/%.c) $(UNBUILT:%=tests/gpu/%.c),$(1)))
TEST_SRC := $(call build_all_but,$(wildcard tests/unit/test_*.c tests/kern/test_*.c))
TESTS := $(TEST_SRC:%.c=$(BUILD)/%)
# Programs with a stand-in, for scripts.
UNCHECKED := $(addprefix $(BUILD)/tests/tools/,run_unchecked serve_unchecked)
# A collection of packs, for scripts.
DERIVE := $(BUILD)/tests/tools/derive
# Makes wider models that say the same.
WIDEN := $(BUILD)/tests/tools/widen
# Checkpoints whose layers choose experts by the token.
MAKE_STATIC := $(BUILD)/tests/tools/make_static
# Clients of a server, for scripts.
HTTP_LOAD := $(BUILD)/tests/tools/http_load
# A disk with faults, where libfuse is.
BAD_DISK := $(if $(wildcard /usr/include/fuse3/fuse.h),$(BUILD)/tests/tools/bad_disk)
# A library that lets calls fail, for scripts of tests/torture.
FAIL_CALLS := $(BUILD)/tests/tools/fail_calls.so
TOOL_SRC := $(filter-out $(patsubst %,tests/tools/%.c,run_unchecked serve_unchecked bad_disk fail_calls),\
            $(sort $(wildcard tests/tools/*.c tests/bench/*.c)))
TOOLS := $(TOOL_SRC:%.c=$(BUILD)/%)

# Programs that are scripts: -s would have nothing to strip.
SCRIPTS := $(BUILD)/bin/moe-pipeline

# What make does without a target, wherever the first rule stands.
.DEFAULT_GOAL := all
.PHONY: all lib tests tools help
all: $(PROGRAMS) $(SCRIPTS)
	$(if $(LEFT_OUT),@echo "CUDA kernels are left out: the toolkit is here but no GPU (CUDA=1 compiles them; CUDA=0 does not ask)")
lib: $(LIBMOE)
tests: $(TESTS) $(UNCHECKED) $(DERIVE) $(WIDEN) $(MAKE_STATIC) $(HTTP_LOAD) $(BUILD)/tree/installed
tools: $(TOOLS) $(BAD_DISK) $(FAIL_CALLS)
help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

$(SCRIPTS): $(BUILD)/bin/%: cmd/% Makefile
	$(Q)mkdir -p $(@D)
	$(Q)sed 's|@VERSION@|$(VERSION)|' $< >$@.new && chmod 755 $@.new && mv $@.new $@

# ---- Compilation ------------------------------------------------------------------------------

# The kernel variants alone get instruction-set flags; moe_kern_select picks at run time.
ARCH := $(shell $(CC) -dumpmachine 2>/dev/null)
ifneq ($(filter x86_64%,$(ARCH)),)
$(BUILD)/lib/kern/kern_avx2.o: VARIANT := -mavx2 -mfma -mf16c
$(BUILD)/lib/kern/kern_avx512.o: VARIANT := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl \
                                            -mavx512dq -mavx512vnni -mprefer-vector-width=512
endif
ifneq ($(filter aarch64%,$(ARCH)),)
$(BUILD)/lib/kern/kern_neon_dot.o: VARIANT := -march=armv8.2-a+dotprod
endif

$(call keep_command,$(BUILD)/.flags,$(CC) $(ALL_CFLAGS) $(LIBS))
$(BUILD)/%.o: %.c $(BUILD)/.flags | $(BUILD)/.compiles
	$(call compile,CC,$(CC) $(ALL_CFLAGS) $(STRICT) $(VARIANT))
# Before the first object, one sentence in the place of an error for each file.
$(BUILD)/.compiles: $(BUILD)/.flags
	$(Q)CC='$(CC)' FLAGS='$(CFLAGS) $(LDFLAGS)' sh tests/tools/install-deps.sh --look
	$(Q)touch $@
$(if $(USE_CUDA),$(call keep_command,$(BUILD)/.nvcc-flags,$(NVCC) $(NVCC_FLAGS)))
$(BUILD)/%.cu.o: %.cu $(BUILD)/.nvcc-flags
	$(call compile,NVCC,$(NVCC) $(NVCC_FLAGS) $(NVCC_STRICT))

# The assembler reads the page.
$(BUILD)/lib/serve/page.o $(BUILD)/fuzz/lib/serve/page.o: lib/serve/page.html

# An archive is made again when its list changes: a file that is gone, a backend in the place of gpu_none.c.
$(call keep_command,$(BUILD)/.parts,$(LIB_OBJ) $(CMD_SHARED_OBJ) $(CUDA_SO))
$(LIBMOE): $(LIB_OBJ) $(BUILD)/.parts
	$(archive)
ifneq ($(CUDA_SO),)
$(CUDA_SO): $(GPU_OBJ) $(BUILD)/lib/base/err.o $(BUILD)/lib/quant/layout.o
	$(call link_cuda,moe_gpu_*)
endif
# An archive too, so that a program takes only what it uses of the files shared by programs.
$(LIBCMD): $(CMD_SHARED_OBJ) $(BUILD)/.parts
	$(archive)

# What the programs have in rooms of their own includes what they share.
$(BUILD)/cmd/%.o: VARIANT := -Icmd

# The manual as text, of which programs have a copy.
PAGES := $(sort $(wildcard man/*.[1-9]))
MANUAL := $(BUILD)/man/pages.txt
$(MANUAL): man/text.awk $(PAGES)
	$(Q)mkdir -p $(@D)
	$(Q)awk -f man/text.awk $(PAGES) >$@.new && mv $@.new $@
$(BUILD)/cmd/cli_manual.o: $(MANUAL)
$(BUILD)/cmd/cli_manual.o: VARIANT := -Icmd -DCLI_MANUAL='"$(MANUAL)"'

AS_NEEDED := -Wl,--as-needed
$(BUILD)/bin/%: $(BUILD)/cmd/%.o $(LIBCMD) $(LIBMOE) $(CUDA_SO)
	$(call link,$(CC) $(LDFLAGS) $(AS_NEEDED),$(LIBS) $(BESIDE) -ledit)
$(UNCHECKED): $(BUILD)/%: $(BUILD)/%.o $(LIBCMD) $(LIBMOE) $(CUDA_SO)
	$(call link,$(CC) $(LDFLAGS) $(AS_NEEDED),$(LIBS) $(WHERE_BUILT) -ledit)
$(TESTS) $(TOOLS): $(BUILD)/%: $(BUILD)/%.o $(LIBMOE) $(CUDA_SO)
	$(call link,$(CC) $(LDFLAGS) $(AS_NEEDED),$(LIBS) $(WHERE_BUILT) -lcmocka)
$(FAIL_CALLS): tests/tools/fail_calls.c
	$(Q)mkdir -p $(@D)
	$(call link,$(CC) -std=c11 -O1 -g $(WARNINGS) -fno-builtin -fPIC -shared,-ldl)

$(BUILD)/tests/tools/bad_disk.o: VARIANT := -D_FILE_OFFSET_BITS=64
$(BUILD)/tests/tools/bad_disk: $(BUILD)/tests/tools/bad_disk.o
	$(call link,$(CC) $(LDFLAGS),-lfuse3 -lpthread)

-include $(LIB_OBJ:.o=.d) $(GPU_OBJ:.o=.d) $(CMD_MAIN:%.c=$(BUILD)/%.d) $(CMD_SHARED_OBJ:.o=.d) \
         $(TEST_SRC:%.c=$(BUILD)/%.d) $(TOOL_SRC:%.c=$(BUILD)/%.d) $(UNCHECKED:%=%.d) $(BAD_DISK:%=%.d)
.SECONDARY:

# The tests of the code need not be fast themselves: this compiles in little more than half the time.
$(BUILD)/tests/unit/%.o $(BUILD)/tests/gpu/%.o: VARIANT := $(if $(filter -O1 -O3,$(CFLAGS)),-Og)

# ---- The CUDA backend on the processor ----------------------------------------------------------
# kernels/*.cu compiled by the C++ compiler, with tests/shim in place of CUDA. Programs name these objects
# before $(LIBMOE), so that the backend in there is not taken.

CXX ?= c++
SHIM_DIR := $(BUILD)/shim
SHIM_SRC := $(sort $(wildcard kernels/*.cu tests/shim/*.cc))
SHIM_OBJ := $(SHIM_SRC:%=$(SHIM_DIR)/%.o)
# For this machine, so that fmaf is an instruction. Results do not depend on it.
SHIM_ARCH ?= $(if $(filter x86_64%,$(ARCH)),-march=native)
# -O1 compiles the templates of kernels in less than half the time of -O3.
SHIM_FLAGS := -std=c++17 $(CFLAGS:-O3=-O1) $(SHIM_ARCH) -Wall -Wextra -Wundef \
              -Wno-unused-parameter -Wno-unknown-pragmas -ffp-contract=off -fno-math-errno \
              -Itests/shim -Ilib -Ikernels \
              $(filter -fsanitize% -fno-sanitize% -fno-omit%,$(ALL_CFLAGS))
SHIM_LIBS := $(LIBS) -lstdc++
GPU_TEST_SRC := $(call build_all_but,$(wildcard tests/gpu/test_*.c))
GPU_TESTS := $(GPU_TEST_SRC:%.c=$(SHIM_DIR)/%)
SHIM_TOOLS := $(SHIM_DIR)/tests/bench/bench_gpu $(SHIM_DIR)/tests/tools/gpu_here
# Kernels that the tests have for themselves.
GPU_TEST_CU := $(sort $(wildcard tests/gpu/*.cu))

.PHONY: shim shim-programs
shim: $(SHIM_OBJ) $(GPU_TESTS) $(if $(filter bench-gpu.sh,$(UNBUILT)),,$(SHIM_TOOLS))
shim-programs: $(CMD_MAIN:cmd/%.c=$(SHIM_DIR)/bin/%)

$(call keep_command,$(SHIM_DIR)/.flags,$(CXX) $(SHIM_FLAGS))
$(SHIM_DIR)/%.o: % $(SHIM_DIR)/.flags
	$(call compile,SHIM,$(CXX) $(SHIM_FLAGS) $(STRICT) -x c++)
$(GPU_TESTS): $(SHIM_DIR)/%: $(BUILD)/%.o $(GPU_TEST_CU:%=$(SHIM_DIR)/%.o) $(SHIM_OBJ) $(LIBMOE)
	$(call link,$(CC) $(LDFLAGS),$(SHIM_LIBS) -lcmocka)
$(SHIM_TOOLS): $(SHIM_DIR)/%: $(BUILD)/%.o $(SHIM_OBJ) $(LIBMOE)
	$(call link,$(CC) $(LDFLAGS),$(SHIM_LIBS))
$(SHIM_DIR)/bin/%: $(BUILD)/cmd/%.o $(LIBCMD) $(SHIM_OBJ) $(LIBMOE)
	$(call link,$(CC) $(LDFLAGS),$(AS_NEEDED) $(SHIM_LIBS) -ledit)
-include $(SHIM_OBJ:.o=.d) $(GPU_TEST_CU:%=$(SHIM_DIR)/%.d) $(GPU_TEST_CU:%=$(BUILD)/%.d) \
         $(GPU_TEST_SRC:%.c=$(BUILD)/%.d)

# The same tests with the backend itself, which needs a GPU; without CUDA there are none. They share one
# object, in which the kernels that they have for themselves are too, and look for it beside them.
GPU_REAL_TESTS := $(if $(USE_CUDA),$(GPU_TEST_SRC:%.c=$(BUILD)/%))
GPU_TEST_SO := $(BUILD)/tests/gpu/libmoe-cuda.so
$(GPU_REAL_TESTS): $(BUILD)/%: $(BUILD)/%.o $(LIBMOE) $(GPU_TEST_SO)
	$(call link,$(CC) $(LDFLAGS),$(LIBS) -Wl$(COMMA)-rpath$(COMMA)'$$ORIGIN' -lcmocka)
$(GPU_TEST_SO): $(GPU_TEST_CU:%=$(BUILD)/%.o) $(GPU_OBJ) $(BUILD)/lib/base/err.o $(BUILD)/lib/quant/layout.o
	$(call link_cuda,moe_gpu_*; try_*)
.PHONY: gpu-tests
gpu-tests: $(GPU_REAL_TESTS) $(BUILD)/tests/tools/gpu_here $(BUILD)/tests/bench/bench_gpu

COMPUTE_SANITIZER ?= $(firstword $(wildcard $(shell command -v compute-sanitizer 2>/dev/null) \
                                            $(CUDA_HOME)/bin/compute-sanitizer))
SANITIZER_TOOLS := memcheck racecheck synccheck initcheck
.PHONY: check-gpu check-gpu-plain $(SANITIZER_TOOLS:%=check-gpu-%)
check-gpu: gpu-tests
	@if why=$$($(BUILD)/tests/tools/gpu_here); then \
	    $(MAKE) --no-print-directory \
	        $(if $(filter 1,$(SANITIZER)),$(SANITIZER_TOOLS:%=check-gpu-%),check-gpu-plain); \
	else echo "the GPU's tests are skipped: $$why"; fi
check-gpu-plain:
	@BUILD=$(BUILD) JOBS=1 sh tests/run.sh gpu
$(SANITIZER_TOOLS:%=check-gpu-%): check-gpu-%:
	@test -n '$(COMPUTE_SANITIZER)' || { echo "no compute-sanitizer here"; exit 1; }
	@echo "$*:"; BUILD=$(BUILD) JOBS=1 \
	    RUN_UNDER='$(COMPUTE_SANITIZER) --tool $* --error-exitcode 1' sh tests/run.sh gpu

.PHONY: clean
clean:
	rm -rf $(BUILD)

# ---- Fuzzing -------------------------------------------------------------------------------------
# tests/fuzz/fuzz_X.c is a libFuzzer target, tests/fuzz/corpus/X its inputs. `make fuzz` runs them
# under clang's sanitizers, each for FUZZ_SECONDS or FUZZ_INPUTS, whichever ends first, and keeps new
# inputs and findings in $(BUILD)/fuzz. $(BUILD)/fuzz-replay
# has the same targets under $(CC): they read the corpus once and belong to the tests. The toolkit's
# allocations pass through tests/fuzz/fail.c.

FUZZ_CC ?= clang
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZ_NAMES := $(FUZZ_SRC:tests/fuzz/fuzz_%.c=%)
FUZZ_DIR := $(BUILD)/fuzz
FUZZ_SANITIZE ?= -fsanitize=address,undefined
FUZZ_FLAGS := -std=c11 -O1 -gline-tables-only -Ilib -Ikernels -DMOE_VERSION='"$(VERSION)"' \
              -ffp-contract=off -fno-omit-frame-pointer -fno-sanitize-recover=all \
              -fsanitize=fuzzer-no-link $(FUZZ_SANITIZE)
# What the targets read with and show; the archive gives each only what it uses. Of rooms that they use a
# little of, the files alone: a linker that misses a name wants its file here.
FUZZ_ROOMS := base cache fmt model text prompt grammar profile
FUZZ_FILES := $(addprefix quant/,bits ggml layout)
FUZZ_FILES += $(addprefix pack/,map pack pack_bits)
FUZZ_FILES += $(addprefix sched/,exactness inventory strategy)
FUZZ_FILES += $(addprefix plan/,pace plan routing_figures)
FUZZ_FILES += infer/run_stats engine/sampler
FUZZ_FILES += $(addprefix serve/,coe_collection coe_costs coe_dispatch coe_plan coe_schedule coe_simulate lines_io \
              reply request)
FUZZ_FILES += $(addprefix show/,draw explain_records show_device show_pack show_run show_statistics show_trace)
FUZZ_LIB_OBJ := $(patsubst %.c,$(FUZZ_DIR)/%.o,$(sort $(wildcard $(FUZZ_ROOMS:%=lib/%/*.c)) $(FUZZ_FILES:%=lib/%.c)))
FUZZ_LIB := $(FUZZ_DIR)/libmoe.a
FUZZ_WRAP := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=json_loadb
REPLAYS := $(FUZZ_NAMES:%=$(BUILD)/fuzz-replay/fuzz_%)

.PHONY: fuzz fuzz-build fuzz-replay $(FUZZ_NAMES:%=fuzz-%)
fuzz: $(FUZZ_NAMES:%=fuzz-%)
fuzz-build: $(FUZZ_NAMES:%=$(FUZZ_DIR)/fuzz_%)
$(FUZZ_NAMES:%=fuzz-%): fuzz-%: $(FUZZ_DIR)/fuzz_%
	$(Q)mkdir -p $(FUZZ_DIR)/new/$*
	$(Q)$< -max_total_time=$(FUZZ_SECONDS) -runs=$(FUZZ_INPUTS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
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
$(FUZZ_NAMES:%=$(COVERAGE_DIR)/fuzz_%): $(COVERAGE_DIR)/%: $(COVERAGE_DIR)/tests/fuzz/%.o $(COVERAGE_DIR)/tests/fuzz/replay.o $(COVERAGE_DIR)/tests/fuzz/fail.o $(COVERAGE_LIB)
	$(call link,$(FUZZ_CC) $(COVERAGE_FLAGS) $(FUZZ_WRAP),$(filter -l%,$(LIBS)))

fuzz-replay: $(REPLAYS)
	$(Q)set -e; for x in $(FUZZ_NAMES); do $(BUILD)/fuzz-replay/fuzz_$$x tests/fuzz/corpus/$$x; done
$(REPLAYS): $(BUILD)/fuzz-replay/%: $(BUILD)/tests/fuzz/%.o $(BUILD)/tests/fuzz/replay.o $(BUILD)/tests/fuzz/fail.o $(LIBMOE) $(CUDA_SO)
	$(call link,$(CC) $(LDFLAGS) $(AS_NEEDED) $(FUZZ_WRAP),$(LIBS) $(WHERE_BUILT))
-include $(FUZZ_LIB_OBJ:.o=.d) $(FUZZ_SRC:%.c=$(BUILD)/%.d) $(FUZZ_SRC:%.c=$(FUZZ_DIR)/%.d) \
         $(BUILD)/tests/fuzz/replay.d

# ---- Demo ---------------------------------------------------------------------------------------

DEMO_PACK := $(BUILD)/tiny.moe

# In two steps: make looks for the compiler when it starts, which is before anything is installed.
.PHONY: demo demo-run deps
demo: deps
	@steps=$$($(MAKE) -n --no-print-directory all 2>/dev/null | grep -c "^printf '  "); \
	    if [ -t 1 ]; then end='\033[K\r'; else end='\n'; fi; \
	    $(MAKE) --no-print-directory -j$(JOBS) STEPS=$$steps LINE_END="$$end" all
	@$(MAKE) --no-print-directory -s demo-run
demo-run: all
	@echo "Quantizing tests/models/tiny-moe to 4 bits: $(DEMO_PACK)"
	@$(BUILD)/bin/moe-quantize -q -o $(DEMO_PACK) --experts 4 tests/models/tiny-moe
	@echo "Running it: Once upon a time..."; echo
	@printf 'Once upon a time'
	@$(BUILD)/bin/moe-run $(DEMO_PACK) -p 'Once upon a time' -n 120 --temp 0.7 --top-p 0.95 --seed 7
	@echo; echo
	@echo "(A model of 17 million parameters: grammar yes, sense rarely.) Now try:"
	@echo "  $(BUILD)/bin/moe-run $(DEMO_PACK)                    a prompt; /help lists commands"
	@echo "  $(BUILD)/bin/moe-run $(DEMO_PACK) --bench            how fast it runs here"
	@echo "  $(BUILD)/bin/moe-quantize --list $(DEMO_PACK)        what is in the pack"
	@echo "  make check                                   every test"
deps:
	@sh tests/tools/install-deps.sh

# ---- Tests --------------------------------------------------------------------------------------

.PHONY: replays check check-all quick check-rooms check-headers check-man \
        check-format format format-check asan tsan
replays: $(REPLAYS)
check: deps
	@sh tests/tools/install-tools.sh tmux
	@$(MAKE) --no-print-directory -j2 WERROR=1 all tests replays shim shim-programs
	@$(MAKE) --no-print-directory -j2 WERROR=1 check-all
check-all: check-rooms check-headers check-man check-format
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
quick: all tests
	@BUILD=$(BUILD) sh tests/run.sh quick

check-rooms: all
	@BUILD=$(BUILD) sh tests/check-rooms.sh
check-headers:
	@CC='$(CC)' sh tests/check-headers.sh
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
THREADED := $(patsubst %,tests/unit/%,test_par test_loader test_loader_faults test_cached test_host test_server) \
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

# ---- Benchmarks ----------------------------------------------------------------------------------

.PHONY: bench bench-strategies bench-calibrate bench-coe bench-gpu
bench: all tools
	@BUILD=$(BUILD) sh tests/bench/run.sh
# Every strategy, and the papers' ablations: over an hour.
bench-strategies: all tests tools
	@BUILD=$(BUILD) sh tests/bench/strategies.sh
# Bit maps of the bundled model for five tolerances: three quarters of an hour.
bench-calibrate: all tools
	@BUILD=$(BUILD) sh tests/bench/calibrate.sh
bench-coe: all tests tools
	@BUILD=$(BUILD) sh tests/bench/coe_real.sh
bench-gpu: all tools
	@BUILD=$(BUILD) sh tests/bench/gpu.sh

# ---- Installation -------------------------------------------------------------------------------

.PHONY: install uninstall
BINDIR := $(DESTDIR)$(PREFIX)/bin
MANDIR := $(DESTDIR)$(PREFIX)/share/man
PROFILEDIR := $(DESTDIR)$(PREFIX)/share/moe-toolkit/profiles
# Below PREFIX; Debian's packages have lib/x86_64-linux-gnu.
LIB ?= lib
LIBDIR := $(DESTDIR)$(PREFIX)/$(LIB)
INCLUDEDIR := $(DESTDIR)$(PREFIX)/include/moe
EXAMPLEDIR := $(DESTDIR)$(PREFIX)/share/doc/moe-toolkit/examples
EXAMPLES := $(addprefix tests/clients/,chat.c moe_cffi.py)
SHARED_FILES := $(wildcard profiles/*.yaml profiles/*/*)
# Where shells look for completions.
BASHDIR := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
ZSHDIR := $(DESTDIR)$(PREFIX)/share/zsh/site-functions
FISHDIR := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d

# The library as others link it: one object of what the public interface needs, in which nothing else
# has a name.
PUBLIC := $(BUILD)/public/libmoe.a
$(PUBLIC): $(LIBMOE)
	$(call SAY,AR,$@)
	$(Q)mkdir -p $(@D)
	$(Q)nm -g --defined-only $(BUILD)/lib/api/moe.o | sed -n 's/.* T //p' >$(@D)/names
	$(Q)$(LD) -r -o $(@D)/moe.o $(BUILD)/lib/api/moe.o $<
	$(Q)objcopy --strip-debug --keep-global-symbols=$(@D)/names $(@D)/moe.o
	$(Q)rm -f $@ && $(AR) rcs $@ $(@D)/moe.o
PUBLIC_LIBS := $(filter-out -lmicrohttpd,$(LIBS))
fill_in = sed 's|@PREFIX@|$(PREFIX)|; s|@LIB@|$(LIB)|; s|@UP@|../../$(shell echo '$(LIB)' | sed 's|[^/][^/]*|..|g')|; s|@VERSION@|$(VERSION)|; s|@LIBS@|$(PUBLIC_LIBS)|; \
               s|@CUDA:\([^@]*\)@|$(if $(CUDA_SO),\1)|' $(1) >$(2)

install: all $(PUBLIC)
	install -d $(LIBDIR)/pkgconfig $(LIBDIR)/cmake/moe $(INCLUDEDIR) $(EXAMPLEDIR)
	install -m 644 $(PUBLIC) $(LIBDIR)
	install -m 644 lib/api/moe.h $(INCLUDEDIR)
	$(if $(CUDA_SO),install $(if $(filter 1,$(STRIP)),-s) -D -m 644 $(CUDA_SO) $(DESTDIR)$(PREFIX)/lib/moe-toolkit/$(notdir $(CUDA_SO)))
	install -m 644 $(EXAMPLES) $(EXAMPLEDIR)
	$(call fill_in,lib/api/moe.pc.in,$(LIBDIR)/pkgconfig/moe.pc)
	$(call fill_in,lib/api/moe-config.cmake.in,$(LIBDIR)/cmake/moe/moe-config.cmake)
	$(call fill_in,lib/api/moe-config-version.cmake.in,$(LIBDIR)/cmake/moe/moe-config-version.cmake)
	install -d $(BINDIR) $(PROFILEDIR) $(addprefix $(MANDIR)/man,$(sort $(subst .,,$(suffix $(PAGES)))))
	install $(if $(filter 1,$(STRIP)),-s) -m 755 $(PROGRAMS) $(BINDIR)
	install -m 755 $(SCRIPTS) $(BINDIR)
	set -e; for page in $(PAGES); do install -m 644 $$page $(MANDIR)/man$${page##*.}; done
	set -e; for file in $(SHARED_FILES:profiles/%=%); do install -D -m 644 profiles/$$file $(PROFILEDIR)/$$file; done
	install -d $(BASHDIR) $(ZSHDIR) $(FISHDIR)
	set -e; for program in $(notdir $(PROGRAMS) $(SCRIPTS)); do \
	    $(BUILD)/bin/$$program --completion bash >$(BASHDIR)/$$program; \
	    $(BUILD)/bin/$$program --completion zsh >$(ZSHDIR)/_$$program; \
	    $(BUILD)/bin/$$program --completion fish >$(FISHDIR)/$$program.fish; \
	done
# What is installed, for tests that have nothing else.
$(BUILD)/tree/installed: $(PROGRAMS) $(SCRIPTS) $(PUBLIC) $(PAGES) $(EXAMPLES) lib/api/moe.h $(wildcard lib/api/*.in)
	$(Q)rm -rf $(@D)
	$(Q)$(MAKE) -s install DESTDIR= PREFIX=$(abspath $(@D))
	$(Q)touch $@
uninstall:
	rm -f $(patsubst $(BUILD)/bin/%,$(BINDIR)/%,$(PROGRAMS) $(SCRIPTS))
	for page in $(notdir $(PAGES)); do rm -f $(MANDIR)/man$${page##*.}/$$page; done
	rm -f $(patsubst profiles/%,$(PROFILEDIR)/%,$(SHARED_FILES))
	rm -f $(LIBDIR)/libmoe.a $(LIBDIR)/pkgconfig/moe.pc $(LIBDIR)/cmake/moe/moe-config*.cmake $(INCLUDEDIR)/moe.h
	rm -f $(EXAMPLES:tests/clients/%=$(EXAMPLEDIR)/%) $(DESTDIR)$(PREFIX)/lib/moe-toolkit/libmoe-cuda.so
	rm -f $(addprefix $(BASHDIR)/,$(notdir $(PROGRAMS) $(SCRIPTS)))
	rm -f $(addprefix $(ZSHDIR)/_,$(notdir $(PROGRAMS) $(SCRIPTS)))
	rm -f $(patsubst %,$(FISHDIR)/%.fish,$(notdir $(PROGRAMS) $(SCRIPTS)))

.PHONY: deb check-deb check-slurm
deb: all $(PUBLIC)
	@echo "Packages $(if $(USE_CUDA),with CUDA kernels for $(CUDA_ARCHS),without CUDA kernels)"
	@BUILD=$(BUILD) MAKE='$(MAKE)' CC='$(CC)' CUDA=$(if $(USE_CUDA),1,0) CUDA_ARCHS='$(CUDA_ARCHS)' \
	    sh tests/packages/deb.sh $(BUILD)/deb
check-deb: deb
	@sh tests/tools/install-tools.sh debootstrap lintian
	@BUILD=$(BUILD) sh tests/packages/try.sh

# moe-pipeline on a real Slurm: a controller and two nodes on this machine, as root.
check-slurm: all
	@sh tests/tools/install-tools.sh slurm-wlm munge
	@BUILD=$(BUILD) sh tests/packages/slurm.sh

# ---- 64-bit ARM ----------------------------------------------------------------------------------
# Cross-builds the kernels, what they need, and their tests, and runs these under qemu-user: once on a
# processor with the dot-product extension, once on one without (cortex-a53).

NEON_CC ?= aarch64-linux-gnu-gcc
NEON_RUN ?= qemu-aarch64 -L /usr/aarch64-linux-gnu
NEON_DIR := $(BUILD)/neon
NEON_SRC := $(filter-out lib/base/hash.c,$(sort $(wildcard lib/base/*.c))) \
            lib/quant/layout.c $(sort $(wildcard lib/kern/*.c)) tests/kern/test_kernels.c
NEON_OBJ := $(NEON_SRC:%.c=$(NEON_DIR)/%.o)
NEON_FLAGS := -std=c11 -pthread -O2 -g $(WARNINGS) -Werror -ffp-contract=off -fno-math-errno \
              -Ilib -Itests/kern/plain

.PHONY: neon
neon: $(NEON_DIR)/test_kernels
	$(Q)if command -v $(firstword $(NEON_RUN)) >/dev/null; then \
	    $(NEON_RUN) -cpu max $< && $(NEON_RUN) -cpu cortex-a53 $<; \
	else echo "skipped: $(firstword $(NEON_RUN)) is not installed (package qemu-user)"; fi

$(NEON_DIR)/lib/kern/kern_neon_dot.o: VARIANT := -march=armv8.2-a+dotprod
$(call keep_command,$(NEON_DIR)/.flags,$(NEON_CC) $(NEON_FLAGS))
$(NEON_DIR)/%.o: %.c $(NEON_DIR)/.flags
	$(call compile,NEON,$(NEON_CC) $(NEON_FLAGS) $(VARIANT))
$(NEON_DIR)/test_kernels: $(NEON_OBJ)
	$(call link,$(NEON_CC),-lm -lpthread)
-include $(NEON_OBJ:.o=.d)
