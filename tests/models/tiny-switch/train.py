#!/usr/bin/env python3
"""Trains tiny-switch, a small Switch Transformer, on the tasks of tasks.py.

    python3 train.py vocabulary WORK     the Unigram vocabulary (sentencepiece)
    python3 train.py train WORK [STEPS]  the weights; goes on from WORK/checkpoint.pt where there is one
    python3 train.py export WORK         the model's files beside this script, pairs in tests/data
    python3 train.py report              the tables of README.md, of what export wrote

Needs torch, transformers 5, sentencepiece, tokenizers, safetensors. Every random number has a seed; sums in another order
(another processor, another PyTorch) give other weights.
"""
import json
import math
import os
import re
import sys
import time
from collections import Counter

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

import tasks

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "..", "data")
PAD, END, UNKNOWN = 0, 1, 2
SENTINELS, PIECES = 8, 1272
STEPS, BATCH, RATE, WARM, COOL = 2000, 2600, 3e-3, 150, 700  # BATCH: tokens, padding included
BLOCK = 10  # steps on pairs made together
BALANCE, SMALL_LOGITS = 0.006, 1e-4
CONFIG = dict(
    vocab_size=PIECES + SENTINELS, d_model=96, d_kv=16, num_heads=6, d_ff=96, num_layers=4, num_decoder_layers=4,
    num_experts=16, num_sparse_encoder_layers=2, num_sparse_decoder_layers=4, expert_capacity=24, router_bias=False,
    router_jitter_noise=0.0, router_dtype="float32", router_ignore_padding_tokens=False, dropout_rate=0.0,
    relative_attention_num_buckets=32, relative_attention_max_distance=64, layer_norm_epsilon=1e-6,
    dense_act_fn="relu", tie_word_embeddings=True, pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD,
    n_positions=512)


# ---- Vocabulary ------------------------------------------------------------------------------------------------

