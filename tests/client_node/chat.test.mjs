// SPDX-License-Identifier: Apache-2.0
// Chats and responses, with a model that says what a script has (tests/support/scripted_model.py). Needs what
// example.test.mjs needs.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { PATIENCE, eventually, freePort, serve } from './serving.mjs';

const { LINTEL_EXAMPLE, LINTEL_ROOT } = process.env;
const { Answer, Client, LintelError } = await import(pathToFileURL(join(LINTEL_EXAMPLE, 'lintel.mjs')));
const { schemaOf, toJson } = await import(pathToFileURL(join(LINTEL_EXAMPLE, 'chat.mjs')));
const require = createRequire(join(LINTEL_EXAMPLE, 'lintel.mjs'));
const grpc = require('@grpc/grpc-js');
const { z } = require('zod');

const LIMITS = ['--max-new-tokens', '1000000000', '--chat-max-tokens', '1000000', '--outbox-tokens', '256'];
const FOREVER = 'say it forever';
const CITY = z.object({ name: z.string(), population: z.int() });
const weather = {
  name: 'weather',
  description: 'The weather in a city.',
  parameters: z.object({ city: z.string(), unit: z.enum(['C', 'F']).default('C') }),
  run: ({ city, unit }) => `sunny in ${city}, 20 ${unit}`,
};

let directory;
let model;

before(() => {
  directory = mkdtempSync(join(tmpdir(), 'lintel-chat-'));
  model = join(directory, 'qwen35');
  execFileSync('python3', [join(LINTEL_ROOT, 'tests/support/scripted_model.py'), model]);
});
after(() => rmSync(directory, { recursive: true }));

async function allOf(stream, onPiece = () => {}) {
  const all = [];
  for await (const piece of stream) {
    all.push(piece);
    await onPiece(all);
  }
  return all;
}

const joined = (pieces, name) => pieces.map((piece) => piece[name]).join('');

