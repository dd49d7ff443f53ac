#!/usr/bin/env python3
"""A GGUF file of a model's true sizes with drawn weights, for llama.cpp's llama-bench beside moe-run.

    tests/bench/shape_gguf.py --ggml LIB [--experts TYPE] [--dense TYPE] [--layers N | --gb N] SHAPE.json OUT.gguf

SHAPE.json is one of profiles/shapes. LIB, llama.cpp's libggml-base.so or ik_llama.cpp's libggml.so, makes ROWS rows of
each size of a type, which are then repeated: experts are q4_0 by default, other matrices q8_0, as moe-quantize
--experts 4 packs them (4.5 and 8.5 bits a weight); tokens' vectors and the head are q8_0, norms, routers and convolutions f32.
With fewer layers than the model has, its vocabulary is cut in proportion. Tokens are bytes and names without sense: the
speed of such a file means something, its words do not. Knows the shapes of Qwen3.5/3.6 (qwen3_5_moe_text), Gemma-4
(gemma4_text) and Qwen3 (qwen3_moe). Needs numpy and the gguf package.
"""
import argparse
import ctypes
import json

import gguf
import numpy as np
from gguf.gguf_writer import TensorInfo

F32, EXPERTS, DENSE, TOKENS = "f32", "experts", "dense", "tokens"
ROWS = 67  # a prime: experts do not begin with the same row

IK = {"q6_0": 133, "iq2_k": 137, "iq3_k": 138, "iq4_k": 139, "iq5_k": 140, "iq6_k": 141, "iq4_ks": 144, "iq2_ks": 145,
      "iq4_kss": 146, "iq5_ks": 152, "iq2_kt": 153, "iq3_kt": 154, "iq4_kt": 155, "iq3_ks": 156, "iq2_kl": 157,
      "iq1_kt": 158}


