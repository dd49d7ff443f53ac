#!/usr/bin/env python3
"""Trains the second model (README.md beside this file) on texts that the bundled model wrote.

    train.py OUT_DIR [--tokens N] [--seed N] [--dense SHARE] TOKENIZER_DIR TEXT...

TEXT: a file of documents with <|endoftext|> between them, or what write.sh made (.jsonl). OUT_DIR becomes a
checkpoint as Hugging Face's Mixtral has them; it keeps what was learnt every few minutes (state.pt), so that a run that
was ended goes on. With --dense an upcycled model: for this share of its training it has one expert a layer, whose copies
the experts then are. Takes a GPU where there is one. Needs PyTorch, tokenizers and safetensors.
"""
import argparse
import json
import math
import pathlib
import shutil
import time

import safetensors.torch
import tokenizers
import torch
import torch.nn.functional as F

LENGTH, BATCH = 256, 32
RATE, WARMUP, BALANCE = 2e-3, 100, 0.003
CONFIG = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "torch_dtype": "bfloat16",
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_local_experts": 16,
    "num_experts_per_tok": 2, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "max_position_embeddings": 512, "sliding_window": None, "tie_word_embeddings": False,
    "bos_token_id": 4093, "eos_token_id": 4093, "router_aux_loss_coef": BALANCE,
}
C = argparse.Namespace(**CONFIG)


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(C.hidden_size))

    def forward(self, x):
        x = x.float()
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + C.rms_norm_eps)


def matrix(*shape):
    return torch.nn.Parameter(torch.randn(*shape) * 0.02)


BF16 = torch.cuda.is_available() or torch.cpu._is_avx512_bf16_supported()


def times(x, w):
    """x @ w.T, with bf16 products summed in f32 where the processor has them: elsewhere they take twice the time."""
    return (x.bfloat16() @ w.bfloat16().T).float() if BF16 else x @ w.T


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        h, d = C.hidden_size, C.head_dim
        self.before_attention, self.before_experts = Norm(), Norm()
        self.q, self.k = matrix(C.num_attention_heads * d, h), matrix(C.num_key_value_heads * d, h)
        self.v, self.o = matrix(C.num_key_value_heads * d, h), matrix(h, C.num_attention_heads * d)
        self.router = matrix(C.num_local_experts, h)
        self.gate_up = matrix(C.num_local_experts, 2 * C.intermediate_size, h)
        self.down = matrix(C.num_local_experts, h, C.intermediate_size)

    def attend(self, x, rope):
        b, n, _ = x.shape
        q, k, v = (times(x, w).view(b, n, -1, C.head_dim).transpose(1, 2) for w in (self.q, self.k, self.v))
        q, k = (turn(y, rope) for y in (q, k))
        k, v = (y.repeat_interleave(C.num_attention_heads // C.num_key_value_heads, 1) for y in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return times(out.transpose(1, 2).reshape(b, n, -1), self.o)

    def choose(self, x):
        """Experts' outputs for the rows of x, and the loss that keeps all experts in use."""
        scores = F.softmax(x @ self.router.T, -1)
        weight, chosen = scores.topk(C.num_experts_per_tok)
        weight = weight / weight.sum(-1, keepdim=True)
        share = torch.zeros_like(scores).scatter_(1, chosen, 1).mean(0)
        balance = C.num_local_experts * (share * scores.mean(0)).sum()
        if x.is_cuda:  # all experts for all rows: a GPU has the arithmetic, and not the time for small pieces
            b = x.bfloat16()
            gate, up = torch.einsum("nh,efh->enf", b, self.gate_up.bfloat16()).float().chunk(2, -1)
            each = torch.einsum("enf,ehf->enh", (F.silu(gate) * up).bfloat16(), self.down.bfloat16())
            weights = torch.zeros_like(scores).scatter(1, chosen, weight)
            return torch.einsum("enh,ne->nh", each.float(), weights), balance
        order = chosen.flatten().argsort(stable=True)  # each expert's rows together
        row = order // C.num_experts_per_tok
        parts = x[row].split(chosen.flatten().bincount(minlength=C.num_local_experts).tolist())
        out = []
        for part, gate_up, down in zip(parts, self.gate_up.unbind(), self.down.unbind()):
            gate, up = times(part, gate_up).chunk(2, -1)
            out.append(times(F.silu(gate) * up, down))
        out = torch.zeros_like(x).index_add(0, row, torch.cat(out) * weight.flatten()[order, None])
        return out, balance

    def forward(self, x, rope):
        x = x + self.attend(self.before_attention(x), rope)
        y, balance = self.choose(self.before_experts(x).flatten(0, 1))
        return x + y.view_as(x), balance


def turn(x, rope):
    cos, sin = rope
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = matrix(C.vocab_size, C.hidden_size), matrix(C.vocab_size, C.hidden_size)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(C.num_hidden_layers))
        self.norm = Norm()

    def forward(self, tokens):
        """Losses: mean nats of each next token, and of the experts' balance."""
        turns = C.rope_theta ** (-torch.arange(0, C.head_dim, 2, device=tokens.device) / C.head_dim)
        angle = torch.arange(LENGTH, device=tokens.device)[:, None] * turns
        rope = angle[:tokens.shape[1] - 1].cos(), angle[:tokens.shape[1] - 1].sin()
        x, balance = self.embedding[tokens[:, :-1]], 0
        for layer in self.layers:
            x, more = layer(x, rope)
            balance = balance + more
        return F.cross_entropy(times(self.norm(x), self.head).flatten(0, 1), tokens[:, 1:].flatten()), balance

    def upcycle(self):
        """This model with C.num_local_experts experts a layer, each a copy of its only one."""
        to = Model().to(self.head.device)
        theirs, copied = to.state_dict(), self.state_dict()
        for name, w in copied.items():
            if name.endswith((".gate_up", ".down")):
                copied[name] = w.expand(theirs[name].shape)
            elif name.endswith(".router"):
                copied[name] = theirs[name]
        to.load_state_dict(copied)
        return to

    def tensors(self):
        named = {"model.embed_tokens.weight": self.embedding, "lm_head.weight": self.head,
                 "model.norm.weight": self.norm.weight}
        for i, layer in enumerate(self.layers):
            at = f"model.layers.{i}."
            named |= {at + f"self_attn.{n}_proj.weight": getattr(layer, n) for n in "qkvo"}
            named[at + "input_layernorm.weight"] = layer.before_attention.weight
            named[at + "post_attention_layernorm.weight"] = layer.before_experts.weight
            named[at + "block_sparse_moe.gate.weight"] = layer.router
            for e in range(C.num_local_experts):
                gate, up = layer.gate_up[e].chunk(2)
                for part, w in ("w1", gate), ("w3", up), ("w2", layer.down[e]):
                    named[at + f"block_sparse_moe.experts.{e}.{part}.weight"] = w
        return {k: v.detach().bfloat16().cpu().contiguous() for k, v in named.items()}


def read(tokenizer, path):
    """Documents as lists of tokens, each behind the token that begins one."""
    text = path.read_text(errors="ignore")
    if path.suffix == ".jsonl":
        documents = [json.loads(line)["response"]["body"]["choices"][0]["text"] for line in text.splitlines()]
    else:
        documents = [d.strip("\n") for d in text.split("<|endoftext|>")]
    for encoded in tokenizer.encode_batch([d for d in documents if d], add_special_tokens=False):
        yield [C.bos_token_id] + encoded.ids


def optimizer_of(model):
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0}],
                             lr=RATE, betas=(0.9, 0.95))