describe('a chat', () => {
  let server, client;
  before(async () => {
    server = await serve(model, ...LIMITS);
    client = new Client(server.address, { timeout: PATIENCE });
  });
  after(async () => {
    client.close();
    assert.equal(await server.stop(), 0);
  });
  const isFree = () => eventually(async () => (await server.metric('lintel_requests_running')) === 0, 'a free slot');

  it('has text, usage and why it ended', async () => {
    const answer = await client.chat({ messages: 'Hello.', model: 'qwen35', seed: 7n }).answer();
    assert.ok(answer instanceof Answer);
    assert.equal(answer.content, 'Good morrow, friend.');
    assert.deepEqual([answer.reasoning, answer.calls, answer.finishReason], ['', [], 'STOP']);
    assert.deepEqual([answer.model, answer.seed, answer.usage.completionTokens], ['qwen35', '7', 3]); // with the end
    assert.deepEqual(answer.message, { role: 'assistant', content: 'Good morrow, friend.' });
    assert.throws(() => answer.parsed, /has no schema/);
  });

  it('streams its pieces, and has the whole after them', async () => {
    const chat = client.chat({ messages: [{ role: 'user', content: 'Hello.' }], maxTokens: 50 });
    assert.equal(joined(await allOf(chat), 'content'), 'Good morrow, friend.');
    assert.equal((await chat.answer()).content, 'Good morrow, friend.');
  });

  it('has its reasoning apart from the content', async () => {
    const chat = client.chat({ messages: 'What is the sum of 2 and 3?' });
    const deltas = await allOf(chat);
    assert.deepEqual([joined(deltas, 'reasoning'), joined(deltas, 'content')], ['Two and three.', '5']);
    const { reasoning, message, usage } = await chat.answer();
    assert.deepEqual([reasoning, message.reasoning_content, usage.reasoningTokens], ['Two and three.', 'Two and three.', 3]);
  });

  it('says what ended it', async () => {
    const chat = client.chat({ messages: 'Hello.', stop: 'friend', returnTokenIds: true });
    const { content, stopString, atContextEnd, timings, tokenIds, promptIds } = await chat.answer();
    assert.deepEqual([content, stopString, atContextEnd], ['Good morrow, ', 'friend', false]);
    assert.deepEqual(promptIds, (await client.renderChat({ messages: 'Hello.' })).ids);
    assert.match(await client.detokenize(tokenIds), /^Good morrow,/);
    assert.ok(timings.prompt + timings.generation > 0);
  });

  it('has several choices, and log-probabilities', async () => {
    const answers = await client.chat({ messages: 'Hello.', n: 3, seed: 5, logprobs: true, topLogprobs: 2 }).answers();
    assert.deepEqual(answers.map(({ choice, seed }) => [choice, seed]), [[0, '5'], [1, '6'], [2, '7']]);
    assert.equal(answers[2].tokens.map(({ text }) => text).join(''), 'Good morrow, friend.');
    assert.ok(answers[2].tokens.every(({ log2Prob, top }) => log2Prob <= 0 && top.length === 2));
  });

  it('runs tools until the model has its answer', async () => {
    const messages = [{ role: 'user', content: 'How is the weather in Bern?' }];
    for (let answer; answer?.calls.length !== 0; ) {
      answer = await client.chat({ messages, tools: [weather] }).answer();
      messages.push(answer.message);
      for (const call of answer.calls) messages.push(call.result(await call.run()));
    }
    assert.equal(messages.length, 4);
    assert.equal(messages[1].tool_calls[0].function.arguments, '{"city": "Bern"}');
    assert.equal(messages[2].content, 'sunny in Bern, 20 C');
    assert.equal(messages[3].content, 'It is sunny in Bern.');

    const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
    const tools = [{ type: 'function', function: { name: 'weather', parameters } }];
    const answer = await client.chat({ messages: 'The weather?', tools }).answer();
    assert.equal(answer.finishReason, 'TOOL_CALLS');
    assert.deepEqual(answer.calls.map(({ name, args }) => [name, args]), [['weather', { city: 'Bern' }]]);
    await assert.rejects(answer.calls[0].run(), /the tool weather, which the model calls, has no run/);
    assert.equal(answer.calls[0].output({ degrees: 20 }).output, '{"degrees":20}');
  });

  it('streams a call in pieces, and leaves out one that a limit cut', async () => {
    const calls = (await allOf(client.chat({ messages: 'The weather?', tools: [weather] }))).flatMap(({ call }) => call ?? []);
    assert.deepEqual([calls[0].name, joined(calls, 'arguments')], ['weather', '{"city": "Bern"}']);
    assert.ok(calls.length > 1 && calls[0].id);
    const cut = await client.chat({ messages: 'The weather?', tools: [weather], maxTokens: 3 }).answer();
    assert.deepEqual([cut.calls, cut.finishReason], [[], 'LENGTH']);
  });

  it('answers in the form of a schema of zod, or a JSON schema', async () => {
    const { parsed } = await client.chat({ messages: 'Name a city.', schema: CITY }).answer();
    assert.deepEqual(parsed, { name: 'Bern', population: 134000 });
    const schema = await schemaOf(CITY);
    assert.equal(schema.additionalProperties, false);
    assert.deepEqual((await client.chat({ messages: 'Name a city.', schema }).answer()).parsed, parsed);
    const cut = await client.chat({ messages: 'Name a city.', schema: CITY, maxTokens: 1 }).answer();
    assert.throws(() => cut.parsed, /a limit cut the answer/);
    const refined = CITY.extend({ name: z.string().refine((name) => name === 'Rome', 'is not Rome') });
    const other = await client.chat({ messages: 'Name a city.', schema: refined }).answer();
    assert.throws(() => other.parsed, /is not Rome/);
    const response = await client.respond({ input: 'Name a city.', schema: CITY }).response();
    assert.deepEqual(response.parsed, parsed);
  });

  it('has errors that name the field', async () => {
    const unheld = { type: 'array', uniqueItems: true, items: {} };
    for (const [stream, pattern] of [
      [client.chat({ messages: 'x', temperature: -1 }), /sampling\.temperature: -1 is not from 0 to 1000/],
      [client.chat({ messages: [{ role: 'user', content: 7 }] }), /messages\[0\]\.content/],
      [client.chat({ messages: 'x', chatTemplate: 'x' }), /chat_template/],
      [client.chat({ messages: 'x', schema: unheld }), /uniqueItems/],
      [client.chat({ messages: 'x', model: 'nope' }), /^NOT_FOUND: no model is named nope: there are qwen35$/],
    ]) {
      await assert.rejects(stream.answer(), (error) => {
        assert.ok(error instanceof LintelError, error.stack);
        assert.match(error.message, pattern);
        return true;
      });
    }
    await assert.rejects(client.respond({ input: 'x', previousResponseId: 'resp_none' }).response(), /previous_response_id/);
    for (const wrong of [undefined, 7, {}]) await assert.rejects(client.chat({ messages: wrong }).answer(), TypeError);
    await assert.rejects(client.chat({ messages: 'x', tools: [{}] }).answer(), /a tool is .*the name is missing/);
    await assert.rejects(client.chat({ messages: 'x', schema: 'City' }).answer(), /a schema is an object, not City/);
  });

  it('that is left, aborted or out of time ends on the server', async () => {
    const left = client.chat({ messages: FOREVER });
    for await (const _ of left) break;
    await isFree();
    await assert.rejects(left.answer(), (error) => {
      assert.equal(error.message, 'CANCELLED: the stream was left before its end');
      assert.match(error.answers[0].content, /^ on/);
      return true;
    });
    const abort = new AbortController();
    const aborted = client.chat({ messages: FOREVER }, { signal: abort.signal });
    await assert.rejects(allOf(aborted, ({ length }) => length === 10 && abort.abort()), { code: grpc.status.CANCELLED });
    await isFree();
    await assert.rejects(client.chat({ messages: FOREVER }, { timeout: 200 }).answer(), (error) => {
      assert.equal(error.code, grpc.status.DEADLINE_EXCEEDED);
      assert.ok(error.answers[0].content.length > 0);
      return true;
    });
    for await (const _ of client.respond({ input: FOREVER, store: false })) break;
    await isFree();
  });

  it('shows its prompt', async () => {
    const { text, ids, turnBoundary, model: name } = await client.renderChat({ messages: 'Hello.', tools: [weather] });
    assert.match(text, /"description": "The weather in a city\."/);
    assert.ok(text.includes('Hello.<|im_end|>') && ids.length > turnBoundary && turnBoundary > 0);
    assert.equal(name, 'qwen35');
  });
});

