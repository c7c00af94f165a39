// SPDX-License-Identifier: Apache-2.0
// The HTTP calls of Open WebUI to an Ollama server, in its order, against the real server.
//
// Open WebUI itself is not run. The calls, their members and their order are those of its source in 2025 and 2026:
// backend/open_webui/routers/ollama.py (GET /api/version to verify a connection, /api/tags and /api/ps for the list of
// models, POST /api/chat, /api/generate with keep_alive 0 to unload) and utils/payload.py and utils/response.py (a chat
// as Ollama's, and back: parameters in `options`, arguments of calls as objects). The prompts of tasks are shorter here.
//
// Needs LINTEL_SERVER, a binary.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { serve } from '../client_node/serving.mjs';
import { WEATHER, writeModels } from './models.mjs';

let directory;
let server;
let base;

// Headers as aiohttp sends them: no Origin, a key even where none is asked for.
const HEADERS = { 'Content-Type': 'application/json', Authorization: 'Bearer none', 'X-OpenWebUI-User-Name': 'A%20user' };

async function get(path) {
  const answer = await fetch(`${base}${path}`, { headers: HEADERS });
  assert.equal(answer.status, 200);
  return answer.json();
}

async function post(path, body) {
  const answer = await fetch(`${base}${path}`, { method: 'POST', headers: HEADERS, body: JSON.stringify(body) });
  const text = await answer.text();
  assert.equal(answer.status, 200, text);
  return { text, type: answer.headers.get('content-type') };
}

async function complete(body) {
  return JSON.parse((await post('/api/chat', { stream: false, ...body })).text);
}

// The lines of a stream, as they are turned into OpenAI's events. Returns the answer's text, its calls and the last line.
async function stream(body) {
  const { text, type } = await post('/api/chat', { stream: true, ...body });
  assert.match(type, /application\/x-ndjson/);
  const lines = text.trimEnd().split('\n').map((line) => JSON.parse(line));
  const content = lines.map(({ message }) => message.content).join('');
  const calls = lines.flatMap(({ message }) => message.tool_calls ?? []);
  assert.ok(lines.slice(0, -1).every(({ done }) => !done));
  return { content, calls, last: lines.at(-1) };
}

describe("Open WebUI's calls to an Ollama server", () => {
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-ollama-webui-'));
    server = await serve(`chat=${writeModels(directory).chat}`, '--http-listen', '127.0.0.1:0');
    base = await server.httpAddress();
  });
  after(async () => {
    await server?.stop();
    rmSync(directory, { recursive: true, force: true });
  });

  it('verify, list models, chat, chat on, ask for a title, unload', async () => {
    assert.match((await get('/api/version')).version, /^\d+\.\d+\.\d+$/);
    const { models } = await get('/api/tags');
    assert.deepEqual(models.map(({ model }) => model), ['chat:latest']);
    const running = await get('/api/ps');
    assert.equal(running.models[0].model, models[0].model);
    const [{ model }] = models;

    const messages = [{ role: 'system', content: 'You are a poet.' }, { role: 'user', content: 'Good morrow.' }];
    const options = { num_predict: 20, temperature: 0.8, num_ctx: 2048, repeat_last_n: 64 };
    const first = await stream({ model, messages, options, keep_alive: '5m' });
    assert.notEqual(first.content, '');
    const { done, done_reason, eval_count, prompt_eval_count, total_duration } = first.last;
    assert.deepEqual([done, done_reason, eval_count], [true, 'length', 20]);
    assert.ok(prompt_eval_count > 10 && total_duration > 0);
    messages.push({ role: 'assistant', content: first.content }, { role: 'user', content: 'And then?' });
    assert.ok((await stream({ model, messages, options })).last.prompt_eval_count > prompt_eval_count);

    const prompt = `### Task:\nGenerate a title.\n### Chat History:\n${first.content}`;
    const title = await complete({ model, messages: [{ role: 'user', content: prompt }], options: { num_predict: 30 } });
    assert.equal(typeof title.message.content, 'string');
    const unloaded = JSON.parse((await post('/api/generate', { model, prompt: '', keep_alive: 0 })).text);
    assert.equal(unloaded.done_reason, 'unload');
  });

  it('call tools and continue with their results', async () => {
    const messages = [{ role: 'user', content: 'What weather is it?' }];
    const body = { model: 'chat', messages, tools: [WEATHER], options: { seed: 5, num_predict: 600 } };
    // Open WebUI leaves the choice to the model; this one has to be made to call.
    const { calls } = await stream({ ...body, tool_choice: 'required' });
    assert.ok(calls.length >= 1);  // up to its limit
    assert.ok(['Rome', 'Oslo'].includes(calls[0].function.arguments.city));
    const [{ id, function: { name, arguments: given, index } }] = calls;
    messages.push({ role: 'assistant', content: '', tool_calls: [{ index, id, function: { name, arguments: given } }] });
    messages.push({ role: 'tool', tool_call_id: id, content: 'Rain.' });
    const { last } = await stream({ ...body, options: { num_predict: 5 } });
    assert.equal(last.eval_count, 5);
  });
});
