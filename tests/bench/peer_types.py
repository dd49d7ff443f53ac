#!/usr/bin/env python3
"""Tokens per second of files of ggml's types, here and in llama.cpp or a relative of it.

    tests/bench/peer_types.py --ggml LIB [--ggml LIB] --peer NAME='DIR [OPTION...] [-- OPTION...]' [--peer ...] TYPE...

A file of each TYPE is made in --work by shape_gguf.py: --shape's layers, as many as take --gb, all of their matrices of
that type; LIB is the first that knows it. moe-quantize makes a pack of it, code for code. --make does only this; else
files that are there are used and removed afterwards. Measured are, --rounds times in turn, the file in place, the pack,
and each peer with the file: a prompt of --prompt-tokens and decoding of --decode-tokens, here after the prompt, by a
peer's llama-bench in DIR from an empty context; printed are the medians. Then, once, moe-run from its start to the end of one
token, the file in the page cache, and the memory that it takes; and decoding of --streamed-tokens in a control
group with as much memory as --shares percent of the file, the page cache without it at the beginning: moe-run gets that
memory as --memory and draws its tokens evenly, as llama-bench does; a peer maps the file, with the options behind "--"
where there are some. "none": refused, killed for its memory, or not done in --patience seconds.
--depths measures decoding behind texts instead, everything in memory, once for each of --kv: moe-run's f16, q8, q4 and
f32 are a peer's f16, q8_0, q4_0 and f32.
Needs Python 3 with numpy and gguf, and to be root for control groups (cgroup 2, or the memory controller of 1)."""
import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import time

import shape_gguf


class Group:
    """A control group of some memory, without swap."""

    def __init__(self, size):
        second = pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists()
        self.path = pathlib.Path("/sys/fs/cgroup" if second else "/sys/fs/cgroup/memory") / f"moe-peer-{os.getpid()}"
        self.path.mkdir()
        (self.path / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(size))
        if second:
            (self.path / "memory.swap.max").write_text("0")

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def close(self):
        self.path.rmdir()


class Ours:
    def __init__(self, args, name):
        self.args, self.name = args, name

    def run(self, file, *options, enter=None):
        return output([self.args.build / "bin/moe-run", "-q", "-t", self.args.threads, *options, self.model(file)],
                      self.args.patience, enter)

    def model(self, file):
        return file.with_suffix(".moe") if self.name == "pack" else file

    def bench(self, file, prompt, decode, *options):
        out = read(self.run(file, "--bench", "--json", "--bench-runs", 1, "--prompt-tokens", prompt, "-n", decode,
                            *options))
        return [out[f"{what}_tokens_per_s"]["median"] for what in ("prefill", "decode")] if out else [None, None]

    def behind(self, file, depth, kv):
        return self.bench(file, depth, self.args.decode_tokens, "--kv", kv)[1]

    def answer(self, file, n, *options, enter=None):
        """Statistics of n tokens behind a letter, the text, and how long all of it took."""
        stats = self.args.work / "stats.json"
        began = time.monotonic()
        text = self.run(file, "-p", "a", "-n", n, "--ignore-eos", "-c", 64, "--stats-json", stats, *options,
                        enter=enter)
        took = time.monotonic() - began
        return None if text is None else json.loads(stats.read_text()) | {"text": text, "seconds": took}

    def streamed(self, file, size, enter):
        even = "--temp", 100, "--top-k", 0, "--top-p", 1, "--min-p", 0
        out = self.answer(file, self.args.streamed_tokens, *even, "--memory", size, enter=enter)
        return out["decode_tokens_per_s"] if out else None


class Peer:
    def __init__(self, args, text):
        self.args, (self.name, rest) = args, text.split("=", 1)
        rest, _, mapped = rest.partition(" -- ")
        folder, *self.options = shlex.split(rest)
        self.mapped = shlex.split(mapped) or self.options
        self.program = pathlib.Path(folder) / "llama-bench"
        self.env = os.environ | {"LD_LIBRARY_PATH": folder}
        self.deep = b"--n-depth" in (output([self.program, "--help"], 10, None, self.env) or b"")

    def run(self, file, options, *test, enter=None):
        out = read(output([self.program, "-m", file, "-t", self.args.threads, "-ngl", 0, "-r", 1, "-o", "json", *test,
                           *options], self.args.patience, enter, self.env))
        return [statistics.median(t["samples_ts"]) for t in out] if out else [None, None]

    def bench(self, file, prompt, decode):
        return self.run(file, self.options, "-p", prompt, "-n", decode)

    def behind(self, file, depth, kv):
        kind = {"q8": "q8_0", "q4": "q4_0"}.get(kv, kv)
        n = self.args.decode_tokens
        test = ["-n", n, "-d", depth] if self.deep else ["-n", 0, "-gp", f"{depth},{n}"]
        return self.run(file, self.options, "-p", 0, "-ctk", kind, "-ctv", kind, *test)[-1]

    def streamed(self, file, size, enter):
        return self.run(file, self.mapped, "-p", 0, "-n", self.args.streamed_tokens, enter=enter)[0]


def output(command, seconds, enter, env=None):
    """What a command writes to standard output; None where it fails."""
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, timeout=seconds, preexec_fn=enter,
                              env=env)
        return done.stdout if done.returncode == 0 else None
    except subprocess.TimeoutExpired:
        return None


def read(text):
    return json.loads(text) if text else None


def streamed(program, file, share, args):
    for path in both(file):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    size = file.stat().st_size * share // 100
    group = Group(size)
    try:
        return program.streamed(file, size, group.enter)
    finally:
        group.close()


