#!/usr/bin/env python3
"""The same function, in the same bits, here and in llama.cpp or a relative of it.

    tests/bench/peer.py --peer NAME='DIR [OPTION...]' [--peer ...] [--cells TYPE:HIDDENxFF,...]

DIR holds the peer's llama-bench and llama-perplexity; the options after it go to both (ik_llama.cpp:
'DIR -fmoe 1 -rtr 1'). For every cell the bundled model is widened (tests/tools/widen), written as
GGUF of that type (tests/tools/write_gguf), and a pack is made of that very file, so that all compute
with the same weights. Then, for every number of threads, in alternation: the commands take turns,
--rounds times; each round's figure is the median of what the command itself measured (5 runs of each
after one that does not count), printed are the median, the least and the most of the rounds.

Prefill is a prompt of --prompt-tokens from an empty context; decode is --decode-tokens one by one
after such a prompt. Nats per token are of the second half of windows of --window tokens of one text;
that both scored the same number of tokens is checked. Needs Python 3 and, for the largest default
cell, 35 GB of disk in --work. Files that are there already are used again.
"""
import argparse
import json
import math
import pathlib
import re
import shlex
import statistics
import subprocess
import sys

BITS = {"q8_0": "8", "q4_0": "4"}
RUNS = 5  # what moe-run --bench does


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"peer.py: {shlex.join(map(str, command))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout, done.stderr


class Ours:
    name = "moe-run"

    def __init__(self, args):
        self.args, self.program = args, args.build / "bin/moe-run"

    def speed(self, cell, threads):
        a = self.args
        out, _ = run([self.program, "-q", "--bench", "--json", "-t", threads, "--prompt-tokens", a.prompt_tokens,
                      "-n", a.decode_tokens, cell.pack])
        figures = json.loads(out)
        return [figures[f"{what}_tokens_per_s"]["median"] for what in ("prefill", "decode")]

    def quality(self, cell, text):
        out, _ = run([self.program, "-q", "--json", "--perplexity", text, "--window", self.args.window, cell.pack])
        figures = json.loads(out)
        return figures["nll"], figures["tokens"]