def vocabulary(work):
    """SentencePiece's Unigram pieces with bytes for the rest, and T5's sentinels behind them, the first one last."""
    import sentencepiece
    maker = tasks.Maker(tasks.documents(DATA, "calib"), "vocabulary")
    with open(f"{work}/text.txt", "w", encoding="utf-8") as f:
        for texts in maker.docs.values():
            f.writelines(t + "\n" for t in texts)
        for _ in range(6000):
            pair = maker.any()
            f.write(pair["source"].replace("<extra_id_", "") + "\n" + pair["target"].replace("<extra_id_", "") + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=f"{work}/text.txt", model_prefix=f"{work}/pieces", model_type="unigram", vocab_size=PIECES,
        byte_fallback=True, split_digits=True, character_coverage=1.0, pad_id=PAD, eos_id=END, unk_id=UNKNOWN,
        bos_id=-1, pad_piece="<pad>", eos_piece="</s>", unk_piece="<unk>", num_threads=1, max_sentence_length=20000)
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(open(f"{work}/pieces.model", "rb").read())
    tok = Tokenizer(models.Unigram([(p.piece, p.score) for p in proto.pieces], unk_id=UNKNOWN, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([
        normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap), normalizers.Strip(left=False, right=True),
        normalizers.Replace(Regex(" {2,}"), "\u2581")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    tok.add_special_tokens([AddedToken(t, normalized=False) for t in ("<pad>", "</s>", "<unk>")])
    tok.add_special_tokens([AddedToken(f"<extra_id_{i}>", normalized=False) for i in reversed(range(SENTINELS))])
    tok.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", END)])
    assert tok.get_vocab_size() == CONFIG["vocab_size"], tok.get_vocab_size()
    tok.save(f"{work}/tokenizer.json")


# ---- The model, faster -----------------------------------------------------------------------------------------

def experts_by_rows(self, hidden, chosen, weights):
    """What the experts' own forward computes, without asking which are hit, and without padding. chosen
    [row][1][expert] of 0 and 1."""
    chosen = chosen.view(len(hidden), -1)
    order = torch.where(chosen.any(-1), chosen.argmax(-1), self.num_experts).argsort(stable=True)
    counts = chosen.sum(0).tolist()
    order = order[:sum(counts)]
    parts = [self[f"expert_{e}"].wo(torch.relu(self[f"expert_{e}"].wi(x)))
             for e, x in enumerate(hidden[order].split(counts))]
    return torch.zeros_like(hidden).index_put((order,), torch.cat(parts) * weights[order])


def new_model():
    config = SwitchTransformersConfig(**CONFIG)
    config._attn_implementation = "eager"
    return SwitchTransformersForConditionalGeneration(config)


class Routers:
    """The routers of a model: their logits in the latest pass; rows of padding, which would all go to one expert, go
    to none."""

    def __init__(self, model):
        self.seen, self.masks = [], {}
        for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
            for module in stack.modules():
                if type(module).__name__.endswith("Top1Router"):
                    module.register_forward_hook(lambda m, a, out, s=name: self._decided(s, out))

    def _decided(self, stack, out):
        self.seen.append((stack, out[2]))
        return (out[0] * self.masks[stack][..., None], *out[1:])

    def loss(self):
        """Load balancing over the rows that are no padding, and small logits."""
        total = 0
        for stack, logits in self.seen:
            logits = logits[self.masks[stack]]
            p = torch.softmax(logits, -1)
            share = torch.nn.functional.one_hot(p.argmax(-1), p.shape[-1]).float().mean(0)
            total = total + BALANCE * (share * p.mean(0)).sum() * p.shape[-1]
            total = total + SMALL_LOGITS * (logits.logsumexp(-1) ** 2).mean()
        self.seen.clear()
        return total


def padded(lists, value):
    n = max(map(len, lists))
    return torch.tensor([ids + [value] * (n - len(ids)) for ids in lists])


def batches(maker, tok):
    """Many pairs in batches of like length, in any order."""
    pairs = [maker.any() for _ in range(600)]
    pairs = [(tok.encode(p["source"]).ids[:128], tok.encode(p["target"]).ids[:64]) for p in pairs]
    pairs.sort(key=lambda p: (len(p[0]), len(p[1])))
    out, batch, longest = [], [], 0
    for pair in pairs:
        longest = max(longest, len(pair[1]))
        if batch and (len(batch) + 1) * (len(pair[0]) + longest) > BATCH:
            out.append(batch)
            batch, longest = [], len(pair[1])
        batch.append(pair)
    maker.random.shuffle(out)
    return out


def loss_of(model, routers, batch):
    source, target = padded([p[0] for p in batch], PAD), padded([p[1] for p in batch], -100)
    routers.masks.update(encoder=source != PAD, decoder=target != -100)
    return model(input_ids=source, attention_mask=(source != PAD).long(), labels=target, use_cache=False).loss


def rate_at(step, steps):
    """Rises for WARM steps, falls slowly, then to nothing over the last COOL steps."""
    slow = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / 3200))
    return RATE * slow * min(1, (step + 1) / WARM, (steps - step) / COOL)


def train(work, steps):
    torch.set_num_threads(1)
    torch.manual_seed(21)
    type(new_model().encoder.block[1].layer[-1].mlp.experts).forward = experts_by_rows
    torch.manual_seed(21)
    model, tok = new_model().train(), Tokenizer.from_file(f"{work}/tokenizer.json")
    for name, p in model.named_parameters():
        if "classifier" in name:
            p.data.normal_(0, 0.02)
    routers = Routers(model)
    matrices = [p for p in model.parameters()]
    optimizer = torch.optim.AdamW(matrices, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    maker, first, queue, seen, begun = tasks.Maker(tasks.documents(DATA, "calib"), 0), 0, [], [], time.time()
    path = f"{work}/checkpoint.pt"
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    for step in range(first, steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, steps)
        if step % BLOCK == 0 or not queue:
            maker.random.seed(f"step {step}")
            queue = batches(maker, tok)
            assert len(queue) >= BLOCK
        loss = loss_of(model, routers, queue.pop())
        (loss + routers.loss()).backward()
        torch.nn.utils.clip_grad_norm_(matrices, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen.append(float(loss.detach()))
        if (step + 1) % 50 == 0:
            print(f"{step + 1} loss {sum(seen) / len(seen):.4f} rate {rate_at(step, steps):.5f} "
                  f"{(time.time() - begun) / 60:.1f} min", flush=True)
            seen = []
        if (step + 1) % 100 == 0:
            torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict(), step=step + 1), path + ".new")
            os.replace(path + ".new", path)


# ---- What is committed -----------------------------------------------------------------------------------------

def write_json(name, value, **options):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, **options)


