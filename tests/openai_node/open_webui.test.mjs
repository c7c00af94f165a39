// SPDX-License-Identifier: Apache-2.0
// The HTTP calls of Open WebUI, in its order, against the real server.
//
// Open WebUI itself is not run. The calls, their members and their order are those of its source in 2025 and 2026:
// backend/open_webui/routers/openai.py (GET /models before a chat, POST /chat/completions; `metadata` is taken out of
// a body, and `max_completion_tokens` is sent as `max_tokens` to servers that are not OpenAI's), utils/payload.py
// (members from a model's parameters), utils/middleware.py (calls of tools with the `index` of their deltas; after
// the answer follow-ups, title and tags) and routers/tasks.py (the bodies of these). The prompts of tasks are shorter
// here.
//
// Needs LINTEL_SERVER, a binary.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { serve } from '../client_node/serving.mjs';
import { writeToolModel } from './tool_model.mjs';

const TOOLS = [{
  type: 'function',
  function: {
    name: 'get_weather', description: 'The weather of a city.',
    parameters: {
      type: 'object', properties: { city: { type: 'string', enum: ['Rome', 'Oslo'] } }, required: ['city'],
      additionalProperties: false, // this model would write others without end
    },
  },
}];

let directory;
let server;
let base;

// Posts as aiohttp does: no Origin, a key even where none is asked for.
function post(body) {
  return fetch(`${base}/chat/completions`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', Authorization: 'Bearer none', 'X-OpenWebUI-User-Name': 'A%20user' },
    body: JSON.stringify(body),
  });
}

async function complete(body) {
  const answer = await post({ stream: false, ...body });
  const text = await answer.text();
  assert.equal(answer.status, 200, text);
  return JSON.parse(text);
}

// The lines of a stream, as the middleware reads them: "data: " and JSON, [DONE] at the end. Returns the answer's text,
// the calls that its deltas make, and the last usage.
async function stream(body) {
  const answer = await post({ stream: true, ...body });
  assert.equal(answer.status, 200, answer.ok ? '' : await answer.text());
  assert.match(answer.headers.get('content-type'), /text\/event-stream/);
  const lines = (await answer.text()).split('\n').filter((line) => line.startsWith('data:'));
  assert.equal(lines.pop().trim(), 'data: [DONE]');
  let content = '';
  let usage;
  const calls = [];
  for (const line of lines) {
    const event = JSON.parse(line.slice('data:'.length));
    usage = event.usage ?? usage;
    for (const { delta } of event.choices) {
      content += delta.content ?? '';
      for (const piece of delta.tool_calls ?? []) {
        assert.ok(Number.isInteger(piece.index));
        const known = calls.find(({ index }) => index === piece.index);
        if (known === undefined) {
          calls.push(structuredClone(piece));
        } else {
          known.function.arguments += piece.function.arguments;
        }
      }
    }
  }
  return { content, calls, usage };
}

describe("Open WebUI's calls", () => {
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-open-webui-'));
    writeToolModel(directory);
    server = await serve(`chat=${directory}`, '--http-listen', '127.0.0.1:0');
    base = `${await server.httpAddress()}/v1`;
  });
  after(async () => {
    await server?.stop();
    rmSync(directory, { recursive: true, force: true });
  });

  it('list models, chat, chat on, then ask for follow-ups, a title and tags', async () => {
    const listed = await (await fetch(`${base}/models`, { headers: { Authorization: 'Bearer none' } })).json();
    assert.deepEqual(listed.data.map(({ id, object }) => [id, object]), [['chat', 'model']]);
    const [{ id: model }] = listed.data;

    const messages = [{ role: 'system', content: 'You are a poet.' }, { role: 'user', content: 'Good morrow.' }];
    const first = await stream({ model, messages, max_tokens: 20, stream_options: { include_usage: true } });
    assert.notEqual(first.content, '');
    assert.equal(first.usage.completion_tokens, 20);
    messages.push({ role: 'assistant', content: first.content });
    messages.push({ role: 'user', content: [{ type: 'text', text: 'And then?' }] });
    const second = await stream({ model, messages, max_tokens: 20, stream_options: { include_usage: true } });
    assert.ok(second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens / 2);

    const history = messages.map(({ role, content }) => `${role.toUpperCase()}: ${content}`).join('\n');
    for (const task of ['Suggest follow-up questions.', 'Generate a title.', 'Generate tags.']) {
      const body = { model, messages: [{ role: 'user', content: `### Task:\n${task}\n### Chat History:\n${history}` }] };
      const { choices } = await complete({ ...body, max_tokens: 30 }); // the title's own limit is 1000, tags have none
      assert.equal(choices.length, 1);
      assert.equal(typeof choices[0].message.content, 'string');
    }
  });

  it("send a model's parameters", async () => {
    const { choices, usage } = await complete({
      model: 'chat', messages: [{ role: 'user', content: 'Good morrow.' }], max_tokens: 8, temperature: 0.8, top_p: 0.9,
      min_p: 0.05, frequency_penalty: 0.1, presence_penalty: 0.2, reasoning_effort: 'medium', seed: 42, stop: ['\n\n\n'],
      logit_bias: { 3: -100 }, response_format: { type: 'text' }, top_k: 40,
    });
    assert.equal(choices[0].finish_reason, 'length');
    assert.equal(usage.completion_tokens, 8);
  });

  it('call tools and continue with their results', async () => {
    const messages = [{ role: 'user', content: 'What weather is it?' }];
    const body = { model: 'chat', messages, tools: TOOLS, max_tokens: 600, seed: 5 };
    // Open WebUI leaves the choice to the model; this one has to be made to call.
    const { calls } = await stream({ ...body, tool_choice: 'required', parallel_tool_calls: false });
    assert.equal(calls.length, 1);
    assert.ok(['Rome', 'Oslo'].includes(JSON.parse(calls[0].function.arguments).city));

    messages.push({ role: 'assistant', content: '', tool_calls: calls }); // with their index
    messages.push({ role: 'tool', tool_call_id: calls[0].id, content: 'Rain.' });
    const { usage } = await stream({ ...body, max_tokens: 5, stream_options: { include_usage: true } });
    assert.equal(usage.completion_tokens, 5);
  });
});
