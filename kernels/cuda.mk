# The CUDA backend: whether it is compiled, and for which GPUs.

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
# compile for themselves. ptx75 among CUDA_ARCHS: only the PTX of the first pass. No contraction, as in C.
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
CUDA_LIBS := -L$(CUDA_LIB_DIR) -Wl,-rpath,$(CUDA_LIB_DIR) -lcudart_static -lstdc++ -ldl -lrt -lm
# One shared object for all programs: the machine code is 35 MB.
CUDA_SO := $(BUILD)/lib/moe-toolkit/libmoe-cuda.so
else
GPU_SRC := kernels/gpu_none.c
GPU_OBJ := $(GPU_SRC:%.c=$(BUILD)/%.o)
endif