def load():
    model = SwitchTransformersForConditionalGeneration.from_pretrained(HERE, dtype=torch.float32,
                                                                       attn_implementation="eager")
    return model.eval(), Tokenizer.from_file(os.path.join(HERE, "tokenizer.json"))


def export(work):
    """The weights in float16, and the pairs to choose and to judge by."""
    model = new_model()
    model.load_state_dict(torch.load(f"{work}/checkpoint.pt")["model"])
    tensors = {k: v.half().contiguous().clone() for k, v in model.state_dict().items()
               if k != "lm_head.weight" and "embed_tokens" not in k}
    save_file(tensors, os.path.join(HERE, "model.safetensors"), metadata={"format": "pt"})
    write_json("config.json", CONFIG | dict(
        model_type="switch_transformers", architectures=["SwitchTransformersForConditionalGeneration"],
        is_encoder_decoder=True, feed_forward_proj="relu", is_gated_act=False, encoder_sparse_step=2,
        decoder_sparse_step=1, torch_dtype="float16"), indent=1)
    write_json("generation_config.json", dict(decoder_start_token_id=PAD, eos_token_id=END, pad_token_id=PAD,
                                              max_new_tokens=64), indent=1)
    write_json("tokenizer_config.json", dict(
        bos_token=None, eos_token="</s>", pad_token="<pad>", unk_token="<unk>", extra_ids=SENTINELS), indent=1)
    with open(f"{work}/tokenizer.json", encoding="utf-8") as f:
        write_json("tokenizer.json", json.load(f), separators=(",", ":"))
    for part in ("calib", "valid"):
        with open(f"{DATA}/pairs.{part}.jsonl", "w", encoding="utf-8") as f:
            f.writelines(json.dumps(p, ensure_ascii=False) + "\n" for p in tasks.held_out(DATA, part, 50))
    model, tok = load()
    write_json("reference.json", reference(model, tok), separators=(",", ":"))


@torch.no_grad()
def reference(model, tok):
    """Sources of each task with their ids, what the float16 weights give greedily in float32, and first logits."""
    out = []
    for pair in tasks.held_out(DATA, "valid", 50)[::25]:
        ids = tok.encode(pair["source"]).ids
        greedy = answers(model, tok, [pair])[0]
        logits = model(torch.tensor([ids]), decoder_input_ids=torch.tensor([[PAD]])).logits[0, 0]
        best = logits.topk(10)
        out.append(dict(task=pair["task"], source=pair["source"], ids=ids, greedy=greedy,
                        text=tok.decode(greedy), top=[[int(i), round(float(x), 4)] for x, i in zip(*best)]))
    return out


@torch.no_grad()
def answers(model, tok, pairs):
    """Greedy ids of each, with the end token where it came. Padding follows a source, so that it takes no capacity."""
    source = padded([tok.encode(p["source"]).ids for p in pairs], PAD)
    got = model.generate(source, attention_mask=(source != PAD).long(), max_new_tokens=48, do_sample=False)
    ids = [row[1:] for row in got.tolist()]
    return [row[:row.index(END) + 1] if END in row else row for row in ids]


def bigrams(text):
    words = re.findall(r"[a-z0-9]+", text.lower())
    return Counter(zip(words, words[1:]))


def rouge2(wanted, got):
    """The balanced one of recall and precision of pairs of words."""
    w, g = bigrams(wanted), bigrams(got)
    both = sum((w & g).values())
    return 2 * both / max(1, sum(w.values()) + sum(g.values()))


