"""Python over libmoe by cffi (PyPI): builds a module from the installed header, then streams an answer.

    pip install cffi
    python3 moe_cffi.py model.moe "Once upon a time" [MEGABYTES]

The declarations are the header's own: its preprocessed text, between its first and last of them.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile

import cffi


def ask_pkg_config(*options):
    return shlex.split(subprocess.check_output(["pkg-config", *options, "moe"], text=True))


def build(directory):
    """Compiles the module _moe in a directory; returns it."""
    flags = ask_pkg_config("--cflags")
    header = subprocess.run([os.environ.get("CC", "cc"), "-E", "-P", *flags, "-include", "moe/moe.h", "-xc", "/dev/null"],
                            check=True, capture_output=True, text=True).stdout
    declarations = header[header.index("int moe_api(void);"):]
    ffi = cffi.FFI()
    ffi.cdef(re.sub(r"\b_Bool\b", "bool", declarations) +
             '\nextern "Python" int take_text(void *, const char *, size_t);')
    ffi.set_source("_moe", "#include <moe/moe.h>", extra_compile_args=flags,
                   extra_link_args=ask_pkg_config("--libs", "--static"))
    ffi.compile(tmpdir=directory)
    sys.path.insert(0, directory)
    import _moe
    return _moe


def main():
    path, text = sys.argv[1:3]
    megabytes = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    with tempfile.TemporaryDirectory() as directory:
        module = build(directory)
        ffi, lib = module.ffi, module.lib
        error = ffi.new("struct moe_error *")

        def check(status):
            if status != 0:
                sys.exit(ffi.string(error.text).decode())

        @ffi.def_extern()
        def take_text(ctx, data, n):
            sys.stdout.buffer.write(ffi.buffer(data, n))
            sys.stdout.buffer.flush()
            return 0

        model = ffi.new("struct moe **")
        check(lib.moe_open(model, path.encode(), ffi.new("struct moe_options *", {"memory_bytes": megabytes << 20}), error))
        how = ffi.new("struct moe_answering *", lib.moe_answering_default())
        how.max_tokens, how.temperature, how.text = 60, 0, lib.take_text
        check(lib.moe_ask(model[0], text.encode(), how, ffi.NULL, error))
        lib.moe_close(model[0])


main()
