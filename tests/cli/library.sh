# The library as others take it: from an installed tree alone ($BUILD/tree) the example chats, pkg-config, CMake and
# Python (cffi) find it, and only the public interface has names.
. tests/cli/lib.sh
case $BUILD in /*) tree=$BUILD/tree ;; *) tree=$PWD/$BUILD/tree ;; esac
if ! command -v pkg-config >/dev/null || nm "$bin/moe-run" 2>/dev/null | grep -q '__asan_init\|__tsan_init'; then
    skip "the library" "pkg-config is not installed, or the build is sanitized"
    finish
fi
pack
example=$tree/share/doc/moe-toolkit/examples
PKG_CONFIG_PATH=$tree/lib/pkgconfig
export PKG_CONFIG_PATH
check "pkg-config knows its version" [ "$(pkg-config --modversion moe)" = "$("$bin/moe-run" --version | sed -n '1s/.* //p')" ]
nm -g --defined-only "$tree/lib/libmoe.a" | sed -n 's/.* [A-Z] //p' | sort >"$tmp/names"
grep -o '\<moe_[a-z_]*(' "$tree/include/moe/moe.h" | tr -d '(' | sort -u >"$tmp/declared"
check "the library defines what its header declares, and nothing else" cmp "$tmp/names" "$tmp/declared"
sed -n 's/^\.Fn \(moe_[a-z_]*\).*/\1/p' man/libmoe.3 | sort -u >"$tmp/in_page"
check "its page has every function" cmp "$tmp/in_page" "$tmp/declared"
printf '#include <moe/moe.h>\nint api = MOE_API;\n' >"$tmp/header.cc"
# shellcheck disable=SC2046 # options
check "the header is C++, too" "${CXX:-c++}" -std=c++11 -Wall -Wextra -Werror -fsyntax-only $(pkg-config --cflags moe) "$tmp/header.cc"

# shellcheck disable=SC2046
run ${CC:-cc} -std=c11 -Wall -Wextra -Werror "$example/chat.c" $(pkg-config --cflags --libs --static moe) -o "$tmp/chat"
expect_exit 0 "the example builds by pkg-config"
"$bin/moe-run" "$tiny" -p 'Once upon a time' --temp 0 -n 200 --memory 60M >"$tmp/expected" 2>/dev/null
echo >>"$tmp/expected"
code=0
echo 'Once upon a time' | "$tmp/chat" "$tiny" 60 >"$out" 2>"$err" || code=$?
expect_exit 0 "... and answers"
check "... as moe-run does" cmp "$out" "$tmp/expected"
expect_stderr_like '*"generated_tokens": 200,*' "... with its statistics"
run "$tmp/chat" "$tiny" 2
error_line 1 "chat: $tiny: a budget of 2.00 MiB is too small: the smallest that works is *" "a budget that is too small"
run "$tmp/chat" "$tmp/none.moe"
error_line 1 "chat: $tmp/none.moe: cannot open: *" "a pack that is not there"

if command -v cmake >/dev/null; then
    mkdir "$tmp/project"
    cat >"$tmp/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.10)
project(chat C)
find_package(moe 0.1 REQUIRED)
add_executable(chat chat.c)
target_link_libraries(chat moe::moe)
END
    cp "$example/chat.c" "$tmp/project"
    run cmake -S "$tmp/project" -B "$tmp/made" -DCMAKE_PREFIX_PATH="$tree"
    expect_exit 0 "CMake finds it"
    run cmake --build "$tmp/made"
    expect_exit 0 "... and builds the example"
    echo 'Once upon a time' | "$tmp/made/chat" "$tiny" 60 >"$out" 2>"$err"
    check "... which answers" cmp "$out" "$tmp/expected"
else
    skip "CMake" "it is not installed"
fi

python=${PYTHON:-python3}
if "$python" -c 'import cffi' 2>/dev/null; then
    "$bin/moe-run" "$tiny" -p 'Once upon a time' --temp 0 -n 60 --memory 60M >"$tmp/expected" 2>/dev/null
    run "$python" "$example/moe_cffi.py" "$tiny" 'Once upon a time' 60
    expect_exit 0 "Python streams an answer by cffi"
    check "... the same" cmp "$out" "$tmp/expected"
else
    skip "Python" "cffi is not installed"
fi
finish
