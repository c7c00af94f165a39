// SPDX-License-Identifier: Apache-2.0
// Ollama's own client against the real server.
//
// Needs LINTEL_SERVER and LINTEL_CLI, two binaries, and LINTEL_PACKAGES, where the client is.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { eventually, serve } from '../client_node/serving.mjs';
import { SCHEMA, WEATHER, writeModels } from './models.mjs';

const { LINTEL_CLI, LINTEL_PACKAGES } = process.env;
const ollama = join(LINTEL_PACKAGES, 'node_modules/ollama/dist/index.mjs');
const { Ollama } = await import(pathToFileURL(ollama));
const run = promisify(execFile);

let directory;
let server; // of the models chat, thinker, and base, which has no template
let url;
let client;

const MESSAGES = [{ role: 'system', content: 'Two lords meet.' }, { role: 'user', content: 'What news?' }];

// A request with few tokens, the same each time.
const asked = (more) => ({ model: 'chat', ...more, options: { seed: 5, num_predict: 24, ...more?.options } });

// The parts of a stream as one answer, with the members of the last.
async function joined(stream) {
  let whole;
  let lines = 0;
  for await (const part of stream) {
    ++lines;
    const before = whole;
    whole = structuredClone(part);
    if (before === undefined) continue;
    for (const name of ['response', 'thinking']) {
      if (before[name] !== undefined) whole[name] = before[name] + (part[name] ?? '');
    }
    if (part.message === undefined) continue;
    whole.message.content = before.message.content + part.message.content;
    for (const name of ['thinking', 'tool_calls']) {
      const both = [before.message[name], part.message[name]].filter((value) => value !== undefined);
      if (both.length > 0) whole.message[name] = name === 'thinking' ? both.join('') : both.flat();
    }
  }
  assert.ok(lines > 1);
  return whole;
}

// Without times and the ids of calls.
function comparable({ created_at, total_duration, load_duration, prompt_eval_duration, eval_duration, ...rest }) {
  for (const duration of [total_duration, load_duration, prompt_eval_duration, eval_duration]) {
    assert.ok(Number.isInteger(duration) && duration >= 0);
  }
  assert.ok(total_duration < 300e9);
  assert.ok(Math.abs(Date.now() - new Date(created_at)) < 86_400_000);
  const answer = structuredClone(rest);
  for (const call of answer.message?.tool_calls ?? []) delete call.id;
  return answer;
}

// The answer, which is the same when it is streamed.
async function chatted(request) {
  const whole = await client.chat(asked(request));
  assert.deepEqual(comparable(await joined(await client.chat(asked({ ...request, stream: true })))), comparable(whole));
  return whole;
}
async function generated(request) {
  const whole = await client.generate(asked(request));
  assert.deepEqual(comparable(await joined(await client.generate(asked({ ...request, stream: true })))), comparable(whole));
  return whole;
}