describe('a response', () => {
  let server, client;
  const start = async (...flags) => {
    server = await serve(model, ...LIMITS, ...flags);
    client = new Client(server.address, { timeout: PATIENCE });
  };
  before(() => start());
  after(async () => {
    client.close();
    assert.equal(await server.stop(), 0);
  });

  it('continues, branches, is found and deleted', async () => {
    const first = await client.respond({ input: 'Hello.', instructions: 'Be brief.' }).response();
    assert.deepEqual([first.status, first.content], ['completed', 'Good morrow, friend.']);
    const again = await client.respond({ input: 'Hello again.', previousResponseId: first }).response();
    const branch = await client.respond({ input: 'The sum?', previousResponseId: first.id, reasoningEffort: 'low' }).response();
    assert.deepEqual([again, branch].map(({ previousResponseId }) => previousResponseId), [first.id, first.id]);
    assert.deepEqual([again.content, branch.reasoning, branch.content], ['Good night, then.', 'Two and three.', '5']);
    assert.ok(again.usage.promptTokens > first.usage.promptTokens);
    assert.deepEqual((await client.getResponse(again.id)).data, again.data);
    await client.deleteResponse(again.id);
    await assert.rejects(client.getResponse(again.id), { code: grpc.status.NOT_FOUND });
  });

  it('streams its events in order, and takes the output of its calls', async () => {
    const stream = client.respond({ input: 'The sum?' });
    const events = await allOf(stream);
    assert.deepEqual(events.map(({ data }) => data.sequence_number), [...events.keys()]);
    assert.deepEqual([events[0].type, events.at(-1).type], ['response.created', 'response.completed']);
    assert.deepEqual([joined(events, 'reasoning'), joined(events, 'content')], ['Two and three.', '5']);
    assert.deepEqual((await stream.response()).data, events.at(-1).data.response);

    const first = await client.respond({ input: 'The weather?', tools: [weather], toolChoice: weather }).response();
    const input = await Promise.all(first.calls.map(async (call) => call.output(await call.run())));
    assert.equal(input[0].output, 'sunny in Bern, 20 C');
    const last = await client.respond({ input, tools: [weather], previousResponseId: first }).response();
    assert.equal(last.content, 'It is sunny in Bern.');
  });

  it('runs in the background, and is cancelled', async () => {
    const running = await client.respond({ input: FOREVER, background: true }).response();
    assert.match(running.status, /^(queued|in_progress)$/);
    assert.equal((await client.cancelResponse(running.id)).status, 'cancelled');
  });

  it('comes again with its events, once it is stored', async () => {
    const stream = client.respond({ input: 'The sum?' });
    const events = await allOf(stream);
    const { id, data } = await stream.response();
    const replayed = client.replayResponse(id);
    assert.deepEqual(await allOf(replayed), events);
    assert.deepEqual((await replayed.response()).data, data);
    assert.deepEqual(await allOf(client.replayResponse(id, { startingAfter: 3 })), events.slice(4));
    await assert.rejects(client.replayResponse('resp_none').response(), { code: grpc.status.NOT_FOUND });

    const running = await client.respond({ input: FOREVER, background: true }).response();
    for await (const { content } of client.replayResponse(running.id)) if (content) break;
    await client.cancelResponse(running.id);
    assert.equal((await client.replayResponse(running.id).response()).status, 'cancelled');
  });

  it('has its input listed page by page', async () => {
    const texts = Array.from({ length: 205 }, (_, number) => `Question ${number}?`); // three pages
    const { id } = await client.respond({ input: texts.map((content) => ({ role: 'user', content })) }).response();
    const oldest = await client.listInputItems(id, { ascending: true });
    assert.deepEqual(oldest.map(({ content }) => content[0].text), texts);
    assert.deepEqual(await client.listInputItems(id), oldest.reverse());
    await assert.rejects(client.listInputItems('resp_none'), { code: grpc.status.NOT_FOUND });
  });

  it('has its prompt counted, and its conversation compacted', async () => {
    const first = await client.respond({ input: 'Hello.' }).response();
    assert.equal(await client.countInputTokens({ input: 'Hello.' }), first.usage.promptTokens);
    const request = { input: 'Hello again.', previousResponseId: first, tools: [weather] };
    const count = await client.countInputTokens(request);
    assert.equal(count, (await client.respond(request).response()).usage.promptTokens);
    await assert.rejects(client.countInputTokens({ input: 'x', previousResponseId: 'resp_none' }), /previous_response_id/);

    const [item, ...others] = await client.compactResponse({ model: 'qwen35', previousResponseId: first });
    assert.deepEqual([item.type, others], ['compaction', []]);
    const input = [item, { role: 'user', content: 'Hello again.' }];
    assert.equal(await client.countInputTokens({ input, tools: [weather] }), count);
    assert.equal((await client.respond({ input }).response()).content, 'Good night, then.');
  });

  it('is one for one idempotency key', async () => {
    const ask = (input) => client.respond({ input }, { idempotencyKey: 'hello' }).response();
    assert.deepEqual((await ask('Hello.')).data, (await ask('Hello.')).data);
    await assert.rejects(ask('Other.'), { reason: 'IDEMPOTENCY_KEY_REUSED' });
  });

  it('comes from the first of several servers that answers', async () => {
    const several = new Client(`127.0.0.1:${await freePort()},${server.address}`, { timeout: PATIENCE });
    assert.equal((await several.chat({ messages: 'Hello.' }).answer()).content, 'Good morrow, friend.');
    several.close();
    const others = new Client(`127.0.0.1:${await freePort()},${server.address}`, { timeout: PATIENCE });
    assert.equal((await others.respond({ input: 'Hello.' }).response()).content, 'Good morrow, friend.');
    others.close();
  });

  it('without a server fails at once', async () => {
    const away = new Client(`127.0.0.1:${await freePort()}`, { timeout: PATIENCE });
    for (const call of [() => away.chat({ messages: 'x' }).answer(), () => away.respond({ input: 'x' }).response()]) {
      await assert.rejects(call(), /no server answers at/);
    }
    away.close();
  });

  it('that is stored continues where its server was killed, and one that was forgotten fails', async () => {
    const listen = ['--listen', `127.0.0.1:${await freePort()}`];
    const store = ['--session-store', join(directory, 'store')];
    let running = await serve(model, ...LIMITS, ...listen, ...store);
    const restarted = new Client(running.address, { timeout: PATIENCE });
    const restart = async (...flags) => {
      await running.stop('SIGKILL');
      running = await serve(model, ...LIMITS, ...listen, ...flags);
    };
    const stream = restarted.respond({ input: FOREVER, maxTokens: 5000 });
    const events = await allOf(stream, async ({ length }) => length === 50 && restart(...store));
    assert.deepEqual(events.map(({ data }) => data.sequence_number), [...events.keys()]);
    const response = await stream.response();
    assert.equal(response.id, events[0].data.response.id);
    assert.equal(joined(events, 'content'), response.content);
    assert.equal(response.usage.completionTokens, 5000);

    await restart(); // without a store
    const forgotten = restarted.respond({ input: FOREVER, maxTokens: 1_000_000 });
    await assert.rejects(allOf(forgotten, async ({ length }) => length === 50 && restart()), /UNAVAILABLE: the server lost response resp_/);
    restarted.close();
    assert.equal(await running.stop(), 0);
  });
});

describe('JSON of a request', () => {
  it('has all digits of a BigInt', () => {
    const seed = 2n ** 64n - 1n;
    assert.equal(toJson({ seed, stop: ['a', undefined], name: undefined, run() {}, at: new Date(0), no: null }),
      `{"seed":${seed},"stop":["a",null],"at":"1970-01-01T00:00:00.000Z","no":null}`);
  });
});
