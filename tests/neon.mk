# 64-bit ARM.
#
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