describe("Ollama's client", () => {
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-ollama-'));
    const models = writeModels(directory);
    server = await serve(`chat=${models.chat}`, '--model', `thinker=${models.thinker}`, '--model',
      `base=${join(import.meta.dirname, '../../weights/text-linear-small')}`,
      '--http-listen', '127.0.0.1:0', '--max-new-tokens', '1000000000');
    url = await server.httpAddress();
    client = new Ollama({ host: url });
  });
  after(async () => {
    await server?.stop();
    rmSync(directory, { recursive: true, force: true });
  });

  it('finds the version and the models', async () => {
    const { version } = await client.version();
    const [, minor] = version.split('.').map(Number);
    assert.ok(minor >= 12, version);
    const { models } = await client.list();
    assert.deepEqual(models.map(({ name, model }) => [name, model]),
      ['base', 'chat', 'thinker'].map((name) => [`${name}:latest`, `${name}:latest`]));
    for (const { digest, size, details, modified_at } of models) {
      assert.match(digest, /^[0-9a-f]{64}$/);
      assert.ok(size > 0);
      assert.ok(details.parameter_size.endsWith('M'));
      assert.ok(Math.abs(Date.now() - new Date(modified_at)) < 86_400_000);
    }
    const running = (await client.ps()).models;
    assert.deepEqual(running.map(({ name }) => name), models.map(({ name }) => name));
    assert.ok(running.every(({ expires_at }) => new Date(expires_at) > Date.now()));
  });

  it('shows what a model can do', async () => {
    const shown = await client.show({ model: 'chat:latest' });
    assert.deepEqual(shown.capabilities, ['completion', 'tools']);
    assert.equal(shown.model_info['general.architecture'], 'rwkv7');
    assert.ok(shown.model_info['rwkv7.context_length'] > 0);
    assert.equal(shown.details.family, 'rwkv7');
    assert.deepEqual((await client.show({ model: 'thinker' })).capabilities, ['completion', 'tools', 'thinking']);
    assert.deepEqual((await client.show({ model: 'base' })).capabilities, ['completion']);
  });

  it('chats, plain and streamed, and continues', async () => {
    const { message, done, done_reason, prompt_eval_count, eval_count, model } = await chatted({ messages: MESSAGES });
    assert.equal(model, 'chat');
    assert.equal(message.role, 'assistant');
    assert.notEqual(message.content, '');
    assert.deepEqual([done, done_reason, eval_count], [true, 'length', 24]);
    const next = await chatted({ model: 'chat:latest', messages: [...MESSAGES, message, { role: 'user', content: 'And then?' }] });
    assert.equal(next.model, 'chat:latest');
    assert.ok(next.prompt_eval_count > prompt_eval_count + 20);
  });

  it('takes options', async () => {
    const greedy = { temperature: 0, num_predict: 30, num_ctx: 4096, num_gpu: 1 };
    const { message } = await chatted({ messages: MESSAGES, options: greedy });
    const again = await chatted({ messages: MESSAGES, options: { ...greedy, seed: 9 } });
    assert.equal(again.message.content, message.content);
    const stop = message.content.slice(5, 8);
    const stopped = await chatted({ messages: MESSAGES, options: { ...greedy, stop: [stop] } });
    assert.equal(stopped.message.content, message.content.slice(0, message.content.indexOf(stop)));
    assert.equal(stopped.done_reason, 'stop');
    const options = { top_k: 40, top_p: 0.9, min_p: 0.05, repeat_penalty: 1.1, repeat_last_n: 33, presence_penalty: 0.1,
      frequency_penalty: 0.1, seed: 3, num_predict: 8, mirostat: 0, tfs_z: 1, typical_p: 1 };
    assert.equal((await chatted({ messages: MESSAGES, options, keep_alive: '5m' })).eval_count, 8);
  });

  it('continues a message of the assistant', async () => {
    const beginning = { role: 'assistant', content: 'The king is ' };
    const { message, prompt_eval_count } = await chatted({ messages: [...MESSAGES, beginning] });
    assert.notEqual(message.content, '');
    const closed = await chatted({ messages: [...MESSAGES, beginning, { role: 'user', content: '' }] });
    assert.ok(closed.prompt_eval_count > prompt_eval_count);
  });

  it('generates by the template, without it, and of a model that has none', async () => {
    const { response, done_reason } = await generated({ prompt: 'What news?', system: 'Two lords meet.' });
    assert.notEqual(response, '');
    assert.equal(done_reason, 'length');
    const rendered = await fetch(`${url}/apply-template`,
      { method: 'POST', body: JSON.stringify({ model: 'chat', messages: MESSAGES }) });
    const { prompt } = await rendered.json();
    assert.ok(prompt.includes('What news?'));
    assert.equal((await generated({ prompt, raw: true })).response, response);
    const { eval_count } = await generated({ model: 'base', prompt: 'To be or ', options: { num_predict: 16 } });
    assert.equal(eval_count, 16);
  });

  it('calls tools and reads their results', async () => {
    const messages = [{ role: 'user', content: 'What weather is it?' }];
    const request = { messages, tools: [WEATHER], tool_choice: 'required', options: { seed: 5, num_predict: 600 } };
    const { message } = await chatted(request);  // it may call again, up to its limit
    assert.equal(message.content, '');
    const [{ function: { name, arguments: given } }] = message.tool_calls;
    assert.equal(name, 'get_weather');
    assert.ok(['Rome', 'Oslo'].includes(given.city));
    messages.push(message, { role: 'tool', tool_name: name, content: 'Rain.' });
    const next = await chatted({ messages, tools: [WEATHER], options: { num_predict: 5 } });
    assert.equal(next.eval_count, 5);
  });

  it('has thinking in a member of its own', async () => {
    const thinks = { model: 'thinker', messages: MESSAGES };
    for (const think of [undefined, true, 'high']) {
      const { message } = await chatted({ ...thinks, think });
      assert.notEqual(message.thinking, '');
      assert.equal(message.content, '');
    }
    const { message } = await chatted({ ...thinks, think: false });
    assert.equal(message.thinking, undefined);
    assert.notEqual(message.content, '');
    const { thinking, response } = await generated({ model: 'thinker', prompt: 'What news?', think: true });
    assert.notEqual(thinking, '');
    assert.equal(response, '');
    await chatted({ ...thinks, messages: [...MESSAGES, { ...message, thinking: 'Hm.' }, { role: 'user', content: 'Why?' }] });
  });

  it('writes documents of a schema, and JSON', async () => {
    const options = { seed: 5, num_predict: 400 };
    const { message } = await chatted({ messages: MESSAGES, format: SCHEMA, options });
    const { mood, age, ...rest } = JSON.parse(message.content);
    assert.ok(['glad', 'sad'].includes(mood) && Number.isInteger(age) && Object.keys(rest).length === 0);
    const { response } = await generated({ prompt: 'What news?', format: SCHEMA, options });
    assert.ok(Number.isInteger(JSON.parse(response).age));
    const free = await client.chat(asked({ messages: MESSAGES, format: 'json' }));
    assert.ok(free.message.content.startsWith('{'));
  });

  it('has log-probabilities', async () => {
    const { logprobs } = await client.chat(asked({ messages: MESSAGES, logprobs: true, top_logprobs: 2 }));
    assert.ok(logprobs.length > 10);
    for (const { token, logprob, top_logprobs } of logprobs) {
      assert.equal(typeof token, 'string');
      assert.ok(logprob <= 0);
      assert.equal(top_logprobs.length, 2);
    }
  });

  it('loads and unloads models ahead of their use', async () => {
    assert.equal((await client.chat({ model: 'chat', messages: [] })).done_reason, 'load');
    assert.equal((await client.generate({ model: 'chat', prompt: '' })).done_reason, 'load');
    assert.equal((await client.generate({ model: 'chat', prompt: '', keep_alive: 0 })).done_reason, 'unload');
    for await (const { done_reason } of await client.chat({ model: 'chat', stream: true })) assert.equal(done_reason, 'load');
  });

  it('ends a call whose stream is aborted', async () => {
    const endless = { messages: MESSAGES, options: { num_predict: -1, stop: [] }, model: 'base', prompt: 'To be ', stream: true };
    const stream = await client.generate(endless);
    await assert.rejects(async () => {
      for await (const part of stream) {
        assert.equal(part.done, false);
        stream.abort();
      }
    }, { name: 'AbortError' });
    await eventually(async () => (await server.metric('lintel_requests_running')) === 0, 'a free slot');
  });

  it('gets errors with their status', async () => {
    const fails = (call, status, words) => assert.rejects(call, (error) => {
      assert.equal(error.name, 'ResponseError');
      assert.equal(error.status_code, status);
      assert.match(error.error, words);
      return true;
    });
    await fails(client.chat(asked({ model: 'nope', messages: MESSAGES })), 404, /not found/);
    await fails(client.chat(asked({ model: 'nope', messages: MESSAGES, stream: true })), 404, /not found/);
    await fails(client.chat(asked({ model: 'base', messages: MESSAGES })), 400, /no chat template/);
    await fails(client.chat(asked({ messages: MESSAGES, options: { top_p: 2 } })), 400, /^options\.top_p: /);
    await fails(client.chat(asked({ messages: [{ role: 'user', content: 'a', images: ['aGk='] }] })), 400, /^messages\[0\]\.images: /);
    await fails(client.generate(asked({ prompt: 'a', suffix: 'b' })), 400, /^suffix: /);
    await fails(client.generate(asked({ prompt: 'a', template: 'b' })), 400, /^template: /);
    await fails(client.generate(asked({ prompt: 'a', context: [1] })), 400, /^context: /);
    await fails(client.show({ model: 'nope' }), 404, /not found/);
    await fails(client.embed({ model: 'chat', input: 'a' }), 404, /embeddings are not served/);
    await fails(client.embeddings({ model: 'chat', prompt: 'a' }), 404, /embeddings are not served/);
    await fails(client.pull({ model: 'chat' }), 501, /lintel pull/);
    await fails(client.push({ model: 'chat' }), 501, /not served/);
    await fails(client.create({ model: 'x', from: 'chat' }), 501, /not served/);
    await fails(client.copy({ source: 'chat', destination: 'x' }), 501, /not served/);
    await fails(client.delete({ model: 'chat' }), 501, /not served/);
  });

  it('shows its token in a header', async () => {
    const tokens = join(directory, 'tokens.json');
    const made = await run(LINTEL_CLI, ['token', 'new', 'ada', '--roles', 'generate', '--append', tokens]);
    const guarded = await serve(`chat=${join(directory, 'chat')}`, '--auth-tokens', tokens, '--http-listen', '127.0.0.1:0');
    try {
      const host = await guarded.httpAddress();
      await assert.rejects(new Ollama({ host }).list(), { status_code: 401 });
      const ada = new Ollama({ host, headers: { Authorization: `Bearer ${made.stdout.slice(0, 64)}` } });
      assert.equal((await ada.list()).models.length, 1);
      assert.equal((await ada.chat(asked({ messages: MESSAGES }))).eval_count, 24);
    } finally {
      await guarded.stop();
    }
  });
});
