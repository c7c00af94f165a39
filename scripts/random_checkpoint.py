#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint with the keys and shapes of a published one and random BF16 weights.

For measurements of speed and memory, which need a model of the right shape and not a trained one:

    scripts/random_checkpoint.py qwen3.5-0.8b /tmp/qwen
    build/ci/bin/lintel-server --model /tmp/qwen
"""
import argparse
import json
import os
import struct
import sys

QWEN = {
    "qwen3.5-0.8b": dict(hidden=1024, layers=24, heads=8, kv=2, value_heads=16, ff=3584, tied=True),
    "qwen3.5-2b": dict(hidden=2048, layers=24, heads=8, kv=2, value_heads=16, ff=6144, tied=True),
    "qwen3.5-4b": dict(hidden=2560, layers=32, heads=16, kv=4, value_heads=32, ff=9216, tied=True),
    "qwen3.5-tiny": dict(hidden=256, layers=4, heads=4, kv=2, value_heads=16, ff=512, tied=True, vocabulary=4096),
}
RWKV = {
    "rwkv7-0.1b": dict(hidden=768, layers=12, ranks=(64, 64, 32, 128)),
    "rwkv7-0.4b": dict(hidden=1024, layers=24, ranks=(64, 64, 32, 128)),
    "rwkv7-1.5b": dict(hidden=2048, layers=24, ranks=(96, 96, 64, 256)),
}


def qwen(shape):
    hidden, ff, vocabulary = shape["hidden"], shape["ff"], shape.get("vocabulary", 248320)
    heads, kv, width = shape["heads"], shape["kv"], 256
    keys, values = 16 * 128, shape["value_heads"] * 128
    config = {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "bfloat16",
        "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": ff,
        "num_hidden_layers": shape["layers"], "num_attention_heads": heads, "num_key_value_heads": kv,
        "head_dim": width, "linear_num_key_heads": 16, "linear_num_value_heads": shape["value_heads"],
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 262144,
        "tie_word_embeddings": shape["tied"], "eos_token_id": min(248044, vocabulary - 1),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
    }
    yield config
    yield "model.embed_tokens.weight", [vocabulary, hidden]
    for i in range(shape["layers"]):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", [hidden]
        yield at + "post_attention_layernorm.weight", [hidden]
        yield at + "mlp.gate_proj.weight", [ff, hidden]
        yield at + "mlp.up_proj.weight", [ff, hidden]
        yield at + "mlp.down_proj.weight", [hidden, ff]
        if (i + 1) % 4 == 0:
            yield at + "self_attn.q_proj.weight", [2 * heads * width, hidden]
            yield at + "self_attn.k_proj.weight", [kv * width, hidden]
            yield at + "self_attn.v_proj.weight", [kv * width, hidden]
            yield at + "self_attn.o_proj.weight", [hidden, heads * width]
            yield at + "self_attn.q_norm.weight", [width]
            yield at + "self_attn.k_norm.weight", [width]
            continue
        at += "linear_attn."
        yield at + "in_proj_qkv.weight", [2 * keys + values, hidden]
        yield at + "in_proj_z.weight", [values, hidden]
        yield at + "in_proj_b.weight", [shape["value_heads"], hidden]
        yield at + "in_proj_a.weight", [shape["value_heads"], hidden]
        yield at + "conv1d.weight", [2 * keys + values, 1, 4]
        yield at + "A_log", [shape["value_heads"]]
        yield at + "dt_bias", [shape["value_heads"]]
        yield at + "norm.weight", [128]
        yield at + "out_proj.weight", [hidden, values]
    yield "model.norm.weight", [hidden]
    if not shape["tied"]:
        yield "lm_head.weight", [vocabulary, hidden]


def rwkv(shape):
    hidden, ranks, vocabulary = shape["hidden"], shape["ranks"], 65536
    config = {
        "architectures": ["Rwkv7ForCausalLM"], "model_type": "rwkv7", "dtype": "bfloat16",
        "vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": shape["layers"],
        "head_dim": 64, "num_heads": hidden // 64, "norm_eps": 1e-5, "eos_token_id": 0,
        "tie_word_embeddings": False,
    }
    yield config
    yield "rwkv7.emb.weight", [vocabulary, hidden]
    for i in range(shape["layers"]):
        at = f"rwkv7.blocks.{i}."
        for norm in (["ln0"] if i == 0 else []) + ["ln1", "ln2"]:
            yield at + norm + ".weight", [hidden]
            yield at + norm + ".bias", [hidden]
        for name in "rwkvag":
            yield at + "att.x_" + name, [1, 1, hidden]
        for name, rank in zip("wavg", ranks):
            if name == "v" and i == 0:
                continue
            if name != "g":
                yield at + f"att.{name}0", [1, 1, hidden]
            yield at + f"att.{name}1", [hidden, rank]
            yield at + f"att.{name}2", [rank, hidden]
        yield at + "att.k_k", [1, 1, hidden]
        yield at + "att.k_a", [1, 1, hidden]
        yield at + "att.r_k", [hidden // 64, 64]
        for name in ("receptance", "key", "value", "output"):
            yield at + f"att.{name}.weight", [hidden, hidden]
        yield at + "att.ln_x.weight", [hidden]
        yield at + "att.ln_x.bias", [hidden]
        yield at + "ffn.x_k", [1, 1, hidden]
        yield at + "ffn.key.weight", [4 * hidden, hidden]
        yield at + "ffn.value.weight", [hidden, 4 * hidden]
    yield "rwkv7.ln_out.weight", [hidden]
    yield "rwkv7.ln_out.bias", [hidden]
    yield "head.weight", [vocabulary, hidden]


def is_gain(name):
    """True if the tensor is a factor near one, not a difference from it."""
    return ".ln" in name and name.endswith(".weight") or name.endswith(("linear_attn.norm.weight", "att.k_k"))


def random_bf16(count):
    """`count` values between 1/64 and 1/32 in size, of either sign."""
    size = 2 * count
    value = int.from_bytes(os.urandom(size), "little")
    word = 0x3C80  # 1/64
    keep = int.from_bytes(struct.pack("<H", 0x807F) * count, "little")
    return ((value & keep) | int.from_bytes(struct.pack("<H", word) * count, "little")).to_bytes(size, "little")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=[*QWEN, *RWKV])
    parser.add_argument("directory")
    flags = parser.parse_args()
    tensors = qwen(QWEN[flags.shape]) if flags.shape in QWEN else rwkv(RWKV[flags.shape])
    config = next(tensors)
    tensors = list(tensors)
    os.makedirs(flags.directory, exist_ok=True)
    with open(os.path.join(flags.directory, "config.json"), "w") as out:
        json.dump(config, out, indent=2)
    header, end = {}, 0
    for name, shape in tensors:
        count = 1
        for dimension in shape:
            count *= dimension
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + 2 * count]}
        end += 2 * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(flags.directory, "model.safetensors"), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for number, (name, _) in enumerate(tensors):
            begin, end = header[name]["data_offsets"]
            count = (end - begin) // 2
            if is_gain(name):
                out.write(struct.pack("<H", 0x3F80) * count)
            else:
                while count > 0:
                    piece = min(count, 1 << 20)
                    out.write(random_bf16(piece))
                    count -= piece
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {len(tensors)} tensors", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)


if __name__ == "__main__":
    main()
