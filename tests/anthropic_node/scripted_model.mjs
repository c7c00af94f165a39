// SPDX-License-Identifier: Apache-2.0
// A model that says given texts for any prompt: one answer to a user, another to results of tools.
//
// A qwen3_5_text checkpoint of one silent layer, whose next token is a function of the last one: the prompt's last
// character selects the answer. Each piece of an answer is a token, and they all differ.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const SPECIAL = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'];
const TAGS = ['<tool_call>', '</tool_call>', '<think>', '</think>'];

// Calls are written as in Hermes. The answer begins after a line feed, that to a result of a tool after '!'.
const TEMPLATE = `{%- if tools %}<|im_start|>system
Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}{{ '\\n' }}
{%- if m.role == 'tool' %}<tool_response>
{{ m.content }}
</tool_response>{% else %}{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content or '' }}{% endif %}
{%- for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if messages[-1].role == 'tool' %}!{% elif enable_thinking %}<think>
{% endif %}{% endif %}`;

// The letters with which byte-level BPE spells bytes.
const shown = (byte) => (byte >= 33 && byte < 127) || (byte >= 161 && byte < 173) || byte >= 174;
const LETTERS = [...Array(256).keys()].map((byte) => {
  if (shown(byte)) return String.fromCharCode(byte);
  return String.fromCharCode(256 + [...Array(byte).keys()].filter((b) => !shown(b)).length);
});
const spelt = (text) => [...Buffer.from(text)].map((byte) => LETTERS[byte]).join('');

// The same numbers each time.
function* noise() {
  for (let state = 1; ; ) {
    state = (state * 48271) % 2147483647;
    yield (state % 1000) / 10000 - 0.05;
  }
}

// answer: pieces of text, said to a user; afterTool: said to a result. context: tokens.
export function writeScriptedModel(directory, { answer, afterTool = ['Done.'], context = 4096 }) {
  mkdirSync(directory, { recursive: true });
  const vocab = {};
  for (let byte = 0; byte < 256; byte++) vocab[LETTERS[byte]] = byte;
  for (const piece of [...answer, ...afterTool]) {
    if (!TAGS.includes(piece) && !(spelt(piece) in vocab)) vocab[spelt(piece)] = Object.keys(vocab).length;
  }
  const size = Object.keys(vocab).length;
  const added = [...SPECIAL, ...TAGS].map((content, i) => ({
    id: size + i, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: SPECIAL.includes(content),
  }));
  const idOf = (text) => added.find((token) => token.content === text)?.id ?? vocab[spelt(text)];
  const end = idOf('<|im_end|>');
  const rows = Math.ceil((size + added.length) / 16) * 16;
  const chains = [['\n', ...answer], ['!', ...afterTool]].map((chain) => [...chain.map(idOf), end]);
  const width = Math.max(64, Math.ceil(chains.flat().length / 16) * 16);

  const tensors = new Map();
  const random = noise();
  const product = (shape) => shape.reduce((all, extent) => all * extent, 1);
  const zeros = (name, shape) => tensors.set(name, { shape, data: new Float32Array(product(shape)) });
  const filled = (name, shape) =>
    tensors.set(name, { shape, data: Float32Array.from({ length: product(shape) }, () => random.next().value) });
  const at = 'model.layers.0.';
  zeros(`${at}input_layernorm.weight`, [width]);
  zeros(`${at}post_attention_layernorm.weight`, [width]);
  filled(`${at}mlp.gate_proj.weight`, [32, width]);
  filled(`${at}mlp.up_proj.weight`, [32, width]);
  zeros(`${at}mlp.down_proj.weight`, [width, 32]);
  filled(`${at}linear_attn.in_proj_qkv.weight`, [64, width]);
  filled(`${at}linear_attn.in_proj_z.weight`, [32, width]);
  filled(`${at}linear_attn.in_proj_b.weight`, [2, width]);
  filled(`${at}linear_attn.in_proj_a.weight`, [2, width]);
  filled(`${at}linear_attn.conv1d.weight`, [64, 1, 4]);
  zeros(`${at}linear_attn.A_log`, [2]);
  zeros(`${at}linear_attn.dt_bias`, [2]);
  tensors.set(`${at}linear_attn.norm.weight`, { shape: [16], data: new Float32Array(16).fill(1) });
  zeros(`${at}linear_attn.out_proj.weight`, [width, 32]);
  zeros('model.norm.weight', [width]);
  zeros('model.embed_tokens.weight', [rows, width]);
  zeros('lm_head.weight', [rows, width]);
  const embedding = tensors.get('model.embed_tokens.weight').data;
  const output = tensors.get('lm_head.weight').data;
  let column = 0;
  for (const chain of chains) {
    for (let i = 0; i + 1 < chain.length; i++, column++) {
      embedding[chain[i] * width + column] = 1;
      output[chain[i + 1] * width + column] = 4;
    }
  }

  const header = {};
  const parts = [];
  let offset = 0;
  for (const [name, { shape, data }] of tensors) {
    header[name] = { dtype: 'F32', shape, data_offsets: [offset, offset + data.byteLength] };
    parts.push(Buffer.from(data.buffer));
    offset += data.byteLength;
  }
  let text = JSON.stringify(header);
  text += ' '.repeat((8 - (text.length % 8)) % 8);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(join(directory, 'model.safetensors'), Buffer.concat([length, Buffer.from(text), ...parts]));
  const write = (name, value) => writeFileSync(join(directory, name), JSON.stringify(value));
  write('config.json', {
    architectures: ['Qwen3_5ForCausalLM'], model_type: 'qwen3_5_text', dtype: 'float32', vocab_size: rows,
    hidden_size: width, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1,
    head_dim: 16, linear_num_key_heads: 1, linear_num_value_heads: 2, linear_key_head_dim: 16,
    linear_value_head_dim: 16, linear_conv_kernel_dim: 4, full_attention_interval: 4, rms_norm_eps: 1e-6,
    max_position_embeddings: context, tie_word_embeddings: false, eos_token_id: end,
    rope_parameters: { rope_type: 'default', rope_theta: 10000000, partial_rotary_factor: 0.25 },
  });
  const level = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
  write('tokenizer.json', {
    version: '1.0', truncation: null, padding: null, added_tokens: added, normalizer: null, pre_tokenizer: level,
    post_processor: null, decoder: level,
    model: {
      type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
      fuse_unk: false, byte_fallback: false, ignore_merges: false, vocab, merges: [],
    },
  });
  write('tokenizer_config.json', { eos_token: '<|im_end|>' });
  writeFileSync(join(directory, 'chat_template.jinja'), TEMPLATE);
}
