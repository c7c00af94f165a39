// SPDX-License-Identifier: Apache-2.0
// A chat model whose template shows tools: the small text model, which was not trained to chat. What it says means
// nothing; grammars make its calls and documents well-formed.
import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

// Calls are written as in Hermes, which the server finds out from this text.
const TEMPLATE = `{%- if tools -%}
SYSTEM:
You may call these functions:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Answer with <tool_call>
{"name": NAME, "arguments": ARGUMENTS}
</tool_call>

{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
TOOL:
<tool_response>
{{ message.content }}
</tool_response>

{% else -%}
{{ message.role | upper }}:
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}

{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
ASSISTANT:
{% endif -%}
`;

// Writes the model's directory. Its end token is one that its text hardly has.
export function writeToolModel(directory) {
  cpSync(join(import.meta.dirname, '../../weights/text-rwkv7-small'), directory, { recursive: true });
  rmSync(join(directory, 'generation_config.json')); // its stop_strings
  writeFileSync(join(directory, 'chat_template.jinja'), TEMPLATE);
  const { vocab } = JSON.parse(readFileSync(join(directory, 'tokenizer.json'), 'utf8')).model;
  const config = JSON.parse(readFileSync(join(directory, 'config.json'), 'utf8'));
  writeFileSync(join(directory, 'config.json'), JSON.stringify({ ...config, eos_token_id: vocab.$ }));
}
