// SPDX-License-Identifier: Apache-2.0
// A chat model that says given texts: one to a user, another after a tool's result. Its next token follows from the last
// one alone, so that a test decides what "the model" says; where a grammar forbids that, the answer goes elsewhere.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

// Calls are written as Qwen3.5 writes them. The prompt ends with a line feed, after a tool's result with a space.
const TEMPLATE = `{%- if tools %}<|im_start|>system
Tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}
Form: <tool_call>
<function=NAME>
<parameter=KEY>
value
</parameter>
</function>
</tool_call><|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}
{%- if m.role == 'tool' %}
<tool_response>
{{ m.content }}
</tool_response>{% else %}
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content or '' }}{% endif %}
{%- for c in m.tool_calls or [] %}
<tool_call>
<function={{ c.function.name }}>
{%- for k, v in c.function.arguments | items %}
<parameter={{ k }}>
{{ v if v is string else v | tojson }}
</parameter>
{%- endfor %}
</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{{ ' ' if messages[-1].role == 'tool' else '' }}{% endif %}`;

const SPECIAL = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'];
const TAGS = ['<tool_call>', '</tool_call>', '<tool_response>', '</tool_response>', '<think>', '</think>'];
const CONTEXT = 262_144;

// Bytes as the letters of byte-level vocabularies.
function letters() {
  const all = [];
  let more = 256;
  for (let byte = 0; byte < 256; ++byte) {
    const isShown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    all.push(String.fromCharCode(isShown ? byte : more++));
  }
  return all;
}

function safetensors(tensors) {
  const header = {};
  const chunks = [];
  let at = 0;
  for (const [name, { shape, values }] of Object.entries(tensors)) {
    const bytes = Buffer.from(values.buffer);
    header[name] = { dtype: 'F32', shape, data_offsets: [at, at + bytes.length] };
    chunks.push(bytes);
    at += bytes.length;
  }
  let text = Buffer.from(JSON.stringify(header));
  text = Buffer.concat([text, Buffer.alloc((8 - (text.length % 8)) % 8, ' ')]);
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([size, text, ...chunks]);
}

// Writes the model's directory. first, after: lists of texts, each of which becomes a token; no two are equal.
export function writeScriptedModel(directory, first, after) {
  mkdirSync(directory, { recursive: true });
  const alphabet = letters();
  const spell = (text) => [...Buffer.from(text)].map((byte) => alphabet[byte]).join('');
  const vocab = Object.fromEntries(alphabet.map((letter, byte) => [letter, byte]));
  for (const piece of [...first, ...after]) {
    if (!TAGS.includes(piece)) vocab[spell(piece)] ??= Object.keys(vocab).length;
  }
  const size = Object.keys(vocab).length;
  const added = [...SPECIAL, ...TAGS].map((content, index) => ({
    id: size + index, content, single_word: false, lstrip: false, rstrip: false, normalized: false,
    special: SPECIAL.includes(content) }));
  const ids = Object.fromEntries(added.map(({ content, id }) => [content, id]));
  const idOf = (piece) => ids[piece] ?? vocab[spell(piece)];
  const rows = Math.ceil((size + added.length) / 16) * 16;
  const width = Math.max(64, Math.ceil((first.length + after.length + 4) / 16) * 16);

  const full = (shape, fill) => {
    const values = new Float32Array(shape.reduce((product, each) => product * each, 1));
    return { shape, values: values.map(fill) };
  };
  const zeros = (...shape) => full(shape, () => 0);
  let seed = 1;
  const noise = (...shape) => full(shape, () => {
    seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0;
    return (seed / 2 ** 32 - 0.5) * 0.1;
  });
  const at = 'model.layers.0.';
  const tensors = {
    [`${at}input_layernorm.weight`]: zeros(width), [`${at}post_attention_layernorm.weight`]: zeros(width),
    [`${at}mlp.gate_proj.weight`]: noise(32, width), [`${at}mlp.up_proj.weight`]: noise(32, width),
    [`${at}mlp.down_proj.weight`]: zeros(width, 32),
    [`${at}linear_attn.in_proj_qkv.weight`]: noise(64, width), [`${at}linear_attn.in_proj_z.weight`]: noise(32, width),
    [`${at}linear_attn.in_proj_b.weight`]: noise(2, width), [`${at}linear_attn.in_proj_a.weight`]: noise(2, width),
    [`${at}linear_attn.conv1d.weight`]: noise(64, 1, 4), [`${at}linear_attn.A_log`]: zeros(2),
    [`${at}linear_attn.dt_bias`]: zeros(2), [`${at}linear_attn.norm.weight`]: full([16], () => 1),
    [`${at}linear_attn.out_proj.weight`]: zeros(width, 32), // as down_proj: the layer adds nothing
    'model.norm.weight': zeros(width), 'model.embed_tokens.weight': zeros(rows, width), 'lm_head.weight': zeros(rows, width),
  };
  // Token by token, each followed by the next one. A dimension stands for a place in a text.
  let place = 0;
  for (const [start, pieces] of [['\n', first], [' ', after]]) {
    let last = idOf(start);
    for (const piece of [...pieces, '<|im_end|>']) {
      tensors['model.embed_tokens.weight'].values[last * width + place] = 1;
      last = idOf(piece);
      tensors['lm_head.weight'].values[last * width + place++] = 4;
    }
  }
  writeFileSync(join(directory, 'model.safetensors'), safetensors(tensors));
  const level = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
  const json = (name, value) => writeFileSync(join(directory, name), JSON.stringify(value));
  json('config.json', {
    architectures: ['Qwen3_5ForCausalLM'], model_type: 'qwen3_5_text', dtype: 'float32', vocab_size: rows,
    hidden_size: width, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1,
    head_dim: 16, linear_num_key_heads: 1, linear_num_value_heads: 2, linear_key_head_dim: 16, linear_value_head_dim: 16,
    linear_conv_kernel_dim: 4, full_attention_interval: 4, rms_norm_eps: 1e-6, max_position_embeddings: CONTEXT,
    tie_word_embeddings: false, eos_token_id: idOf('<|im_end|>'),
    rope_parameters: { rope_type: 'default', rope_theta: 10_000_000, partial_rotary_factor: 0.25 } });
  json('tokenizer.json', {
    version: '1.0', truncation: null, padding: null, added_tokens: added, normalizer: null, pre_tokenizer: level,
    post_processor: null, decoder: level, model: {
      type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
      fuse_unk: false, byte_fallback: false, ignore_merges: false, vocab, merges: [] } });
  json('tokenizer_config.json', { eos_token: '<|im_end|>' });
  writeFileSync(join(directory, 'chat_template.jinja'), TEMPLATE);
}

// A call as the template writes one, whose parameters are texts.
export function callPieces(name, parameters) {
  const given = Object.entries(parameters).flatMap(([key, text], index) =>
    [`\n${index > 0 ? '</parameter>\n' : ''}<parameter=${key}>\n`, text]);
  return ['<tool_call>', `\n<function=${name}>`, ...given, '\n</parameter>\n</function>\n', '</tool_call>'];
}