@torch.no_grad()
def report():
    """Loss, exact answers and Rouge-2 of each task; the experts' use; paths through the decoder."""
    model, tok = load()
    pairs = tasks.held_out(DATA, "valid", 50)
    said = {task: answers(model, tok, [p for p in pairs if p["task"] == task]) for task in tasks.TASKS}
    routers, by_task, uses, paths = Routers(model), {}, {}, Counter()
    for pair in pairs:
        batch = [(tok.encode(pair["source"]).ids, tok.encode(pair["target"]).ids)]
        loss = float(loss_of(model, routers, batch))
        chosen = [(stack, logits[0].argmax(-1)) for stack, logits in routers.seen]
        routers.seen.clear()
        for layer, (stack, experts) in enumerate(chosen):
            uses.setdefault((layer, pair["task"]), Counter()).update(experts.tolist())
        paths.update(zip(*(experts.tolist() for stack, experts in chosen if stack == "decoder")))
        row = by_task.setdefault(pair["task"], [0, 0, 0, 0])
        row[0] += loss * len(batch[0][1])
        row[1] += len(batch[0][1])
        got = tok.decode([i for i in said[pair["task"]].pop(0) if i != END], skip_special_tokens=False)
        row[2] += got.strip() == pair["target"]
        row[3] += rouge2(pair["target"], got)
    print("| task | nats/token | exact | Rouge-2 |\n|---|---|---|---|")
    for task, (loss, n, exact, rouge) in by_task.items():
        print(f"| {task} | {loss / n:.3f} | {exact * 2}% | {rouge / 50:.3f} |")
    print_experts(uses)
    print_paths(paths)


def print_experts(uses):
    """A layer's experts: the busiest's share, the effective number (2^entropy), and how much a token's task says about
    its expert (mutual information over the experts' entropy)."""
    def entropy(counter):
        n = sum(counter.values())
        return -sum(c / n * math.log2(c / n) for c in counter.values() if c)

    print("\n| MoE layer | used | busiest | effective number | known from the task |\n|---|---|---|---|---|")
    for layer in sorted({l for l, _ in uses}):
        of_tasks = [uses[layer, t] for t in tasks.TASKS]
        whole = sum(of_tasks, Counter())
        n, h = sum(whole.values()), entropy(whole)
        within = sum(sum(c.values()) / n * entropy(c) for c in of_tasks)
        print(f"| {layer} | {len(whole)} | {max(whole.values()) / n:.1%} | {2 ** h:.1f} | {(h - within) / h:.0%} |")


def print_paths(paths):
    """Paths are the experts of all decoder layers for a token. A power law is a line in logarithms: its slope, and how
    much of the variance it explains beside an exponential."""
    counts = sorted(paths.values(), reverse=True)
    n, top = sum(counts), max(1, len(counts) // 5)
    print(f"\n{n} tokens took {len(counts)} paths; the commonest 20% of those {top / len(counts):.0%}: "
          f"{sum(counts[:top]) / n:.1%} of tokens; paths taken once: {counts.count(1)}")
    kept = [c for c in counts if c > 1]
    y = torch.tensor([math.log(c) for c in kept])
    for name, x in (("power law", [math.log(i + 1) for i in range(len(kept))]), ("exponential", range(len(kept)))):
        x = torch.tensor([float(v) for v in x])
        slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
        rest = y - y.mean() - slope * (x - x.mean())
        print(f"{name}: slope {float(slope):.4f}, R2 {1 - float((rest ** 2).sum() / ((y - y.mean()) ** 2).sum()):.4f} "
              f"over {len(kept)} ranks")


def main():
    what = sys.argv[1]
    torch.set_num_threads(1)
    if what == "report":
        report()
        return
    work = sys.argv[2]
    os.makedirs(work, exist_ok=True)
    if what == "vocabulary":
        vocabulary(work)
    elif what == "train":
        train(work, int(sys.argv[3]) if len(sys.argv) > 3 else STEPS)
    elif what == "export":
        export(work)


if __name__ == "__main__":
    main()
