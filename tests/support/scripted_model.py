#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A chat model that says what a script has, for tests of clients: it thinks, calls tools and writes documents.

    scripted_model.py DIR    # a checkpoint with SCRIPTS

The next token is a function of the last one alone, and the prompt's last token names the script: the template chooses it
by the last message. So a grammar shows as well: where it masks the script's token the answer goes elsewhere.
"""

import array
import json
import os
import random
import struct
import sys

# The scripts: a condition of the template (`last` being the last message), tokens, and whether the script begins
# again at its end in place of ending. A token is in one script alone.
SCRIPTS = [
    ("last.role == 'tool'", ["It is sunny", " in Bern."], False),
    ("'weather' in last.content", ["<tool_call>", '\n{"name": "weather", "arguments": ', '{"city": ', '"Bern"}}', "\n</tool_call>"], False),
    ("'city' in last.content", ['{"name": "Bern", ', '"population": 134000}'], False),
    ("'sum' in last.content", ["<think>", "\nTwo and", " three.", "\n</think>\n\n", "5"], False),
    ("'forever' in last.content", [" on", " and"], True),
    ("'again' in last.content", ["Good night,", " then."], False),
    ("true", ["Good morrow,", " friend."], False),
]

TEMPLATE = """{%- if tools %}<|im_start|>system
Functions: {% for tool in tools %}{{ tool | tojson }}{% endfor %}
Call them as <tool_call>
{"name": NAME, "arguments": {}}
</tool_call><|im_end|>
{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}
{%- if message.role == 'tool' %}
<tool_response>
{{ message.content }}
</tool_response>{% else %}
{{ message.content or '' }}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}{% set last = messages[-1] %}<|im_start|>assistant
{%- CHOICE %}{% endif %}"""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


def first_byte(number):
    """The prompt's last token: a control character, which no text has."""
    return number + 1


def template_of(scripts):
    choice = ""
    for number, (condition, _, _) in enumerate(scripts):
        word = "if" if number == 0 else "elif"
        choice += f"{'' if number == 0 else '{% '}{word} {condition} %}}{chr(first_byte(number))}"
    return TEMPLATE.replace("CHOICE %}", choice + "{% endif %}")


def letters_of_bytes():
    """GPT-2's: a visible letter for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in shown]
    return {**{byte: chr(byte) for byte in shown}, **{byte: chr(256 + i) for i, byte in enumerate(rest)}}


def write_scripted_model(directory, scripts=SCRIPTS, context=1 << 20):
    os.makedirs(directory, exist_ok=True)
    letters = letters_of_bytes()
    vocabulary = {letters[byte]: byte for byte in range(256)}

    def spelt(text):
        return "".join(letters[byte] for byte in text.encode())

    pieces = [piece for _, said, _ in scripts for piece in said]
    assert len(set(pieces)) == len(pieces), "a token that is in two places: cut the text elsewhere"
    for piece in pieces:
        if piece not in PLAIN:
            vocabulary.setdefault(spelt(piece), len(vocabulary))
    added = [{"id": len(vocabulary) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": text in SPECIAL} for i, text in enumerate(SPECIAL + PLAIN)]
    ids = {token["content"]: token["id"] for token in added}
    end = ids["<|im_end|>"]

    # Each token that is followed by another has a direction of its own.
    follower = {}
    for number, (_, said, repeats) in enumerate(scripts):
        chain = [ids[piece] if piece in ids else vocabulary[spelt(piece)] for piece in said]
        follower[first_byte(number)] = chain[0]
        follower.update(zip(chain, [*chain[1:], chain[0] if repeats else end]))
    rows = (len(vocabulary) + len(added) + 15) // 16 * 16
    width = max(64, (len(follower) + 15) // 16 * 16)
    draw = random.Random(1)

    def noise(*shape):
        count = 1
        for size in shape:
            count *= size
        return shape, [draw.gauss(0, 0.05) for _ in range(count)]

    def zeros(*shape):
        return shape, [0.0] * len(noise(*shape)[1])

    embedding, head = [0.0] * (rows * width), [0.0] * (rows * width)
    for direction, (token, following) in enumerate(follower.items()):
        embedding[token * width + direction] = 1.0
        head[following * width + direction] = 4.0
    layer = "model.layers.0."
    tensors = {  # one layer, which adds nothing: out_proj and down_proj are zero
        layer + "input_layernorm.weight": zeros(width),
        layer + "post_attention_layernorm.weight": zeros(width),
        layer + "mlp.gate_proj.weight": noise(32, width),
        layer + "mlp.up_proj.weight": noise(32, width),
        layer + "mlp.down_proj.weight": zeros(width, 32),
        layer + "linear_attn.in_proj_qkv.weight": noise(64, width),
        layer + "linear_attn.in_proj_z.weight": noise(32, width),
        layer + "linear_attn.in_proj_b.weight": noise(2, width),
        layer + "linear_attn.in_proj_a.weight": noise(2, width),
        layer + "linear_attn.conv1d.weight": noise(64, 1, 4),
        layer + "linear_attn.A_log": zeros(2),
        layer + "linear_attn.dt_bias": zeros(2),
        layer + "linear_attn.norm.weight": ((16,), [1.0] * 16),
        layer + "linear_attn.out_proj.weight": zeros(width, 32),
        "model.norm.weight": zeros(width),
        "model.embed_tokens.weight": ((rows, width), embedding),
        "lm_head.weight": ((rows, width), head),
    }
    config = {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "float32", "vocab_size": rows,
        "hidden_size": width, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": context,
        "tie_word_embeddings": False, "eos_token_id": end,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
    }
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocabulary, "merges": []},
    }
    write_tensors(os.path.join(directory, "model.safetensors"), tensors)
    for name, value in {"config.json": config, "tokenizer.json": tokenizer,
                        "tokenizer_config.json": {"eos_token": "<|im_end|>"}}.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False)
    with open(os.path.join(directory, "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write(template_of(scripts))


def write_tensors(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = array.array("f", values).tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    write_scripted_model(sys.argv[1])
