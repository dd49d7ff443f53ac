# The wire over MPI (ranks/wire.h), where there is an MPI: found as mpicc, MPI=1 asks for it and MPI=0 does not.
#
# A shared object of its own, which programs load only where mpirun or srun has started them: so they start
# without MPI, and packages, which leave it out, do not depend on one.
MPICC ?= $(shell command -v mpicc 2>/dev/null)
ifeq ($(MPI),auto)
# Not in packages, and only where it compiles for the same kind of machine.
USE_MPI := $(if $(PACKAGES),,$(if $(MPICC),$(filter $(shell $(CC) -dumpmachine 2>/dev/null),\
    $(shell $(MPICC) -dumpmachine 2>/dev/null))))
else
USE_MPI := $(filter 1,$(MPI))
endif
ifneq ($(USE_MPI),)
ifeq ($(MPICC),)
$(error MPI=1 but no mpicc: install Open MPI (libopenmpi-dev) or MPICH, set MPICC, or leave MPI=auto)
endif
MPI_SO := $(BUILD)/lib/moe-toolkit/libmoe-mpi.so
MPI_OBJ := $(BUILD)/lib/ranks/mpi/wire_mpi.o
# Its headers are the system's: their warnings are not ours.
$(MPI_OBJ): lib/ranks/mpi/wire_mpi.c $(BUILD)/.flags
	$(call compile,MPICC,$(MPICC) $(ALL_CFLAGS) $(STRICT) -Wno-undef)
$(MPI_SO): $(MPI_OBJ) $(BUILD)/lib/base/err.o
	$(Q)mkdir -p $(@D)
	$(call link,$(MPICC) $(LDFLAGS) -shared -Wl$(COMMA)-soname$(COMMA)$(@F) -Wl$(COMMA)-z$(COMMA)defs,$(filter -fsanitize%,$(LIBS)))
-include $(MPI_OBJ:.o=.d)
endif
