#!/usr/bin/env python3
"""How many experts of a layer the busiest of several ranks computes for a token, by where experts are.

    tests/bench/placement.py TRACE...

A trace is a file of JSON lines, {"layers": [[expert, ...], ...]} for each token, or a table of comma-separated turn,
phase, step, layer, slot and expert. The first half of its tokens says how frequent experts are and which are chosen
together, the second half is counted; every STEP-th layer is. Dealt out by number; by frequency, as lib/sched/share.c
does; by frequency with the most frequent half on two ranks each, which that does where memory allows; and so that
experts that are chosen together are apart. The last column is what no placement goes below.
"""
import json
import sys

import numpy as np

STEP = 4


def read(path):
    """[tokens][layers][top_k]"""
    if path.endswith(".jsonl"):
        with open(path, encoding="utf-8") as file:
            return np.array([json.loads(line)["layers"] for line in file])
    tokens = {}
    with open(path, encoding="utf-8") as file:
        for row in (line.split(",") for line in file if line[0].isdigit()):
            tokens.setdefault(tuple(row[:3]), {}).setdefault(int(row[3]), []).append(int(row[5]))
    n_layers = max(max(t) for t in tokens.values()) + 1
    top_k = max(len(e) for t in tokens.values() for e in t.values())
    whole = [t for t in tokens.values() if len(t) == n_layers and all(len(e) == top_k for e in t.values())]
    return np.array([[t[layer] for layer in range(n_layers)] for t in whole])


def deal(uses, n, cost):
    """Experts by falling use, each to the rank with room where it costs least."""
    owner, dealt, work = np.full(len(uses), -1), np.zeros(n), np.zeros(n)
    for e in np.argsort(-uses, kind="stable"):
        best = min((r for r in range(n) if dealt[r] < len(uses) / n), key=lambda r: (cost(e, owner == r), work[r]))
        owner[e] = best
        dealt[best] += 1
        work[best] += uses[e] + 1
    return owner


def second_ranks(uses, n, owner):
    second, work = np.full(len(uses), -1), np.zeros(n)
    for e in np.argsort(-uses, kind="stable")[: len(uses) // 2]:
        second[e] = min((r for r in range(n) if r != owner[e]), key=lambda r: work[r])
        work[second[e]] += uses[e]
    return second


def busiest(tokens, n, owner, second=None):
    total = 0
    for token in tokens:
        work = [0] * n
        for e in token:
            if second is None or second[e] < 0:
                work[owner[e]] += 1
        for e in token:
            if second is not None and second[e] >= 0:
                work[owner[e] if work[owner[e]] <= work[second[e]] else second[e]] += 1
        total += max(work)
    return total / len(tokens)


for path in sys.argv[1:]:
    trace = read(path)
    n_experts, half = trace.max() + 1, len(trace) // 2
    print(f"{path}: {len(trace)} tokens, {trace.shape[1]} layers, {n_experts} experts, {trace.shape[2]} a token")
    for n in 2, 4, 8:
        sums = np.zeros(4)
        layers = range(0, trace.shape[1], STEP)
        for layer in layers:
            known, counted = trace[:half, layer], trace[half:, layer]
            chosen = np.zeros((half, n_experts))
            np.put_along_axis(chosen, known, 1, 1)
            uses, together = chosen.sum(0), chosen.T @ chosen
            frequent = deal(uses, n, lambda e, there: 0)
            apart = deal(uses, n, lambda e, there: together[e][there].sum())
            sums += (busiest(counted, n, np.arange(n_experts) % n), busiest(counted, n, frequent),
                     busiest(counted, n, frequent, second_ranks(uses, n, frequent)), busiest(counted, n, apart))
        print(f"{n} ranks:", *(f"{s / len(layers):.2f}" for s in sums), -(-trace.shape[2] // n))
