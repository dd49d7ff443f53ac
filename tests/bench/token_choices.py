#!/usr/bin/env python3
"""What a token alone says of the experts it will choose: shares that were named, and an LRU cache with what they load.

    token_choices.py MODEL_DIR TEXT_DIR      (TEXT_DIR/{stories,math,code}.{calib,valid}.txt; of Qwen2-MoE's architecture)

10 parts of 400 tokens of each kind are judged, 20 of the other text counted. Predictions arrive in time for each layer and
are loaded into one cache for all layers, of so many tokens' demand. Needs PyTorch and transformers 5; a minute.
"""
import collections
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PART, JUDGED, COUNTED, DEMAND = 400, 10, 20, 2


def choices(model, tokenizer, path, n_parts):
    """Of each part its ids and the experts chosen: [tokens][layers][top_k]."""
    ids = tokenizer(path.read_text())["input_ids"]
    for part in (ids[i:i + PART] for i in range(0, min(len(ids), n_parts * PART), PART)):
        with torch.no_grad():
            scores = model(torch.tensor([part]), output_router_logits=True, use_cache=False).router_logits
        yield part, torch.stack([s.topk(model.config.num_experts_per_tok, -1).indices for s in scores], 1).tolist()


def most_used(parts, top_k):
    """For each token the experts of each layer that it used the most."""
    counts = {}
    for ids, chosen in parts:
        for token, layers in zip(ids, chosen):
            for mine, experts in zip(counts.setdefault(token, [collections.Counter() for _ in layers]), layers):
                mine.update(experts)
    return {token: [[e for e, _ in c.most_common(top_k)] for c in layers] for token, layers in counts.items()}


def judge(parts, table, demand):
    named, loads = collections.Counter(), {}
    n = again = 0
    for ids, chosen in parts:
        last = {}
        for t, token in enumerate(ids):
            before = chosen[t - 1]
            if t > 0:
                n += sum(map(len, chosen[t]))
                again += sum(map(len, chosen[t])) * (token in last)
                for how, said in (("before", before), ("last", last.get(token, before)), ("again", last.get(token, [])),
                                  ("table", table.get(token, before))):
                    named[how] += sum(len(set(a) & set(b)) for a, b in zip(said, chosen[t]))
            last[token] = chosen[t]
    for how in "none", "last", "table":
        cache, misses, loaded = collections.OrderedDict(), 0, 0
        for ids, chosen in parts:
            last = {}
            for t, token in enumerate(ids):
                said = {"none": {}, "last": last, "table": table}[how].get(token, []) if t > 0 else []
                for layer, experts in enumerate(chosen[t] if t > 0 else []):
                    for ahead, wanted in (True, said[layer] if said else []), (False, experts):
                        for key in ((layer, e) for e in wanted):
                            if key in cache:
                                if not ahead:
                                    cache.move_to_end(key)
                                continue
                            misses, loaded, cache[key] = misses + (not ahead), loaded + 1, True
                            if len(cache) > demand:
                                cache.popitem(last=False)
                last[token] = chosen[t]
        loads[how] = misses, loaded
    return {h: v / (again if h == "again" else n) for h, v in named.items()}, again / n, loads


def main():
    source, texts = sys.argv[1], pathlib.Path(sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager", dtype=torch.float32).eval()
    tokenizer, c = AutoTokenizer.from_pretrained(source), model.config
    for kind in "stories", "math", "code":
        table = most_used(choices(model, tokenizer, texts / f"{kind}.calib.txt", COUNTED), c.num_experts_per_tok)
        parts = list(choices(model, tokenizer, texts / f"{kind}.valid.txt", JUDGED))
        named, again, loads = judge(parts, table, DEMAND * c.num_hidden_layers * c.num_experts_per_tok)
        print(f"{kind}: token before {named['before']:.0%}, last use {named['last']:.0%} ({named['again']:.0%} of the {again:.0%} "
              f"used before), table {named['table']:.0%}")
        for how in "last", "table":
            print(f"  {how}: {1 - loads[how][0] / loads['none'][0]:.0%} fewer misses, "
                  f"{loads[how][1] / loads['none'][1] - 1:.0%} more loads")


main()
