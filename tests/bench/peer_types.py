#!/usr/bin/env python3
"""Tokens per second of files of ggml's types, in place, here and in llama.cpp or a relative of it.

    tests/bench/peer_types.py --peer NAME='DIR [OPTION...]' [--peer ...] [--shares 25,40] FILE.gguf...

DIR holds the peer's llama-bench; the options after it go to it. FILE is a qwen2moe model, as gguf_types.sh makes one of
each type. It is made --hidden times as wide and its feed-forward --ff times by repeating its blocks, in one file at a
time in --work: the values then mean nothing, the work is that of a model of this size. Measured are a prompt of
--prompt-tokens and decoding of --decode-tokens after it, in alternation, --rounds times, printed is the median; then
decoding in a control group with as much memory as --shares percent of the file, the page cache without the file at the
beginning: moe-run gets that memory as --memory, a peer maps the file. There, decoding is of --streamed-tokens, once;
"none": refused, or killed for its memory.
Needs Python 3 with numpy and gguf, and to be root for control groups (cgroup 2, or the memory controller of 1)."""
import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys

import gguf
import numpy

WIDTHS = {
    "embedding_length": "hidden", "attention.head_count": "hidden", "attention.head_count_kv": "hidden",
    "feed_forward_length": "ff", "expert_feed_forward_length": "ff", "expert_shared_feed_forward_length": "ff",
}


def factors(name, hidden, ff):
    """How often a tensor's columns and rows are repeated."""
    if "ffn_down" in name:
        return ff, hidden
    if "ffn_gate_inp" in name:
        return hidden, 1
    if "ffn_gate" in name or "ffn_up" in name:
        return hidden, ff
    if "attn_" in name and "norm" not in name and name.endswith(".weight"):
        return hidden, hidden
    return hidden, 1


def widen(source, target, hidden, ff):
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value, kind = field.contents(), field.types[0]
        width = WIDTHS.get(name.removeprefix(arch + "."))
        if width:
            value *= hidden if width == "hidden" else ff
        writer.add_key_value(name, value, kind, sub_type=field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        columns, rows = factors(tensor.name, hidden, ff)
        times = [1] * tensor.data.ndim
        times[-1] = columns
        if len(times) > 1:
            times[-2] = rows
        writer.add_tensor(tensor.name, numpy.tile(tensor.data, times), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run(command, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    return done.stdout if done.returncode == 0 else None


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
    name = "moe-run"

    def __init__(self, args):
        self.args = args

    def bench(self, file, prompt, decode, runs, memory=None, enter=None):
        a = self.args
        out = run([a.build / "bin/moe-run", "-q", "--bench", "--json", "-t", a.threads, "--prompt-tokens", prompt, "-n",
                   decode, "--bench-runs", runs, *(["--memory", memory] if memory else []), file], preexec_fn=enter)
        figures = json.loads(out) if out else None
        return [figures[f"{what}_tokens_per_s"]["median"] for what in ("prefill", "decode")] if out else [None, None]


class Peer:
    def __init__(self, args, text):
        self.args, (self.name, rest) = args, text.split("=", 1)
        folder, *self.options = shlex.split(rest)
        self.program = pathlib.Path(folder) / "llama-bench"
        self.depth = "--n-depth" in (run([self.program, "--help"]) or "")

    def run(self, file, runs, test, enter):
        out = run([self.program, "-m", file, "-t", self.args.threads, "-ngl", 0, "-r", runs, "-o", "json", *test,
                   *self.options], preexec_fn=enter)
        return statistics.median(json.loads(out)[-1]["samples_ts"]) if out else None

    def bench(self, file, prompt, decode, runs, memory=None, enter=None):
        decoding = ["-n", decode, "-d", prompt] if self.depth else ["-n", 0, "-gp", f"{prompt},{decode}"]
        return [None if memory else self.run(file, runs, ["-p", prompt, "-n", 0], enter),
                self.run(file, runs, ["-p", 0, *decoding], enter)]


def streamed(program, file, share, args):
    size = file.stat().st_size * share // 100
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    group = Group(size)
    try:
        return program.bench(file, args.streamed_prompt, args.streamed_tokens, 1, size, group.enter)[1]
    finally:
        group.close()


def text(values):
    known = [v for v in values if v is not None]
    return f"{statistics.median(known):.4g}" if known else "none"


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE.gguf")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME='DIR [OPTION...]'")
    parser.add_argument("--hidden", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--ff", type=int, default=4, help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="[%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--shares", default="25,40", help="percent of the file [%(default)s]")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="[%(default)s]")
    parser.add_argument("--decode-tokens", type=int, default=32, help="[%(default)s]")
    parser.add_argument("--streamed-prompt", type=int, default=4, help="[%(default)s]")
    parser.add_argument("--streamed-tokens", type=int, default=16, help="[%(default)s]")
    parser.add_argument("--build", type=pathlib.Path, default=root / "build", help="[%(default)s]")
    parser.add_argument("--work", type=pathlib.Path, help="[BUILD/bench/peer]")
    args = parser.parse_args()
    work = args.work or args.build / "bench/peer"
    work.mkdir(parents=True, exist_ok=True)
    programs = [Ours(args)] + [Peer(args, p) for p in args.peer]
    shares = [int(s) for s in args.shares.split(",") if s]
    print("| file | GB | program | prompt | decode |" + "".join(f" at {s}% |" for s in shares))
    print("|---|---|---|---|---|" + "---|" * len(shares), flush=True)
    for source in args.files:
        file = work / source.name
        widen(source, file, args.hidden, args.ff)
        figures = {p: [] for p in programs}
        for _ in range(args.rounds):
            for p in programs:
                figures[p].append(p.bench(file, args.prompt_tokens, args.decode_tokens, 1))
        for p in programs:
            prompt, decode = zip(*figures[p])
            low = [text([streamed(p, file, s, args)]) for s in shares]
            print(f"| {source.stem} | {file.stat().st_size / 1e9:.2f} | {p.name} | {text(prompt)} | {text(decode)} | "
                  + "".join(f"{f} | " for f in low), flush=True)
        file.unlink()


if __name__ == "__main__":
    main()