def both(file):
    """A file, and its pack where there is one."""
    return [path for path in (file, file.with_suffix(".moe")) if path.exists()]


def median(values):
    known = [v for v in values if v is not None]
    if not known:
        return "none"
    value = statistics.median(known)
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def made(args, kind):
    """The file of a type, and its pack beside it, which gives the same greedy tokens, also within a quarter of it."""
    file = args.work / f"{kind}-{args.gb}.gguf"
    pack = file.with_suffix(".moe")
    if not file.exists():
        ggml = next((g for g in args.ggml if kind in g.types), None)
        if not ggml:
            sys.exit(f"peer_types.py: no --ggml knows {kind}")
        shape_gguf.write(ggml, args.shape, file.with_suffix(".part"), kind, kind, args.layers, args.gb)
        file.with_suffix(".part").rename(file)
    if not args.file_only and not pack.exists():
        subprocess.run([args.build / "bin/moe-quantize", "-q", file, "-o", pack], check=True)
        within = "--memory", file.stat().st_size // 4
        runs = [Ours(args, name).answer(file, 8, "--temp", 0, *memory)
                for name in ("in place", "pack") for memory in ((), within)]
        if not runs[0] or len({r["text"] for r in runs if r}) != 1:
            sys.exit(f"peer_types.py: {kind}: the file, the pack and a quarter of the memory do not give the same text")
    return file


def print_row(names, columns):
    print("| " + " | ".join([*names, *(", ".join(c) for c in columns)]) + " |", flush=True)


def measure_type(file, kind, programs, shares, args):
    figures = {p: [] for p in programs}
    for _ in range(args.rounds):
        for p in programs:
            figures[p].append(p.bench(file, args.prompt_tokens, args.decode_tokens))
    sizes = [path.stat().st_size / 1e9 for path in both(file)]
    columns = [[median(f[i] for f in figures[p]) for p in programs] for i in range(2)]
    firsts = [p.answer(file, 1) or {"seconds": None, "peak_rss_bytes": None} for p in programs if isinstance(p, Ours)]
    columns += [[median([f["seconds"]]) for f in firsts], [f"{(f['peak_rss_bytes'] or 0) / 1e9:.2f}" for f in firsts]]
    columns += [[median([streamed(p, file, s, args)]) for p in programs] for s in shares]
    print_row([kind.upper(), ", ".join(f"{s:.2f}" for s in sizes)], columns)


def measure_depths(file, kind, programs, args):
    for kv in args.kv.split(","):
        columns = [[median([p.behind(file, depth, kv)]) for p in programs] for depth in args.depths]
        print_row([kind.upper(), kv], columns)


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="+", metavar="TYPE")
    parser.add_argument("--ggml", action="append", required=True, type=shape_gguf.Ggml, metavar="LIB")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME='DIR [OPTION...] [-- OPTION...]'")
    parser.add_argument("--only", action="append", metavar="NAME", help="measure these programs; 'in place' and 'pack' are ours")
    parser.add_argument("--keep", action="store_true", help="leave the files where they are")
    parser.add_argument("--shape", type=pathlib.Path, default=root / "profiles/shapes/qwen3-30b-a3b.json",
                        help="[%(default)s]")
    parser.add_argument("--gb", type=float, default=1, help="[%(default)s]")
    parser.add_argument("--layers", type=int, help="instead of --gb")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--file-only", action="store_true", help="no pack")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="[%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--shares", default="25,40", help="percent of the file [%(default)s]")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="[%(default)s]")
    parser.add_argument("--decode-tokens", type=int, default=32, help="[%(default)s]")
    parser.add_argument("--streamed-tokens", type=int, default=8, help="[%(default)s]")
    parser.add_argument("--depths", default="", help="positions, as 2048,8192")
    parser.add_argument("--kv", default="f16,q8,q4,f32", help="[%(default)s]")
    parser.add_argument("--patience", type=int, default=120, help="[%(default)s]")
    parser.add_argument("--build", type=pathlib.Path, default=root / "build", help="[%(default)s]")
    parser.add_argument("--work", type=pathlib.Path, help="[BUILD/bench/peer]")
    args = parser.parse_args()
    args.work = args.work or args.build / "bench/peer"
    args.work.mkdir(parents=True, exist_ok=True)
    args.gb = None if args.layers else args.gb
    args.depths = [int(d) for d in args.depths.split(",") if d]
    shares = [int(s) for s in args.shares.split(",") if s]
    args.file_only = args.file_only or bool(args.depths)
    programs = [Ours(args, name) for name in (["in place"] if args.file_only else ["in place", "pack"])]
    programs += [Peer(args, p) for p in args.peer]
    programs = [p for p in programs if not args.only or p.name in args.only]
    if not args.make:
        heads = ["kv", *(f"behind {d}" for d in args.depths)] if args.depths else [
            "GB: file, pack", "prompt", "decode", "first token, s", "peak, GB", *(f"at {s}%" for s in shares)]
        print(f"Figures: {', '.join(p.name for p in programs)}\n")
        print_row(["type", *heads], [])
        print("|---" * (len(heads) + 1) + "|")
    for kind in args.types:
        file = made(args, kind)
        if args.make:
            continue
        if args.depths:
            measure_depths(file, kind, programs, args)
        else:
            measure_type(file, kind, programs, shares, args)
        for path in [] if args.keep else both(file):
            path.unlink()


if __name__ == "__main__":
    main()