class Peer:
    def __init__(self, args, text):
        self.args, (self.name, rest) = args, text.split("=", 1)
        folder, *self.options = shlex.split(rest)
        self.folder = pathlib.Path(folder)
        self.has_depth = "--n-depth" in "".join(run([self.folder / "llama-bench", "--help"]))

    def bench(self, cell, threads, test):
        out, _ = run([self.folder / "llama-bench", "-m", cell.gguf, "-t", threads, "-ngl", 0, "-r", RUNS, "-o", "json",
                      *test, *self.options])
        return statistics.median(json.loads(out)[-1]["samples_ts"])

    def speed(self, cell, threads):
        prompt, decode = self.args.prompt_tokens, self.args.decode_tokens
        decoding = ["-p", 0, "-n", decode, "-d", prompt] if self.has_depth else ["-p", 0, "-n", 0, "-gp", f"{prompt},{decode}"]
        return [self.bench(cell, threads, ["-p", prompt, "-n", 0]), self.bench(cell, threads, decoding)]

    def quality(self, cell, text):
        window = self.args.window
        command = [self.folder / "llama-perplexity", "-m", cell.gguf, "-f", text, "-c", window, "-b", window,
                   "-ngl", 0, "-t", max(self.args.threads), *self.options]
        for _ in range(10):  # its log loses the last lines now and then
            out = "".join(run(command))
            chunks = re.search(r"over (\d+) chunks", out)
            final = re.search(r"Final estimate: PPL = ([0-9.]+)", out)
            if chunks and final:
                return math.log(float(final[1])), int(chunks[1]) * (window - window // 2 - 1)
        sys.exit(f"peer.py: {self.name}: no perplexity in\n{out[-2000:]}")


class Cell:
    """One model in one type; its files are made where they are missing."""

    def __init__(self, args, text):
        match = re.fullmatch(r"(q8_0|q4_0):(\d+)x(\d+)", text)
        if not match:
            sys.exit(f"peer.py: cell '{text}': q8_0 or q4_0, a colon, and two powers of two with an x between")
        self.type, self.hidden, self.ff = match.groups()
        stem = args.work / f"{self.hidden}x{self.ff}-{self.type}"
        self.gguf, self.pack = stem.with_suffix(".gguf"), stem.with_suffix(".moe")
        tools = args.build / "tests/tools"
        if not self.gguf.exists():
            wide = args.work / "wide"
            run(["rm", "-rf", wide])
            run([tools / "widen", "--hidden", self.hidden, "--heads", self.hidden, "--ff", self.ff, args.model, wide])
            run([tools / "write_gguf", "--type", self.type, wide, self.gguf])
            run(["rm", "-r", wide])
        if not self.pack.exists():
            bits = BITS[self.type]
            run([args.build / "bin/moe-quantize", "-q", "--experts", bits, "--dense", bits, "-o", self.pack, self.gguf])
        self.label = f"{self.type} {self.hidden}x{self.ff}, {self.gguf.stat().st_size / 1e9:.2f} GB"


def spread(values):
    return f"{statistics.median(values):.4g} ({min(values):.4g}-{max(values):.4g})"


def compare_quality(cell, programs, text):
    figures = [p.quality(cell, text) for p in programs]
    for program, (nll, tokens) in zip(programs, figures):
        print(f"| {cell.label} | {program.name} | {nll:.4f} | {tokens} |", flush=True)
    if len({tokens for _, tokens in figures}) != 1:
        sys.exit("peer.py: the programs did not score the same tokens")


def compare_speed(cell, programs, threads, rounds):
    figures = {p: [] for p in programs}
    for _ in range(rounds):
        for p in programs:
            figures[p].append(p.speed(cell, threads))
    for p in programs:
        prefill, decode = zip(*figures[p])
        print(f"| {cell.label} | {threads} | {p.name} | {spread(prefill)} | {spread(decode)} |", flush=True)


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME='DIR [OPTION...]'")
    parser.add_argument("--cells", default="q8_0:8x8,q4_0:8x16,q8_0:16x16,q4_0:16x32", help="[%(default)s]")
    parser.add_argument("--threads", default="1,2", help="[%(default)s]")
    parser.add_argument("--rounds", type=int, default=5, help="[%(default)s]")
    parser.add_argument("--prompt-tokens", type=int, default=256, help="[%(default)s]")
    parser.add_argument("--decode-tokens", type=int, default=64, help="[%(default)s]")
    parser.add_argument("--window", type=int, default=256, help="[%(default)s]")
    parser.add_argument("--text", type=pathlib.Path, default=root / "tests/data/stories.valid.txt", help="[%(default)s]")
    parser.add_argument("--text-bytes", type=int, default=12000, help="of the text, from its beginning [%(default)s]")
    parser.add_argument("--model", type=pathlib.Path, default=root / "build/models/tiny-moe", help="[%(default)s]")
    parser.add_argument("--build", type=pathlib.Path, default=root / "build", help="[%(default)s]")
    parser.add_argument("--work", type=pathlib.Path, help="[BUILD/bench/peer]")
    args = parser.parse_args()
    args.threads = [int(t) for t in args.threads.split(",")]
    args.work = args.work or args.build / "bench/peer"
    args.work.mkdir(parents=True, exist_ok=True)
    programs = [Ours(args)] + [Peer(args, p) for p in args.peer]
    text = args.work / "text.txt"  # without the last line end, which llama-perplexity would drop
    text.write_bytes(args.text.read_bytes()[:args.text_bytes].decode(errors="ignore").rstrip("\n").encode())
    cells = [Cell(args, c) for c in args.cells.split(",")]
    print("| model | program | nats/token | tokens |\n|---|---|---|---|", flush=True)
    for cell in cells:
        compare_quality(cell, programs, text)
    print("\n| model | threads | program | prefill tokens/s | decode tokens/s |\n|---|---|---|---|---|", flush=True)
    for cell in cells:
        for threads in args.threads:
            compare_speed(cell, programs, threads, args.rounds)


main()
