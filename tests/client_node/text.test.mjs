// SPDX-License-Identifier: Apache-2.0
// Text of a model whose tokens have several bytes. Needs what example.test.mjs needs.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { PATIENCE, serve } from './serving.mjs';

const { LINTEL_EXAMPLE, LINTEL_WRITE_TINY_MODELS } = process.env;
const { Client } = await import(pathToFileURL(join(LINTEL_EXAMPLE, 'lintel.mjs')));

describe('text', () => {
  let server, client, directory;
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-'));
    execFileSync(LINTEL_WRITE_TINY_MODELS, [directory]);
    server = await serve(join(directory, 'world'));
    client = new Client(server.address, { timeout: PATIENCE });
  });
  after(async () => {
    client.close();
    assert.equal(await server.stop(), 0);
    rmSync(directory, { recursive: true });
  });

  // Tokens of several bytes, parts of characters too.
  const logitBias = Object.fromEntries(Array.from({ length: 32 }, (_, i) => [257 + i, 100]));
  const request = { prompt: 'Hello', maxNewTokens: 60, sampling: { seed: 5n, logitBias } };
  async function collect(more = {}, options) {
    const all = [];
    for await (const token of client.generate({ ...request, ...more }, options)) all.push(token);
    return all;
  }
  const joined = (tokens) => tokens.map(({ text }) => text).join('');

  it('is ids and back', async () => {
    const text = 'Hello, wörld! there 你好';
    const ids = await client.tokenize(text);
    assert.ok(ids.length < Buffer.byteLength(text));
    assert.equal(await client.detokenize(ids), text);
    await assert.rejects(client.detokenize([1, 300]), /ids\[1\]/);
    assert.equal((await client.model()).tokenizer, 'World');
  });

  it('streams in whole characters, as the ids are detokenized', async () => {
    let finish;
    const tokens = await collect({}, { onFinish: (f) => (finish = f) });
    const whole = await client.detokenize(tokens.map(({ token }) => token));
    assert.ok(whole.startsWith(joined(tokens)));
    assert.ok([...whole].length - [...joined(tokens)].length <= 1, 'a character that is cut off');
    assert.ok(tokens.some(({ text }) => text === ''), 'a part of a character waits');
    assert.equal(finish.promptTokens, (await client.tokenize('Hello')).length);
  });

  it('comes after ids where it is asked for', async () => {
    const prompt = await client.tokenize('Hello');
    assert.equal(joined(await collect({ prompt })), '');
    assert.equal(joined(await collect({ prompt, tokenBytes: true })), joined(await collect()));
  });

  it('of a repeat is cut where it was seen', async () => {
    const { Repeat } = await import(pathToFileURL(join(LINTEL_EXAMPLE, 'repeat.mjs')));
    const repeat = new Repeat({}, 1000);
    const message = (firstPosition) => ({
      chunks: [{ firstPosition, tokens: [1, 2, 3], log2Probs: [-1, -2, -3], top: [], tokenBytes: ['a', 'b', 'c'] }],
      finished: [],
    });
    repeat.take(message(4));
    const [{ tokens, log2Probs, tokenBytes, firstPosition }] = repeat.take(message(5)).chunks;
    assert.deepEqual([tokens, log2Probs, tokenBytes, firstPosition], [[3], [-3], ['c'], '7']);
  });

  it('ends before a stop string, inside of a token', async () => {
    const whole = joined(await collect());
    const stop = whole.slice(20, 27);
    let finish;
    const tokens = await collect({ stop: { strings: [stop] } }, { onFinish: (f) => (finish = f) });
    assert.equal(joined(tokens), whole.slice(0, whole.indexOf(stop)));
    assert.equal(finish.reason, 'FINISH_REASON_STOP_STRING');
    assert.equal(finish.stopString.toString(), stop);
  });
});
