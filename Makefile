# moe-toolkit: build, test, install.
#
#   make                 the programs, in build/bin
#   make demo            install what is missing, build, run the bundled model: start here; deps only installs
#   make check           install what is missing, build and run every test that needs no GPU
#   make quick           a part of the tests, three minutes on 2 cores, for the edit loop
#   make check-rooms check-headers check-man check-format   single checks of make check
#   make check-clients   the server with clients of others (openai, anthropic, litellm, mcp, lm-eval, ...), from PyPI
#   make asan tsan       builds under sanitizers, in their own directories, and their tests
#   make fuzz            the fuzzers, FUZZ_SECONDS each, FUZZ_SEED draws (needs clang); fuzz-X: one of them
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
#   make second-model    another trained model, for figures that shall not rest on one (tests/models/second; needs PyTorch)
#   make check-mpi       several ranks of Open MPI on this machine: their tokens, what they refuse, 50 kills
#   make check-slurm     moe-pipeline and ranks on a Slurm of two nodes on this machine (root), one of which dies
#   make format          clang-format over all sources; format-check only looks
#   make clean           remove the build directory
#   make help            this text
#
# tests/README.md says which of these catches which kind of mistake.
#
# Knobs: CC, C, NVCC, NVCC_OPT, CFLAGS, WERROR=1, SANITIZE=address,undefined|thread, BUILD=dir,
#        PREFIX=/usr/local, DESTDIR=, V=1 (show commands), CUDA=auto|0|1 (auto: kernels where nvidia-smi finds
#        a GPU, and in packages where there is a toolkit), CUDA_ARCHS='80 90', MPI=auto|0|1 (auto: ranks where mpicc is),
#        STRIP=0 (install programs as they are built, for debuggers),
#        of make asan and tsan: LEAVE_OUT='test_x ...', JOBS=N (at a time, of demo too), SHIM=0|1 (asan: with the
#        tests of kernels/), KERNELS_OF=dir (the processors' kernels as another build has them)

CC ?= cc
AR ?= ar
PREFIX ?= /usr/local
CUDA ?= auto
MPI ?= auto
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
# Copies are checked against the sizes of what they write to, and returns for overwritten stacks. Addresses of
# programs are drawn, and tables that are not written once they run are read-only.
ifeq ($(SANITIZE),)
ALL_CFLAGS += -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fstack-protector-strong
endif
HARDENED := -pie -Wl,-z,relro,-z,now
LIBS := -ljansson -lmicrohttpd -lpcre2-8 -lutf8proc -lzstd -lz -lyaml -luring -lm -lpthread