class Ggml:
    """The types that a library of ggml has, and rows of drawn weights in them."""

    def __init__(self, path):
        class Memory(ctypes.Structure):
            _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]

        self.lib, many = ctypes.CDLL(path), ctypes.c_int64
        self.lib.ggml_init(Memory(1 << 20, None, False))  # fills its tables
        self.lib.ggml_row_size.restype = ctypes.c_size_t
        self.lib.ggml_row_size.argtypes = ctypes.c_int, many
        self.lib.ggml_quantize_chunk.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, many, many, many,
                                                 ctypes.c_void_p, ctypes.c_void_p)  # the last is ik_llama.cpp's
        self.types = {t.name.lower(): t.value for t in gguf.GGMLQuantizationType}
        if hasattr(self.lib, "quantize_iq4_ks"):
            self.types |= IK
        self.rng = np.random.default_rng(1)

    def size(self, kind, columns):
        return self.lib.ggml_row_size(self.types[kind], columns)

    def rows(self, kind, columns, n):
        """n rows; those of quantized types are repeated from the ROWS-th on."""
        first = n if kind == F32 else min(n, ROWS)
        drawn = self.rng.normal(0, 0.02, (first, columns)).astype(np.float32)
        if kind == F32:
            return drawn
        made, even = np.empty((first, self.size(kind, columns)), np.uint8), np.ones(columns, np.float32)
        self.lib.ggml_quantize_chunk(self.types[kind], drawn.ctypes.data, made.ctypes.data, 0, first, columns,
                                     even.ctypes.data, None)
        return np.tile(made, (-(-n // first), 1))[:n]


def attention(c, gate=1, heads=None, kv=None, size=None, values=True):
    h = c["hidden_size"]
    heads, kv, size = heads or c["num_attention_heads"], kv or c["num_key_value_heads"], size or c["head_dim"]
    out = {"attn_q": (DENSE, h, heads * size * gate), "attn_k": (DENSE, h, kv * size), "attn_v": (DENSE, h, kv * size),
           "attn_output": (DENSE, heads * size, h), "attn_q_norm": (F32, size), "attn_k_norm": (F32, size)}
    if not values:
        del out["attn_v"]
    return out


def qwen3(c):
    keys = {"expert_feed_forward_length": c["moe_intermediate_size"], "rope.freq_base": float(c["rope_theta"])}
    h, e, f = c["hidden_size"], c["num_experts"], c["moe_intermediate_size"]
    layer = attention(c) | {"ffn_norm": (F32, h)} | routed(h, e, f)
    return "qwen3moe", keys, [layer] * c["num_hidden_layers"], (), False


def routed(h, e, f):
    return {"attn_norm": (F32, h), "ffn_gate_inp": (F32, h, e), "ffn_gate_exps": (EXPERTS, h, f, e),
            "ffn_up_exps": (EXPERTS, h, f, e), "ffn_down_exps": (EXPERTS, f, h, e)}


def qwen35(c):
    h, e, f, s = c["hidden_size"], c["num_experts"], c["moe_intermediate_size"], c["shared_expert_intermediate_size"]
    n_k, n_v, size = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_value_head_dim"]
    inner, conv = n_v * size, 2 * n_k * size + n_v * size
    keys = {"expert_feed_forward_length": f, "expert_shared_feed_forward_length": s,
            "rope.freq_base": float(c["rope_theta"]), "rope.dimension_count": int(c["head_dim"] * 0.25),
            "rope.dimension_sections": [11, 11, 10, 0], "ssm.conv_kernel": c["linear_conv_kernel_dim"],
            "ssm.inner_size": inner, "ssm.state_size": size, "ssm.time_step_rank": n_v, "ssm.group_count": n_k,
            "full_attention_interval": 4}
    rest = routed(h, e, f) | {"post_attention_norm": (F32, h), "ffn_gate_inp_shexp": (F32, h),
                              "ffn_gate_shexp": (DENSE, h, s), "ffn_up_shexp": (DENSE, h, s),
                              "ffn_down_shexp": (DENSE, s, h)}
    linear = rest | {"attn_qkv": (DENSE, h, conv), "attn_gate": (DENSE, h, inner),
                     "ssm_conv1d": (F32, c["linear_conv_kernel_dim"], conv), "ssm_dt.bias": (F32, n_v),
                     "ssm_a.": (F32, n_v), "ssm_beta": (DENSE, h, n_v), "ssm_alpha": (DENSE, h, n_v),
                     "ssm_norm": (F32, size), "ssm_out": (DENSE, inner, h)}
    full = rest | attention(c, gate=2)
    layers = [full if t == "full_attention" else linear for t in c["layer_types"]]
    return "qwen35moe", keys, layers, (), False


def gemma4(c):
    h, e, f, dense = c["hidden_size"], c["num_experts"], c["moe_intermediate_size"], c["intermediate_size"]
    local = [t == "sliding_attention" for t in c["layer_types"]]
    kv, wide_kv = c["num_key_value_heads"], c["num_global_key_value_heads"]
    size, wide = c["head_dim"], c["global_head_dim"]
    rope = c["rope_parameters"]
    keys = {"feed_forward_length": dense, "expert_feed_forward_length": f,
            "attention.sliding_window": c["sliding_window"], "attention.sliding_window_pattern": local,
            "attention.head_count_kv": [kv if t else wide_kv for t in local], "embedding_length_per_layer_input": 0,
            "attention.shared_kv_layers": 0, "attention.key_length": wide, "attention.value_length": wide,
            "attention.key_length_swa": size, "attention.value_length_swa": size,
            "rope.dimension_count": wide, "rope.dimension_count_swa": size,
            "rope.freq_base": rope["full_attention"]["rope_theta"],
            "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
            "final_logit_softcapping": c["final_logit_softcapping"]}
    rest = routed(h, e, f)
    for part in ("gate", "up"):
        del rest[f"ffn_{part}_exps"]
    rest |= {"ffn_gate_up_exps": (EXPERTS, h, 2 * f, e), "ffn_gate_inp.scale": (F32, h),
             "ffn_down_exps.scale": (F32, e), "ffn_norm": (F32, h), "ffn_gate": (DENSE, h, dense),
             "ffn_up": (DENSE, h, dense), "ffn_down": (DENSE, dense, h)}
    rest |= {n: (F32, h) for n in ("post_attention_norm", "post_ffw_norm", "pre_ffw_norm_2", "post_ffw_norm_1",
                                   "post_ffw_norm_2")}
    layers = [rest | (attention(c) if t else attention(c, kv=wide_kv, size=wide, values=not c["attention_k_eq_v"]))
              for t in local]
    return "gemma4", keys, layers, {"rope_freqs.weight": (F32, wide // 2)}, True


FAMILIES = {"qwen3_moe": qwen3, "qwen3_5_moe_text": qwen35, "gemma4_text": gemma4}


def tensors_of(c, layers, extra, tied):
    tokens = (TOKENS, c["hidden_size"], c["vocab_size"])
    tensors = {"token_embd.weight": tokens, "output_norm.weight": (F32, c["hidden_size"])}
    tensors |= ({} if tied else {"output.weight": tokens}) | dict(extra)
    for i, layer in enumerate(layers):
        for name, t in layer.items():
            full = name.rstrip(".") if name.endswith(".") else name if "." in name else f"{name}.weight"
            tensors[f"blk.{i}.{full}"] = t
    return tensors


def cut(c, layers):
    """The shape with fewer layers, and a vocabulary in proportion."""
    vocab = c["vocab_size"] * layers // c["num_hidden_layers"] // 256 * 256
    return c | {"num_hidden_layers": layers, "vocab_size": max(vocab, 512),
                "layer_types": c.get("layer_types", [])[:layers]}


def write(ggml, shape, path, experts="q4_0", dense="q8_0", layers=None, gb=None):
    """Writes the file; returns its number of layers."""
    whole = json.loads(open(shape).read())
    kinds = {F32: F32, EXPERTS: experts, DENSE: dense, TOKENS: "q8_0"}

    def described(n):
        c = cut(whole, n) if n else whole
        arch, keys, rows, extra, tied = FAMILIES[c["model_type"]](c)
        named = tensors_of(c, rows, extra, tied)
        tensors = {}
        for name, (kind, columns, *more) in named.items():
            n_rows = int(np.prod(more, dtype=np.int64))
            tensors[name] = kinds[kind], columns, n_rows, more, n_rows * ggml.size(kinds[kind], columns)
        return c, arch, keys, rows, tensors

    if gb:
        size = sum(t[-1] for t in described(4)[-1].values()) / 4
        layers = min(max(round(gb * 1e9 / size), 2), whole["num_hidden_layers"])
    c, arch, keys, rows, tensors = described(layers)
    keys = {"block_count": len(rows), "context_length": c["max_position_embeddings"],
            "embedding_length": c["hidden_size"], "vocab_size": c["vocab_size"], "feed_forward_length": c["moe_intermediate_size"],
            "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
            "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"],
            "attention.layer_norm_rms_epsilon": 1e-6, "expert_count": c["num_experts"],
            "expert_used_count": c.get("num_experts_per_tok") or c["top_k_experts"]} | keys
    w = gguf.GGUFWriter(path, arch)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    letters = [b for b in range(512) if chr(b).isprintable() and b != 32][:256]  # 256 letters that stand for bytes
    w.add_token_list([chr(b) for b in letters] + ["ab"] + [f"<{i}>" for i in range(257, c["vocab_size"])])
    w.add_token_types([gguf.TokenType.NORMAL] * c["vocab_size"])
    w.add_token_merges(["a b"])
    for key, value in keys.items():
        put = {bool: w.add_bool, int: w.add_uint32, float: w.add_float32, list: w.add_array}[type(value)]
        put(f"{arch}.{key}", value)
    for name, (kind, columns, _, more, size) in tensors.items():
        w.tensors[0][name] = TensorInfo([*reversed(more), columns], ggml.types[kind], size)  # gguf may not know it
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for name, (kind, columns, n, _, _) in tensors.items():
        data = ggml.rows(kind, columns, n)
        if "norm" in name or name == "rope_freqs.weight":
            data[:] = 1
        if name.endswith("ssm_a"):
            data = -np.abs(data) - 0.5
        w.write_tensor_data(data)
    w.close()
    return len(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", metavar="SHAPE.json")
    parser.add_argument("out", metavar="OUT.gguf")
    parser.add_argument("--ggml", required=True, type=Ggml, metavar="LIB")
    parser.add_argument("--experts", default="q4_0", metavar="TYPE", help="[%(default)s]")
    parser.add_argument("--dense", default="q8_0", metavar="TYPE", help="[%(default)s]")
    parser.add_argument("--layers", type=int, metavar="N", help="instead of all")
    parser.add_argument("--gb", type=float, metavar="N", help="as many layers as have this size")
    a = parser.parse_args()
    write(a.ggml, a.shape, a.out, a.experts, a.dense, a.layers, a.gb)


if __name__ == "__main__":
    main()
