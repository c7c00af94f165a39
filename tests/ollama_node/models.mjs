// SPDX-License-Identifier: Apache-2.0
// Models of the tests: one that calls tools, and the same with a template that lets it think.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { writeToolModel } from '../openai_node/tool_model.mjs';

export const WEATHER = {
  type: 'function',
  function: {
    name: 'get_weather', description: 'The weather of a city.',
    parameters: {
      type: 'object', properties: { city: { type: 'string', enum: ['Rome', 'Oslo'] } }, required: ['city'],
      additionalProperties: false, // this model would write others without end
    },
  },
};

export const SCHEMA = {
  type: 'object',
  properties: { mood: { enum: ['glad', 'sad'] }, age: { type: 'integer', minimum: 0, maximum: 99 } },
  required: ['mood', 'age'],
  additionalProperties: false,
};

// The directories of both, below `directory`. The second begins its answers with <think> unless it is off, and hardly
// ever ends it.
export function writeModels(directory) {
  const chat = join(directory, 'chat');
  const thinker = join(directory, 'thinker');
  writeToolModel(chat);
  writeToolModel(thinker);
  const template = join(thinker, 'chat_template.jinja');
  const opened = readFileSync(template, 'utf8').replace('ASSISTANT:\n{% endif -%}\n',
    'ASSISTANT:\n{% if enable_thinking is not false %}<think>\n{% endif %}{% endif -%}\n');
  writeFileSync(template, opened);
  return { chat, thinker };
}
