# The CUDA backend on the processor.
#
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
              $(filter -fsanitize% -fno-sanitize% -fno-omit%,$(ALL_CFLAGS)) \
              $(if $(SANITIZE),-DMOE_FEW_TILES)
SHIM_LIBS := $(LIBS) -lstdc++
GPU_TEST_SRC := $(call build_all_but,$(wildcard tests/gpu/test_*.c))
GPU_TESTS := $(GPU_TEST_SRC:%.c=$(SHIM_DIR)/%)
SHIM_TOOLS := $(SHIM_DIR)/tests/bench/bench_gpu $(SHIM_DIR)/tests/tools/gpu_here
# Kernels that the tests have for themselves.
GPU_TEST_CU := $(sort $(wildcard tests/gpu/*.cu))

.PHONY: shim shim-programs
shim: $(DRAWN)/all $(MODELS) $(SHIM_OBJ) $(GPU_TESTS) $(if $(filter bench-gpu.sh,$(UNBUILT)),,$(SHIM_TOOLS))
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