# Not among the flags that objects are kept by: those of make are as good for make check.
ifeq ($(WERROR),1)
STRICT := -Werror
NVCC_STRICT := -Werror all-warnings -Xcompiler -Werror
endif
ifneq ($(SANITIZE),)
ALL_CFLAGS += -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer
# What the address sanitizer finds when it is read or written is not checked once more before: that takes
# half of compiling.
ifneq ($(findstring address,$(SANITIZE)),)
ALL_CFLAGS += -fno-sanitize=null,object-size,pointer-overflow
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
# The backend has its own copy of what it takes of the library, and exports only its interface.
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
include kernels/cuda.mk
include lib/ranks/mpi/mpi.mk
ifneq ($(CUDA_SO)$(MPI_SO),)
# Installed programs look for shared objects beside them, those of the tests where they were built.
BESIDE := -Wl,-rpath,'$$ORIGIN/../lib/moe-toolkit'
WHERE_BUILT := -Wl,-rpath,$(abspath $(BUILD)/lib/moe-toolkit)
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
build_all_but = $(sort $(filter-out $(foreach room,unit kern gpu,$(UNBUILT:%=tests/$(room)/%.c)),$(1)))
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
# A checkpoint that says what a table tells it, for scripts.
MAKE_SCRIPT := $(BUILD)/tests/tools/make_script
# Clients of a server, for scripts.
HTTP_LOAD := $(BUILD)/tests/tools/http_load
# Starts a service, for scripts.
SERVICE_MANAGER := $(BUILD)/tests/tools/service_manager
# A disk with faults, where libfuse is.
BAD_DISK := $(if $(wildcard /usr/include/fuse3/fuse.h),$(BUILD)/tests/tools/bad_disk)
# A library that lets calls fail, for scripts of tests/torture.
FAIL_CALLS := $(BUILD)/tests/tools/fail_calls.so
TOOL_SRC := $(filter-out $(patsubst %,tests/tools/%.c,run_unchecked serve_unchecked bad_disk fail_calls slow_ranks),\
            $(sort $(wildcard tests/tools/*.c tests/bench/*.c)))
TOOLS := $(TOOL_SRC:%.c=$(BUILD)/%)

# Fixtures with the weights that are drawn for them.
DRAWN := $(BUILD)/fixtures
# The bundled models with their weights unpacked.
PLANES := $(BUILD)/tests/tools/planes
MODELS := $(patsubst tests/%.zst,$(BUILD)/%,$(wildcard tests/models/*/model.safetensors.zst))

# Programs that are scripts: -s would have nothing to strip.
SCRIPTS := $(BUILD)/bin/moe-pipeline

# The rules that make brings along: looking for each file through them takes ten times as long as all the rest of a start.
MAKEFLAGS += -r
# What make does without a target, wherever the first rule is.
.DEFAULT_GOAL := all
.PHONY: all lib tests tools help
all: $(PROGRAMS) $(SCRIPTS) $(MODELS) $(MPI_SO)
	$(if $(LEFT_OUT),@echo "CUDA kernels are left out: the toolkit is here but no GPU (CUDA=1 compiles them; CUDA=0 does not ask)")
lib: $(LIBMOE)
tests: $(TESTS) $(MODELS) $(UNCHECKED) $(DERIVE) $(WIDEN) $(MAKE_STATIC) $(MAKE_SCRIPT) $(HTTP_LOAD) $(SERVICE_MANAGER) $(BUILD)/tree/installed $(DRAWN)/all
tools: $(TOOLS) $(BAD_DISK) $(FAIL_CALLS)
help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

$(SCRIPTS): $(BUILD)/bin/%: cmd/% Makefile
	$(Q)mkdir -p $(@D)
	$(Q)sed 's|@VERSION@|$(VERSION)|' $< >$@.new && chmod 755 $@.new && mv $@.new $@

# ---- Compilation ------------------------------------------------------------------------------

# Only the kernel variants get instruction-set flags; moe_kern_select picks at run time.
# Debuggers know lines there, not variables: where each lies in all that is inlined takes a third of compiling.
LINES_ONLY := $(if $(findstring -g,$(CFLAGS)),-g1)
ARCH := $(shell $(CC) -dumpmachine 2>/dev/null)
ifneq ($(filter x86_64%,$(ARCH)),)
$(BUILD)/lib/kern/kern_avx2.o: VARIANT := $(LINES_ONLY) -mavx2 -mfma -mf16c
$(BUILD)/lib/kern/kern_avx512.o: VARIANT := $(LINES_ONLY) -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl \
                                            -mavx512dq -mavx512vnni -mprefer-vector-width=512
endif
# Those of another build, in a sanitized one (CI's): compiling them again would take a fifth of it.
ifneq ($(KERNELS_OF),)
$(BUILD)/lib/kern/kern_avx%.o: $(KERNELS_OF)/lib/kern/kern_avx%.o
	$(Q)mkdir -p $(@D)
	$(Q)cp $< $@
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
$(BUILD)/lib/serve/http_routes.o: lib/serve/page.html

# An archive is made again when its list changes: a file that is gone, a backend in the place of gpu_none.c; and so is
# what is linked with it, which looks for shared objects where there are some.
$(call keep_command,$(BUILD)/.parts,$(LIB_OBJ) $(CMD_SHARED_OBJ) $(CUDA_SO) $(MPI_SO))
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

# The manual as text, which programs contain.
PAGES := $(sort $(wildcard man/*.[1-9]))
MANUAL := $(BUILD)/man/pages.txt
$(MANUAL): man/text.awk $(PAGES)
	$(Q)mkdir -p $(@D)
	$(Q)awk -f man/text.awk $(PAGES) >$@.new && mv $@.new $@
$(BUILD)/cmd/cli_manual.o: $(MANUAL)
$(BUILD)/cmd/cli_manual.o: VARIANT := -Icmd -DCLI_MANUAL='"$(MANUAL)"'

# The texts that moe-quantize --method best looks at where none are given.
BUNDLED := $(BUILD)/texts/bundled.txt
$(BUNDLED): tests/data/stories.calib.txt tests/data/math.calib.txt tests/data/code.calib.txt
	$(Q)mkdir -p $(@D)
	$(Q)cat $^ >$@.new && mv $@.new $@
$(BUILD)/cmd/moe-quantize.o: $(BUNDLED)
$(BUILD)/cmd/moe-quantize.o: VARIANT := -Icmd -DBUNDLED_TEXTS='"$(BUNDLED)"'

AS_NEEDED := -Wl,--as-needed
$(BUILD)/bin/%: $(BUILD)/cmd/%.o $(LIBCMD) $(LIBMOE) $(CUDA_SO)
	$(call link,$(CC) $(LDFLAGS) $(HARDENED) $(AS_NEEDED),$(LIBS) $(BESIDE) -ledit)
$(UNCHECKED): $(BUILD)/%: $(BUILD)/%.o $(LIBCMD) $(LIBMOE) $(CUDA_SO)
	$(call link,$(CC) $(LDFLAGS) $(AS_NEEDED),$(LIBS) $(WHERE_BUILT) -ledit)
# Also where programs are built and the tests' library is not installed.
$(PLANES): $(PLANES).o $(LIBMOE) $(CUDA_SO)
	$(call link,$(CC) $(LDFLAGS) $(AS_NEEDED),$(LIBS) $(WHERE_BUILT))
$(TESTS) $(filter-out $(PLANES),$(TOOLS)): $(BUILD)/%: $(BUILD)/%.o $(LIBMOE) $(CUDA_SO)
	$(call link,$(CC) $(LDFLAGS) $(AS_NEEDED),$(LIBS) $(WHERE_BUILT) -lcmocka)
$(FAIL_CALLS): tests/tools/fail_calls.c
	$(Q)mkdir -p $(@D)
	$(call link,$(CC) -std=c11 -O1 -g $(WARNINGS) -fno-builtin -fPIC -shared,-ldl)

$(BUILD)/tests/tools/bad_disk.o: VARIANT := -D_FILE_OFFSET_BITS=64
$(BUILD)/tests/tools/bad_disk: $(BUILD)/tests/tools/bad_disk.o
	$(call link,$(CC) $(LDFLAGS),-lfuse3 -lpthread $(filter -fsanitize%,$(LIBS)))

-include $(LIB_OBJ:.o=.d) $(GPU_OBJ:.o=.d) $(CMD_MAIN:%.c=$(BUILD)/%.d) $(CMD_SHARED_OBJ:.o=.d) \
         $(TEST_SRC:%.c=$(BUILD)/%.d) $(TOOL_SRC:%.c=$(BUILD)/%.d) $(UNCHECKED:%=%.d) $(BAD_DISK:%=%.d)
.SECONDARY:

# The tests of the code need not be fast themselves: this compiles in little more than half the time.
$(BUILD)/tests/unit/%.o $(BUILD)/tests/gpu/%.o: VARIANT := $(if $(filter -O1 -O3,$(CFLAGS)),-Og) -DDRAWN='"$(DRAWN)"' \
    -DBUNDLED='"$(BUILD)/models"'

include tests/fixtures.mk

include tests/shim.mk

include tests/fuzz.mk

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
	@echo "Quantizing $(BUILD)/models/tiny-moe to 4 bits: $(DEMO_PACK)"
	@$(BUILD)/bin/moe-quantize -q -o $(DEMO_PACK) --experts 4 $(BUILD)/models/tiny-moe
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

include tests/check.mk

include tests/bench.mk

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
# Where systemd looks for services.
UNITDIR := $(DESTDIR)$(PREFIX)/lib/systemd/system
UNITS := moe-serve@.service moe-serve@.socket
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
PUBLIC_LIBS := $(filter-out -lmicrohttpd -lz,$(LIBS))
fill_in = sed 's|@PREFIX@|$(PREFIX)|; s|@LIB@|$(LIB)|; s|@UP@|../../$(shell echo '$(LIB)' | sed 's|[^/][^/]*|..|g')|; s|@VERSION@|$(VERSION)|; s|@LIBS@|$(PUBLIC_LIBS)|; \
               s|@CUDA:\([^@]*\)@|$(if $(CUDA_SO),\1)|' $(1) >$(2)

install: all $(PUBLIC)
	install -d $(LIBDIR)/pkgconfig $(LIBDIR)/cmake/moe $(INCLUDEDIR) $(EXAMPLEDIR)
	install -m 644 $(PUBLIC) $(LIBDIR)
	install -m 644 lib/api/moe.h $(INCLUDEDIR)
	$(if $(CUDA_SO),install $(if $(filter 1,$(STRIP)),-s) -D -m 644 $(CUDA_SO) $(DESTDIR)$(PREFIX)/lib/moe-toolkit/$(notdir $(CUDA_SO)))
	$(if $(MPI_SO),install $(if $(filter 1,$(STRIP)),-s) -D -m 644 $(MPI_SO) $(DESTDIR)$(PREFIX)/lib/moe-toolkit/$(notdir $(MPI_SO)))
	install -m 644 $(EXAMPLES) $(EXAMPLEDIR)
	$(call fill_in,lib/api/moe.pc.in,$(LIBDIR)/pkgconfig/moe.pc)
	$(call fill_in,lib/api/moe-config.cmake.in,$(LIBDIR)/cmake/moe/moe-config.cmake)
	$(call fill_in,lib/api/moe-config-version.cmake.in,$(LIBDIR)/cmake/moe/moe-config-version.cmake)
	install -d $(BINDIR) $(PROFILEDIR) $(addprefix $(MANDIR)/man,$(sort $(subst .,,$(suffix $(PAGES)))))
	install $(if $(filter 1,$(STRIP)),-s) -m 755 $(PROGRAMS) $(BINDIR)
	install -m 755 $(SCRIPTS) $(BINDIR)
	set -e; for page in $(PAGES); do install -m 644 $$page $(MANDIR)/man$${page##*.}; done
	set -e; for file in $(SHARED_FILES:profiles/%=%); do install -D -m 644 profiles/$$file $(PROFILEDIR)/$$file; done
	install -d $(UNITDIR) $(BASHDIR) $(ZSHDIR) $(FISHDIR)
	sed 's|@PREFIX@|$(PREFIX)|' cmd/systemd/moe-serve@.service.in >$(UNITDIR)/moe-serve@.service
	install -m 644 cmd/systemd/moe-serve@.socket $(UNITDIR)
	set -e; for program in $(notdir $(PROGRAMS) $(SCRIPTS)); do \
	    $(BUILD)/bin/$$program --completion bash >$(BASHDIR)/$$program; \
	    $(BUILD)/bin/$$program --completion zsh >$(ZSHDIR)/_$$program; \
	    $(BUILD)/bin/$$program --completion fish >$(FISHDIR)/$$program.fish; \
	done
# What is installed, for tests that have nothing else.
$(BUILD)/tree/installed: $(PROGRAMS) $(SCRIPTS) $(PUBLIC) $(PAGES) $(EXAMPLES) lib/api/moe.h $(wildcard lib/api/*.in cmd/systemd/*)
	$(Q)rm -rf $(@D)
	$(Q)$(MAKE) -s install DESTDIR= PREFIX=$(abspath $(@D))
	$(Q)touch $@
uninstall:
	rm -f $(patsubst $(BUILD)/bin/%,$(BINDIR)/%,$(PROGRAMS) $(SCRIPTS))
	for page in $(notdir $(PAGES)); do rm -f $(MANDIR)/man$${page##*.}/$$page; done
	rm -f $(patsubst profiles/%,$(PROFILEDIR)/%,$(SHARED_FILES))
	rm -f $(LIBDIR)/libmoe.a $(LIBDIR)/pkgconfig/moe.pc $(LIBDIR)/cmake/moe/moe-config*.cmake $(INCLUDEDIR)/moe.h
	rm -f $(EXAMPLES:tests/clients/%=$(EXAMPLEDIR)/%) $(addprefix $(DESTDIR)$(PREFIX)/lib/moe-toolkit/,libmoe-cuda.so libmoe-mpi.so)
	rm -f $(UNITS:%=$(UNITDIR)/%)
	rm -f $(addprefix $(BASHDIR)/,$(notdir $(PROGRAMS) $(SCRIPTS)))
	rm -f $(addprefix $(ZSHDIR)/_,$(notdir $(PROGRAMS) $(SCRIPTS)))
	rm -f $(patsubst %,$(FISHDIR)/%.fish,$(notdir $(PROGRAMS) $(SCRIPTS)))

.PHONY: deb check-deb check-mpi check-slurm
deb: all $(PUBLIC)
	@echo "Packages $(if $(USE_CUDA),with CUDA kernels for $(CUDA_ARCHS),without CUDA kernels)"
	@BUILD=$(BUILD) MAKE='$(MAKE)' CC='$(CC)' CUDA=$(if $(USE_CUDA),1,0) CUDA_ARCHS='$(CUDA_ARCHS)' \
	    sh tests/packages/deb.sh $(BUILD)/deb
check-deb: deb
	@sh tests/tools/install-tools.sh debootstrap lintian
	@BUILD=$(BUILD) sh tests/packages/try.sh

# Ranks of a real MPI, on this machine.
check-mpi:
	@sh tests/tools/install-tools.sh libopenmpi-dev openmpi-bin
	@$(MAKE) --no-print-directory all
	@BUILD=$(BUILD) sh tests/packages/mpi.sh

# moe-pipeline on a real Slurm: a controller and two nodes on this machine, as root.
check-slurm: all
	@sh tests/tools/install-tools.sh slurm-wlm munge
	@BUILD=$(BUILD) sh tests/packages/slurm.sh

include tests/neon.mk
