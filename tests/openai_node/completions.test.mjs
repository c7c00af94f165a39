// SPDX-License-Identifier: Apache-2.0
// OpenAI's own client against the real server.
//
// Needs LINTEL_SERVER, LINTEL_CLI and LINTEL_WRITE_TINY_MODELS, three binaries, and LINTEL_PACKAGES, where
// the client is.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { eventually, serve } from '../client_node/serving.mjs';

const { LINTEL_CLI, LINTEL_PACKAGES, LINTEL_WRITE_TINY_MODELS } = process.env;
const openai = join(LINTEL_PACKAGES, 'node_modules/openai/index.mjs');
const { default: OpenAI } = await import(pathToFileURL(openai));
const run = promisify(execFile);

let directory;
let server; // of the models text, tokens, which has no end, and image
let url;
let client;

async function spelled(...flags) {
  const all = ['generate', '--model', 'text', '--format', 'jsonl', '--address', server.address, ...flags];
  const { tokens } = JSON.parse((await run(LINTEL_CLI, all)).stdout);
  return new TextDecoder().decode(Uint8Array.from(tokens)); // U+FFFD for what is no UTF-8
}

describe("OpenAI's client", () => {
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-openai-'));
    await run(LINTEL_WRITE_TINY_MODELS, [directory]);
    server = await serve(`text=${join(directory, 'bytes')}`, '--model', join(directory, 'image'), '--model', join(directory, 'tokens'),
      '--model', `chat=${join(import.meta.dirname, '../../weights/text-rwkv7-small')}`,
      '--http-listen', '127.0.0.1:0', '--max-new-tokens', '1000000000');
    url = await server.httpAddress();
    client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
  });
  after(async () => {
    await server?.stop();
    rmSync(directory, { recursive: true, force: true });
  });

  it('lists models', async () => {
    const names = [];
    for await (const model of client.models.list()) {
      names.push(model.id);
      assert.ok(Math.abs(Date.now() / 1000 - model.created) < 86_400); // not of 1970
    }
    assert.deepEqual(names.sort(), ['chat', 'image', 'text', 'tokens']);
    assert.equal((await client.models.retrieve('text')).id, 'text');
  });

  it('completes with the text that lintel generates', async () => {
    const expected = await spelled('--prompt', 'Hello', '--max-new-tokens', '200', '--seed', '7');
    const request = { model: 'text', prompt: 'Hello', max_tokens: 200, seed: 7 };
    const whole = await client.completions.create(request);
    assert.equal(whole.choices[0].text, expected);
    assert.equal(whole.choices[0].finish_reason, 'length');
    assert.deepEqual([whole.usage.prompt_tokens, whole.usage.completion_tokens], [5, 200]);

    let text = '';
    let usage = null;
    const stream = await client.completions.create({ ...request, stream: true, stream_options: { include_usage: true } });
    for await (const piece of stream) {
      text += piece.choices[0]?.text ?? '';
      usage = piece.usage;
    }
    assert.equal(text, expected);
    assert.deepEqual(usage, whole.usage);
  });

  it('returns log-probabilities of several choices', async () => {
    const { choices } = await client.completions.create({ model: 'text', prompt: ['a', 'b'], n: 2, max_tokens: 3, logprobs: 2, echo: true });
    assert.deepEqual(choices.map((choice) => choice.index), [0, 1, 2, 3]);
    for (const { logprobs } of choices) {
      assert.equal(logprobs.tokens.length, 4);
      assert.equal(logprobs.token_logprobs[0], null);
      for (const value of logprobs.token_logprobs.slice(1)) assert.ok(value < 0);
    }
  });

  it('chats: a stream is the whole answer in pieces, and the next turn reads no history', async () => {
    const messages = [{ role: 'system', content: 'Two lords meet before the castle of the king.' },
      { role: 'user', content: 'Good morrow, my lord. What news?' }];
    const request = { model: 'chat', messages, seed: 5 };
    const cut = await client.chat.completions.create({ ...request, max_completion_tokens: 2 });
    assert.equal(cut.choices[0].finish_reason, 'length');
    assert.equal(cut.usage.completion_tokens, 2);
    const whole = await client.chat.completions.create(request);
    assert.equal(whole.choices[0].finish_reason, 'stop');
    assert.ok(whole.choices[0].message.content.startsWith(cut.choices[0].message.content));
    assert.ok(!whole.choices[0].message.content.includes('\n\n')); // one speech
    const stream = client.chat.completions.stream({ ...request, stream_options: { include_usage: true } });
    const last = await stream.finalChatCompletion();
    assert.equal(last.choices[0].message.content, whole.choices[0].message.content);
    assert.equal(last.usage.prompt_tokens, whole.usage.prompt_tokens);
    assert.ok(last.usage.prompt_tokens_details.cached_tokens > 0);

    const next = await client.chat.completions.create({
      ...request, messages: [...messages, whole.choices[0].message, { role: 'user', content: 'And the queen?' }] });
    assert.ok(next.usage.prompt_tokens_details.cached_tokens >= last.usage.prompt_tokens_details.cached_tokens);
    const read = next.usage.prompt_tokens - next.usage.prompt_tokens_details.cached_tokens;
    assert.ok(read < whole.usage.completion_tokens + 40, `${read} were read`);
    await assert.rejects(client.chat.completions.create({ ...request, model: 'text' }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.code, 'no_chat_template');
      return true;
    });
  });

  it('gets errors as its own kinds of them', async () => {
    const request = { model: 'text', prompt: 'Hello' };
    await assert.rejects(client.completions.create({ ...request, suffix: 'x' }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, 'suffix');
      return true;
    });
    await assert.rejects(client.completions.create({ ...request, model: 'nosuch' }), (error) => {
      assert.ok(error instanceof OpenAI.NotFoundError);
      assert.equal(error.code, 'model_not_found');
      return true;
    });
    await assert.rejects(client.completions.create({ ...request, model: 'image' }), /is of images/);
    await assert.rejects(client.embeddings.create({ model: 'text', input: 'a' }), (error) => {
      assert.ok(error instanceof OpenAI.NotFoundError);
      assert.equal(error.code, 'unknown_url');
      assert.match(error.message, /no route for \/v1\/embeddings/);
      return true;
    });
    await assert.rejects(client.get('/completions'), /405 .*takes POST/);
    await assert.rejects(client.completions.create(request, { headers: { 'Content-Encoding': 'gzip' } }), /415 .*content-encoding: gzip/);
    await assert.rejects(client.completions.create({ ...request, temperature: -1, stream: true }), OpenAI.BadRequestError);
  });

  it('frees the memory of a stream that its client leaves', async () => {
    const stream = await client.completions.create({ model: 'tokens', prompt: [1, 2], max_tokens: 1_000_000_000, stream: true });
    for await (const piece of stream) {
      assert.equal(piece.choices.length, 1);
      break; // which aborts it
    }
    await eventually(async () => (await server.metric('lintel_requests_running')) === 0, 'a free slot');
  });

  it('shows a token as its API key', async () => {
    const tokens = join(directory, 'tokens.json');
    const made = await run(LINTEL_CLI, ['token', 'new', 'ada', '--roles', 'generate', '--append', tokens]);
    const guarded = await serve(`text=${join(directory, 'bytes')}`, '--auth-tokens', tokens, '--http-listen', '127.0.0.1:0');
    try {
      const baseURL = `${await guarded.httpAddress()}/v1`;
      const request = { model: 'text', prompt: 'Hello' };
      const stranger = new OpenAI({ baseURL, apiKey: 'none', maxRetries: 0 });
      await assert.rejects(stranger.completions.create(request), OpenAI.AuthenticationError);
      const ada = new OpenAI({ baseURL, apiKey: made.stdout.slice(0, 64), maxRetries: 0 });
      assert.equal((await ada.completions.create(request)).usage.completion_tokens, 16);
    } finally {
      await guarded.stop();
    }
  });

  it('runs as the page shows', async () => {
    const page = readFileSync(new URL('../../docs/http_openai.md', import.meta.url), 'utf8');
    const [, code] = /```js\n([^]*?)```/.exec(page);
    const script = join(directory, 'example.mjs');
    writeFileSync(script, code.replaceAll('http://127.0.0.1:8080', url).replace("'text-linear-small'", "'text'").replace("'openai'", JSON.stringify(pathToFileURL(openai).href)));
    const { stdout } = await run(process.execPath, [script]);
    assert.ok(stdout.length > 0);
  });
});
