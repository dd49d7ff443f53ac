#!/usr/bin/env python3
"""A GGUF file of a model's true sizes with drawn weights, for llama.cpp's llama-bench beside moe-quantize --synthesize.

    tests/bench/shape_gguf.py profiles/shapes/qwen3.6-35b-a3b.json out.gguf

Experts are Q4_0, other matrices Q8_0, as moe-quantize --experts 4 packs them (4.5 and 8.5 bits a weight); norms, routers
and convolutions F32. The file has no tokenizer and no sense: its speed alone means something. Knows the shapes of
Qwen3.5/3.6 (qwen3_5_moe_text), Gemma-4 (gemma4_text) and Qwen3 (qwen3_moe). Needs the gguf package.
"""
import json
import sys

import gguf
import numpy as np

Q4, Q8, F32 = (gguf.GGMLQuantizationType[t] for t in ("Q4_0", "Q8_0", "F32"))
CHUNK = 1 << 20  # weights drawn once and repeated: bytes are bytes to a disk and to a product


def drawn(kind, n, rng):
    """n weights of a kind as rows of bytes (or floats), near 0 so that nothing overflows."""
    if kind == F32:
        return rng.normal(0, 0.02, n).astype(np.float32)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (CHUNK // block, size), dtype=np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(0.004 if kind == Q4 else 0.0003).tobytes(), np.uint8)
    times = -(-n // CHUNK)
    return np.tile(blocks.reshape(-1), times)[: n // block * size]


def attention(c, gate=1, heads=None, kv=None, size=None, values=True):
    h = c["hidden_size"]
    heads, kv, size = heads or c["num_attention_heads"], kv or c["num_key_value_heads"], size or c["head_dim"]
    out = {"attn_q": (Q8, h, heads * size * gate), "attn_k": (Q8, h, kv * size), "attn_v": (Q8, h, kv * size),
           "attn_output": (Q8, heads * size, h), "attn_q_norm": (F32, size), "attn_k_norm": (F32, size)}
    if not values:
        del out["attn_v"]
    return out


def qwen3(c):
    keys = {"expert_feed_forward_length": c["moe_intermediate_size"], "rope.freq_base": float(c["rope_theta"])}
    h, e, f = c["hidden_size"], c["num_experts"], c["moe_intermediate_size"]
    layer = attention(c) | {"ffn_norm": (F32, h)} | routed(h, e, f)
    return "qwen3moe", keys, [layer] * c["num_hidden_layers"], (), False


def routed(h, e, f):
    return {"attn_norm": (F32, h), "ffn_gate_inp": (F32, h, e), "ffn_gate_exps": (Q4, h, f, e),
            "ffn_up_exps": (Q4, h, f, e), "ffn_down_exps": (Q4, f, h, e)}


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
                              "ffn_gate_shexp": (Q8, h, s), "ffn_up_shexp": (Q8, h, s), "ffn_down_shexp": (Q8, s, h)}
    linear = rest | {"attn_qkv": (Q8, h, conv), "attn_gate": (Q8, h, inner),
                     "ssm_conv1d": (F32, c["linear_conv_kernel_dim"], conv), "ssm_dt.bias": (F32, n_v),
                     "ssm_a.": (F32, n_v), "ssm_beta": (Q8, h, n_v), "ssm_alpha": (Q8, h, n_v),
                     "ssm_norm": (F32, size), "ssm_out": (Q8, inner, h)}
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
    rest |= {"ffn_gate_up_exps": (Q4, h, 2 * f, e), "ffn_gate_inp.scale": (F32, h), "ffn_down_exps.scale": (F32, e),
             "ffn_norm": (F32, h), "ffn_gate": (Q8, h, dense), "ffn_up": (Q8, h, dense), "ffn_down": (Q8, dense, h)}
    rest |= {n: (F32, h) for n in ("post_attention_norm", "post_ffw_norm", "pre_ffw_norm_2", "post_ffw_norm_1",
                                   "post_ffw_norm_2")}
    layers = [rest | (attention(c) if t else attention(c, kv=wide_kv, size=wide, values=not c["attention_k_eq_v"]))
              for t in local]
    return "gemma4", keys, layers, {"rope_freqs.weight": (F32, wide // 2)}, True


FAMILIES = {"qwen3_moe": qwen3, "qwen3_5_moe_text": qwen35, "gemma4_text": gemma4}


def main(shape, path):
    c = json.loads(open(shape).read())
    arch, keys, layers, extra, tied = FAMILIES[c["model_type"]](c)
    keys = {"block_count": len(layers), "context_length": 4096, "embedding_length": c["hidden_size"],
            "vocab_size": c["vocab_size"], "feed_forward_length": c["moe_intermediate_size"],
            "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
            "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"],
            "attention.layer_norm_rms_epsilon": 1e-6, "expert_count": c["num_experts"],
            "expert_used_count": c.get("num_experts_per_tok") or c["top_k_experts"]} | keys
    tensors = {"token_embd.weight": (Q8, c["hidden_size"], c["vocab_size"]), "output_norm.weight": (F32, c["hidden_size"])}
    if not tied:
        tensors["output.weight"] = (Q8, c["hidden_size"], c["vocab_size"])
    tensors |= dict(extra)
    for i, layer in enumerate(layers):
        for name, t in layer.items():
            full = name.rstrip(".") if name.endswith(".") else name if "." in name else f"{name}.weight"
            tensors[f"blk.{i}.{full}"] = t
    w = gguf.GGUFWriter(path, arch)
    w.add_string("tokenizer.ggml.model", "no_vocab")
    for key, value in keys.items():
        put = {bool: w.add_bool, int: w.add_uint32, float: w.add_float32, list: w.add_array}[type(value)]
        put(f"{arch}.{key}", value)
    for name, (kind, *sizes) in tensors.items():
        block, size = gguf.GGML_QUANT_SIZES[kind]
        shape_of = list(reversed(sizes))
        if kind == F32:
            w.add_tensor_info(name, shape_of, np.dtype(np.float32), int(np.prod(sizes)) * 4)
        else:
            shape_of[-1] = sizes[0] // block * size
            w.add_tensor_info(name, shape_of, np.dtype(np.uint8), int(np.prod(sizes)) // block * size, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    rng = np.random.default_rng(1)
    for name, (kind, *sizes) in tensors.items():
        data = drawn(kind, int(np.prod(sizes, dtype=np.int64)), rng)
        if name.endswith("_norm.weight") or "norm" in name:
            data[:] = 1
        if name.endswith("ssm_a"):
            data = -np.abs(data) - 0.5
        if name == "rope_freqs.weight":
            data[:] = 1
        w.write_tensor_data(data.astype(np.float32) if kind == F32 else data)
    w.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
