# The Makefile, from a clean clone: what `make` makes, every target that `make help` names, what is not made again,
# and what is said where something is missing. The clone takes the objects of this build where it would compile, and
# in it the scripts that make calls say their names, except for the demo, the packages and the installation.
. tests/cli/lib.sh
clone=$tmp/clone
real=$(cd "$BUILD" && pwd)
cc=${CC:-cc}
cxx=${CXX:-c++}
# Of the tests' sources only those stay that the Makefile names, and one.
mkdir "$clone"
{ git -c safe.directory="$PWD" ls-files -c -o --exclude-standard 2>/dev/null ||
    find . -path ./build -prune -o -path './build-*' -prune -o -type f -print; } |
    grep -v -e '^\.*/*tests/fixtures/' -e '^\.*/*tests/fuzz/corpus/' | tar -T - -cf - 2>/dev/null | tar -xf - -C "$clone"
threaded=$(sed -n '/^THREADED/,/[^\\]$/p' tests/check.mk | tr -cs 'a-z_' '\n' | grep '^test_')
(cd "$clone" && for test in tests/unit/test_*.c tests/gpu/test_*.c; do
    echo "$threaded test_base" | grep -qw "$(basename "$test" .c)" || rm "$test"
done)

# Compilers that take an object of this build, or compile without optimization.
for name in cc c++; do
    [ "$name" = cc ] && compiler=$cc || compiler=$cxx
    cat >"$tmp/$name" <<END
#!/bin/sh
for word; do
    case \$last in -c) source=\$word ;; -o) object=\$word ;; esac
    case \$word in -c | -o | -*) last=\$word ;; *) last= ;; esac
