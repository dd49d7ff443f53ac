#!/usr/bin/env python3
"""Trains a layer that drafts (MTP) for a model in Qwen2-MoE's architecture, to measure drafts with (draft.sh).

    train_draft.py MODEL_DIR OUT_DIR [--tokens N] [--epochs N] [--seed N] TEXT...

The layer is built as DeepSeek-V3's (arXiv:2412.19437, 2.2): norms of the next token's embedding and of the model's last
state, joined, through a layer like the model's own, and its head. The model stays as it is; the layer begins as a copy of the
model's last one and learns what the model itself would say one token further (cross entropy against its
probabilities), on the texts and on N tokens that the model writes on from them. OUT_DIR becomes a checkpoint of the
model with that layer behind it. Needs PyTorch and transformers 5; some ten minutes on one core.
"""
import argparse
import copy
import json
import pathlib
import shutil

import safetensors.torch
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

LENGTH = 256
BATCH = 12


class Drafter(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.layer = copy.deepcopy(model.model.layers[-1])
        norm, hidden = model.model.norm, model.config.hidden_size
        self.token_norm, self.state_norm, self.norm = (copy.deepcopy(norm) for _ in range(3))
        for part in self.token_norm, self.state_norm:
            torch.nn.init.ones_(part.weight)
        self.join = torch.nn.Linear(2 * hidden, hidden, bias=False)
        with torch.no_grad():
            self.join.weight.normal_(0, 0.02)
            self.join.weight[:, :hidden] += 0.5 * torch.eye(hidden)
            self.join.weight[:, hidden:] += 0.5 * torch.eye(hidden)

    def forward(self, inner, states, tokens):
        """States behind each position, whose next token is `tokens`: [batch][n][hidden]."""
        n = tokens.shape[1]
        x = self.join(torch.cat([self.token_norm(inner.embed_tokens(tokens)), self.state_norm(states)], -1))
        positions = torch.arange(n)[None]
        mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]
        x = self.layer(x, position_embeddings=inner.rotary_emb(x, positions), attention_mask=mask,
                       position_ids=positions)
        return self.norm(x[0] if isinstance(x, tuple) else x)

    def tensors(self, at):
        own = {"enorm": self.token_norm, "hnorm": self.state_norm, "eh_proj": self.join,
               "shared_head.norm": self.norm}
        named = {f"{k}.weight": m.weight for k, m in own.items()}
        for name, value in self.layer.state_dict().items():
            if name == "mlp.experts.gate_up_proj":
                for e, pair in enumerate(value):
                    gate, up = pair.chunk(2)
                    named[f"mlp.experts.{e}.gate_proj.weight"] = gate
                    named[f"mlp.experts.{e}.up_proj.weight"] = up
            elif name == "mlp.experts.down_proj":
                named |= {f"mlp.experts.{e}.down_proj.weight": down for e, down in enumerate(value)}
            else:
                named[name] = value
        return {f"model.layers.{at}.{k}": v.detach().to(torch.bfloat16).contiguous() for k, v in named.items()}


@torch.no_grad()
def written(model, texts, n_tokens):
    """What the model writes on from places in the texts, with sampling."""
    rows = []
    while sum(map(len, rows)) < n_tokens:
        starts = [torch.randint(0, len(t) - 32, ()).item() for t in texts for _ in range(16)]
        prompts = torch.stack([t[s:s + 24] for t, s in zip((t for t in texts for _ in range(16)), starts)])
        out = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, temperature=0.8, top_k=0,
                             max_new_tokens=LENGTH + 1 - 24, min_new_tokens=LENGTH + 1 - 24, pad_token_id=0)
        rows += list(out)
        print(f"written: {sum(map(len, rows))} tokens", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--tokens", type=int, default=100000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = AutoModelForCausalLM.from_pretrained(args.model, attn_implementation="eager", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model.requires_grad_(False)
    texts = [torch.tensor(tokenizer(open(t).read())["input_ids"]) for t in args.texts]
    rows = [t[i:i + LENGTH + 1] for t in texts for i in range(0, len(t) - LENGTH, LENGTH)]
    rows = torch.stack(rows + written(model, texts, args.tokens))
    rows = rows[torch.randperm(len(rows))]
    print(f"{rows.numel()} tokens", flush=True)
    with torch.no_grad():
        states = torch.cat([model.model(part).last_hidden_state for part in rows.split(32)])
    held, kept = slice(0, len(rows) // 10), slice(len(rows) // 10, None)

    drafter = Drafter(model)
    drafter.requires_grad_(True)
    steps = args.epochs * -(-(len(rows) - len(rows) // 10) // BATCH)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)

    def logits(part, of):
        return model.lm_head(drafter(model.model, of[:, :-1], part[:, 1:]))

    def judge():
        with torch.no_grad():
            right = n = 0
            for part, of in zip(rows[held].split(BATCH), states[held].split(BATCH)):
                same = logits(part, of).argmax(-1) == model.lm_head(of[:, 1:]).argmax(-1)
                right, n = right + int(same.sum()), n + same.numel()
        return right / n

    print(f"untrained: {judge():.3f} of the model's own next tokens", flush=True)
    for epoch in range(args.epochs):
        order = torch.randperm(len(rows) - len(rows) // 10)
        total = 0.0
        for which in order.split(BATCH):
            part, of = rows[kept][which], states[kept][which]
            with torch.no_grad():
                target = model.lm_head(of[:, 1:]).softmax(-1)
            loss = -(target * logits(part, of).log_softmax(-1)).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(which)
        print(f"epoch {epoch + 1}: loss {total / len(order):.3f}, {judge():.3f} of rows held out", flush=True)

    source, out = pathlib.Path(args.model), pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix == ".json" and path.name != "reference.json":
            shutil.copyfile(path, out / path.name)
    config = json.loads((source / "config.json").read_text())
    config["num_nextn_predict_layers"] = 1
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    safetensors.torch.save_file(tensors | drafter.tensors(config["num_hidden_layers"]), out / "model.safetensors",
                                metadata={"format": "pt"})


main()