def save(model, args):
    safetensors.torch.save_file(model.tensors(), args.out / "model.safetensors", metadata={"format": "pt"})
    (args.out / "config.json").write_text(json.dumps(vars(C), indent=2) + "\n")
    for file in args.tokenizer.glob("tokenizer*.json"):
        shutil.copy(file, args.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT_DIR")
    parser.add_argument("tokenizer", type=pathlib.Path, metavar="TOKENIZER_DIR")
    parser.add_argument("texts", type=pathlib.Path, nargs="+", metavar="TEXT")
    parser.add_argument("--tokens", type=float, default=10.6e6, help="to train on, in all [%(default)g]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dense", type=float, default=0, metavar="SHARE", help="of the training with one expert [0]")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop then; another run goes on")
    args = parser.parse_args()
    began = time.time()
    torch.manual_seed(args.seed)
    tokenizer = tokenizers.Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    documents = [d for path in args.texts for d in read(tokenizer, path)]
    torch.manual_seed(args.seed)
    order = torch.randperm(len(documents)).tolist()
    stream = torch.tensor([t for i in order for t in documents[i]])
    print(f"{len(documents)} documents, {len(stream)} tokens", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    where = "cuda" if torch.cuda.is_available() else "cpu"
    n_steps, step, state = int(args.tokens / (BATCH * LENGTH)), 0, args.out / "state.pt"
    kept = torch.load(state, map_location=where) if state.exists() else None
    n_dense = int(args.dense * n_steps)
    many = C.num_local_experts, C.num_experts_per_tok
    if (kept["step"] if kept else 0) < n_dense:
        C.num_local_experts = C.num_experts_per_tok = 1
    model = Model().to(where)
    optimizer = optimizer_of(model)
    if kept:
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    mean, saved = None, time.time()
    while step < n_steps and time.time() - began < 60 * args.minutes:
        draw = torch.Generator().manual_seed(args.seed * 1000003 + step)
        first = torch.randint(len(stream) - LENGTH - 1, (BATCH,), generator=draw)
        loss, balance = model(torch.stack([stream[i:i + LENGTH + 1] for i in first]).to(where))
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARMUP) * (1 - step / n_steps)
        optimizer.zero_grad(set_to_none=True)
        (loss + BALANCE * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        step += 1
        if step == n_dense:
            C.num_local_experts, C.num_experts_per_tok = many
            model = model.upcycle()
            optimizer = optimizer_of(model)
        mean = loss.detach() if mean is None else 0.98 * mean + 0.02 * loss.detach()
        if step % 50 == 0:
            print(f"{step}/{n_steps}: {mean:.4f} nats, {time.time() - began:.0f} s", flush=True)
        if time.time() - saved > 300 or step == n_steps:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, state)
            save(model, args)
            saved = time.time()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, state)
    save(model, args)


if __name__ == "__main__":
    main()