done
case \$object in
*/shim/*.o) made=$real/shim/\$source.o ;;
*.o) made=$real/\${source%.c}.o ;;
*) made= ;;
esac
if [ -n "\$source" ] && [ -f "\$made" ]; then
    cp "\$made" "\$object" && echo "\$source" >>"$tmp/taken"
else
    exec $compiler "\$@" \${source:+-O0}
fi
END
    chmod +x "$tmp/$name"
done

made() { # TARGET OR KNOB...: as somebody types it, with the compilers above
    run env -u MAKEFLAGS -u MAKELEVEL -u BUILD -u CFLAGS -u CUDA -u CUDA_ARCHS -u NVCC -u NVCC_OPT -u LEAVE_OUT MAKEFLAGS= \
        make -C "$clone" --no-print-directory CC="$tmp/cc" CXX="$tmp/c++" "$@"
}
programs() { ls "$clone/build/bin" 2>/dev/null | tr '\n' ' '; }
all_programs='moe-calibrate moe-pipeline moe-plan moe-profile moe-quantize moe-run moe-serve '
compiles_nothing() { ! grep -q -E '^(  [A-Z]|\[[0-9])' "$out"; }

made CC=no-such-compiler
expect_exit 2 "without a compiler, make fails"
expect_stderr_like "There is no C compiler 'no-such-compiler' here*" "... and says so first"
check "... in one line, beside make's own" [ "$(grep -v -c '^make' "$err")" = 1 ]
made CFLAGS=--no-such-option
expect_stderr_like "*does not find every library that the programs need*" "what does not compile is said before it is tried"
made -j2
expect_exit 0 "plain make"
check "... makes the programs, all of them" [ "$(programs)" = "$all_programs" ]
check "... by compiling what is there" [ "$(wc -l <"$tmp/taken")" -ge "$(find lib -name "*.c" | wc -l)" ]
made -j2 WERROR=1
check "... which make WERROR=1 takes as they are" compiles_nothing
touch "$clone/lib/base/par.c"
made demo
expect_stdout_like '*\[1/*\] CC *lib/base/par.c*\[2/*Once upon a time*make check*' "make demo counts what it makes, and tells a story"
made demo
check "... and makes nothing twice" compiles_nothing
made -s
check "make -s is silent" [ ! -s "$out" ]
made -n MPI=0
made -n MPI=1 MPICC=true
check "programs that look for libmoe-mpi.so are linked again" grep -q -e '-o build/bin/moe-run .*-rpath' "$out"
made -n MPI=0
check "... and so are those that do not" grep -q -e '-o build/bin/moe-run ' "$out"
rm "$clone/lib/api/moe.c"
made build/libmoe.a
check "a source that is gone is gone from the library" [ -z "$(ar t "$clone/build/libmoe.a" | grep -x moe.o)" ]
cp lib/api/moe.c "$clone/lib/api/"

# Kernels, with a toolkit and a GPU that are none.
mkdir -p "$tmp/cuda/bin" "$tmp/cuda/include" "$tmp/cuda/lib64" "$tmp/gpu" "$tmp/no-gpu"
touch "$tmp/cuda/bin/nvcc" "$tmp/cuda/include/cublas_v2.h"
chmod +x "$tmp/cuda/bin/nvcc"
echo 'case $1 in -L) echo "GPU 0: of paper" ;; *) echo 8.6 ;; esac' >"$tmp/gpu/nvidia-smi"
echo 'echo "No devices were found"; exit 6' >"$tmp/no-gpu/nvidia-smi"
chmod +x "$tmp/gpu/nvidia-smi" "$tmp/no-gpu/nvidia-smi"
kernels() { # DIRECTORY OF nvidia-smi, ARGUMENT OF make...
    smi=$1
    shift
    PATH=$tmp/$smi:$PATH made -n NVCC="$tmp/cuda/bin/nvcc" "$@"
    grep -c 'NVCC kernels' "$out"
}
left_out() { grep -q '^CUDA kernels are left out: ' "$out"; }
check "a toolkit without a GPU compiles no kernels" [ "$(kernels no-gpu)" = 0 ]
PATH=$tmp/no-gpu:$PATH made -j2 NVCC="$tmp/cuda/bin/nvcc"
check "... and the build says so" left_out
check "CUDA=0 compiles none with a GPU" [ "$(kernels gpu CUDA=0)" = 0 ]
check "a GPU has kernels compiled" [ "$(kernels gpu)" -gt 5 ]
check "... for itself" grep -q 'code=\[sm_86\]' "$out"
check "CUDA=1 has them compiled without one" [ "$(kernels no-gpu CUDA=1)" -gt 5 ]
check "... for all kinds" grep -q 'sm_75.*sm_80.*sm_120' "$out"
check "so has make deb" [ "$(kernels gpu deb)" -gt 5 ]
check "... for all kinds" grep -q 'sm_75.*sm_80.*sm_120' "$out"
check "... or without them" [ "$(kernels gpu deb CUDA=0)" = 0 ]
made NVCC="$tmp/none" CUDA=1
expect_stderr_like '*CUDA=1 but no nvcc or no cuBLAS*' "CUDA=1 without a toolkit is refused"

# Installed, and taken away; packages.
made install DESTDIR="$tmp/there" PREFIX=/usr CUDA=0
expect_exit 0 "make install"
check "... installs the programs" [ "$(ls "$tmp/there/usr/bin" | tr '\n' ' ')" = "$all_programs" ]
made uninstall DESTDIR="$tmp/there" PREFIX=/usr CUDA=0
expect_exit 0 "make uninstall"
check "... takes all away" [ -z "$(find "$tmp/there" -type f)" ]
if command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null; then
    DPKG_DEB_COMPRESSOR_TYPE=none made deb CUDA=0 # compressing takes ten seconds
    expect_stdout_like '*Packages without CUDA kernels*' "make deb says what is in the packages"
    check "... and makes two" [ "$(ls "$clone"/build/deb/*.deb | wc -l)" = 2 ]
else
    skip "make deb" "no dpkg-dev here"
fi

# Every target that help names, and those in its text. The scripts that they call say so and do nothing.
(cd "$clone" && for script in tests/run.sh tests/check-*.sh tests/bench/*.sh tests/torture/*.sh tests/packages/*.sh \
    tests/tools/install-tools.sh tests/fuzz/coverage.sh; do
    # shellcheck disable=SC2016 # for the script
    echo 'echo "called: $0 $*"' >"$script"
done)
mkdir "$tmp/tools"
echo 'echo "called: clang-format version 14. $*"' >"$tmp/tools/clang-format"
chmod +x "$tmp/tools/clang-format"
PATH=$tmp/tools:$PATH
made help
expect_exit 0 "make help"
named=$(sed -n 's/^ *make \([a-z][a-z -]*[a-z]\)  .*/\1/p' "$out" | tr '\n' ' ')
check "... names targets" [ "$(echo "$named" | wc -w)" -gt 25 ]
called() { grep -q "^called: " "$out"; }
for target in $named torture-stop format-check uninstall; do
    case $target in
    demo | deb | install | uninstall | help | clean) continue ;; # above and below
    # Other compilers and sanitizers, of which .ci/run has most at work; what pip installs or has to have.
    neon | fuzz* | asan | tsan | check-clients | second-model)
        made -n "$target"
        expect_exit 0 "make -n $target"
        continue
        ;;
    esac
    made -j2 "$target"
    expect_exit 0 "make $target"
    case $target in
    shim | shim-programs | check-gpu) ;;
    *) check "... calls what it says" called ;;
    esac
done
made clean
check "make clean leaves nothing" [ ! -e "$clone/build" ]

# Without rights to install: one line, with the command for somebody who has them.
printf '#!/bin/sh\necho 1000\n' >"$tmp/tools/id"
printf '#!/bin/sh\nexit 1\n' | tee "$tmp/tools/sudo" "$tmp/tools/dpkg" >"$tmp/tools/apt-get"
chmod +x "$tmp"/tools/*
made demo CC=no-such-compiler
env CC=no-such-compiler sh "$clone/tests/tools/install-deps.sh" >"$out" 2>"$err" </dev/null
expect_stderr_like 'Only an administrator can install *: apt-get update && apt-get install *gcc*libjansson-dev*' "without rights to install, the administrator's command"
expect_stderr_lines 1 "... in one line"
finish
