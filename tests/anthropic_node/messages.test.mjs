// SPDX-License-Identifier: Apache-2.0
// Anthropic's own client against the real server, with models that say given texts.
//
// Needs LINTEL_SERVER, a binary, and LINTEL_PACKAGES, where the client and zod are.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { PATIENCE, serve } from '../client_node/serving.mjs';
import { writeScriptedModel } from './scripted_model.mjs';

const { LINTEL_PACKAGES } = process.env;
const load = (path) => import(pathToFileURL(join(LINTEL_PACKAGES, 'node_modules', path)));
const { default: Anthropic } = await load('@anthropic-ai/sdk/index.mjs');
const { betaZodTool } = await load('@anthropic-ai/sdk/helpers/beta/zod.mjs');
const { zodOutputFormat } = await load('@anthropic-ai/sdk/helpers/zod.mjs');
const { z } = await load('zod/index.js');

let directory;
let server; // of the models hello, caller and forced, which think and call, and json
let client;

const ask = (content, more = {}) => ({
  model: 'hello', max_tokens: 100, temperature: 0, messages: [{ role: 'user', content }], ...more,
});
const weather = {
  name: 'get_weather', description: 'The weather of a city',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};
const thinking = { type: 'enabled', budget_tokens: 1024 };

describe("Anthropic's client", () => {
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-anthropic-'));
    const model = (name, script) => {
      writeScriptedModel(join(directory, name), script);
      return `${name}=${join(directory, name)}`;
    };
    const tokens = join(directory, 'tokens');
    writeFileSync(tokens, `ada generate sha256:${createHash('sha256').update('key-of-ada').digest('hex')}\n`);
    server = await serve(model('hello', { answer: ['Hello', ' there', '.'] }),
      '--model', model('caller', {
        answer: ['I should', ' look.', '</think>', '\n\nI look.\n', '<tool_call>',
          '\n{"name": "get_weather", "arguments": {"city": ', '"Oslo"}}\n', '</tool_call>'],
        afterTool: ['It is', ' sunny.'],
      }),
      '--model', model('forced', {
        answer: ['I see.', '</think>', '<tool_call>', '\n{"name": "get_weather", "arguments": {"city": ', '"Oslo"}}\n', '</tool_call>'],
      }),
      '--model', model('json', { answer: ['{"city": ', '"Oslo"', ', "days": ', '3', '}'] }),
      '--http-listen', '127.0.0.1:0', '--auth-tokens', tokens);
    client = new Anthropic({ baseURL: await server.httpAddress(), apiKey: 'key-of-ada', maxRetries: 0 });
  });
  after(async () => {
    await server?.stop();
    rmSync(directory, { recursive: true, force: true });
  });

  it('gets a message', async () => {
    const { data: message, request_id: id } = await client.messages.create(ask('Hi')).withResponse();
    assert.deepEqual(message.content, [{ type: 'text', text: 'Hello there.' }]);
    assert.deepEqual([message.type, message.role, message.model, message.stop_reason, message.stop_sequence],
      ['message', 'assistant', 'hello', 'end_turn', null]);
    assert.equal(message.id, `msg_${id}`);
    assert.equal(message._request_id, id);
    assert.equal(message.usage.output_tokens, 4); // three, and the one that ends it
    assert.equal(message.usage.cache_creation_input_tokens, 0);
  });

  it('counts the tokens of a request as its message does', async () => {
    const request = ask('How many?', { system: 'Be brief.' });
    const { usage } = await client.messages.create(request);
    const { max_tokens, temperature, ...counted } = request;
    const count = await client.messages.countTokens(counted);
    assert.equal(count.input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
  });

  it('ends at a stop sequence, or a limit, and continues a last message of the assistant', async () => {
    const stopped = await client.messages.create(ask('Hi', { stop_sequences: [' there'] }));
    assert.deepEqual([stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence],
      ['Hello', 'stop_sequence', ' there']);
    assert.equal((await client.messages.create(ask('Hi', { max_tokens: 1 }))).stop_reason, 'max_tokens');
    const request = ask('Hi');
    const { input_tokens: tokens } = await client.messages.countTokens({ model: 'hello', messages: request.messages });
    request.messages.push({ role: 'assistant', content: 'Well:\n' }); // the model begins again here
    const continued = await client.messages.create(request);
    assert.equal(continued.content[0].text, 'Hello there.');
    assert.equal(continued.usage.input_tokens + continued.usage.cache_read_input_tokens, tokens + 'Well:\n'.length);
  });

  it('streams a message, by events and by the stream helper', async () => {
    const types = [];
    for await (const event of await client.messages.create(ask('Hi', { stream: true }))) types.push(event.type);
    assert.deepEqual(types.filter((type, i) => type !== types[i - 1]), ['message_start', 'content_block_start',
      'content_block_delta', 'content_block_stop', 'message_delta', 'message_stop']);
    let text = '';
    const stream = client.messages.stream(ask('Hi')).on('text', (piece) => (text += piece));
    const message = await stream.finalMessage();
    assert.equal(text, 'Hello there.');
    assert.equal(await stream.finalText(), text);
    assert.equal(message.stop_reason, 'end_turn');
    assert.equal(message.usage.output_tokens, 4);
    assert.equal(message.id, `msg_${stream.request_id}`);
  });

  it('streams thinking and a call, and takes both back with the result', async () => {
    const request = ask('Weather?', { model: 'caller', tools: [weather], thinking });
    const seen = { thinking: '', signature: '', json: '' };
    const stream = client.messages.stream(request)
      .on('thinking', (piece) => (seen.thinking += piece))
      .on('signature', (signature) => (seen.signature = signature))
      .on('inputJson', (piece) => (seen.json += piece));
    const message = await stream.finalMessage();
    assert.equal(seen.thinking, 'I should look.');
    assert.ok(seen.signature.length > 20);
    assert.deepEqual(JSON.parse(seen.json), { city: 'Oslo' });
    assert.deepEqual(message.content.map((block) => block.type), ['thinking', 'text', 'tool_use']);
    assert.deepEqual(message.content[2].input, { city: 'Oslo' });
    assert.equal(message.stop_reason, 'tool_use');
    const whole = await client.messages.create(request);
    assert.deepEqual(whole.content.slice(1), message.content.slice(1).map((block, i) =>
      i === 0 ? block : { ...block, id: whole.content[2].id }));

    request.messages.push({ role: 'assistant', content: message.content },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: message.content[2].id, content: 'sunny' }] });
    const next = await client.messages.create(request);
    assert.equal(next.content[0].text, 'It is sunny.');
    assert.equal(next.stop_reason, 'end_turn');
    const first = message.usage.input_tokens + message.usage.cache_read_input_tokens;
    assert.ok(next.usage.cache_read_input_tokens >= 0.9 * first, JSON.stringify(next.usage));
  });

  it('runs tools by the tool runner, plain and streamed', async () => {
    for (const stream of [false, true]) {
      const asked = [];
      const tool = betaZodTool({
        name: 'get_weather', description: 'The weather of a city', inputSchema: z.object({ city: z.string() }),
        run: ({ city }) => {
          asked.push(city);
          return `sunny in ${city}`;
        },
      });
      const runner = client.beta.messages.toolRunner({ ...ask('Weather?', { model: 'caller', thinking }), tools: [tool], stream });
      const message = await runner.runUntilDone();
      assert.deepEqual(asked, ['Oslo']);
      assert.equal(message.content.find((block) => block.type === 'text').text, 'It is sunny.');
    }
  });

  it('forces calls, forbids them, and leaves server tools out', async () => {
    const request = (tool_choice, more = {}) => client.messages.create(
      ask('Weather?', { model: 'forced', tools: [weather], thinking, tool_choice, ...more }));
    for (const choice of [{ type: 'any' }, { type: 'tool', name: 'get_weather', disable_parallel_tool_use: true }]) {
      const { content } = await request(choice);
      assert.equal(content.at(-1).name, 'get_weather');
    }
    const forbidden = await request({ type: 'none' });
    assert.ok(forbidden.content.every((block) => block.type !== 'tool_use'));
    const tools = [weather, { type: 'web_search_20250305', name: 'web_search' }];
    const { response } = await client.messages.create(ask('Hi', { tools, speed: 'fast' })).withResponse();
    assert.deepEqual(response.headers.get('lintel-ignored').split(', ').sort(), ['speed', 'tools=web_search_20250305']);
    await assert.rejects(request({ type: 'tool', name: 'web_search' }, { tools }), Anthropic.BadRequestError);
  });

  it('parses a document of a schema', async () => {
    const trip = z.object({ city: z.string(), days: z.number().int() });
    const message = await client.messages.parse(
      ask('A trip', { model: 'json', output_config: { format: zodOutputFormat(trip) } }));
    assert.deepEqual(message.parsed_output, { city: 'Oslo', days: 3 });
  });

  it('lists models by pages', async () => {
    const names = [];
    for await (const model of client.models.list({ limit: 2 })) {
      names.push(model.id);
      assert.ok(Math.abs(Date.now() - Date.parse(model.created_at)) < 86_400_000);
    }
    assert.deepEqual(names, ['caller', 'forced', 'hello', 'json']);
    const model = await client.models.retrieve('hello');
    assert.deepEqual([model.type, model.display_name, model.max_input_tokens], ['model', 'hello', 4096]);
  });

  it('gets errors as its classes, with the id of the request', async () => {
    const failure = async (request, type, more = {}) => {
      const error = await client.withOptions(more).messages.create(request).then(assert.fail, (caught) => caught);
      assert.ok(error instanceof type, String(error));
      assert.equal(error.error.request_id, error.requestID);
      return error;
    };
    assert.equal((await failure(ask('Hi'), Anthropic.AuthenticationError, { apiKey: 'wrong' })).type, 'authentication_error');
    assert.equal((await failure(ask('Hi', { model: 'none' }), Anthropic.NotFoundError)).type, 'not_found_error');
    const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'AAAA' } };
    assert.match((await failure(ask([image]), Anthropic.BadRequestError)).message, /messages\[0\]\.content\[0\]\.type: is image/);
    const long = await failure(ask('x'.repeat(5000)), Anthropic.BadRequestError);
    assert.match(long.error.error.message, /^prompt is too long: \d+ tokens > 4096 maximum$/);
    const streamed = client.messages.stream(ask('x'.repeat(5000)));
    await assert.rejects(streamed.finalMessage(), Anthropic.BadRequestError);
  });

  it('takes a bearer token in place of a key', async () => {
    const other = new Anthropic({ baseURL: client.baseURL, apiKey: null, authToken: 'key-of-ada', maxRetries: 0 });
    assert.equal((await other.messages.create(ask('Hi'))).content[0].text, 'Hello there.');
  });
});

const path = (name) => fileURLToPath(new URL(`../../${name}`, import.meta.url));

it('the code of the page of Messages prints an answer', async () => {
  const [, block] = /^```js\n(.*?)^```$/ms.exec(readFileSync(path('docs/messages.md'), 'utf8'));
  const small = await serve(path('weights/text-rwkv7-small'), '--http-listen', '127.0.0.1:0');
  const file = join(LINTEL_PACKAGES, 'snippet.mjs');
  writeFileSync(file, block.replace('http://127.0.0.1:8080', await small.httpAddress()));
  const { stdout } = await promisify(execFile)(process.execPath, [file], { timeout: PATIENCE });
  assert.match(stdout, /\w/);
  assert.equal(await small.stop(), 0);
});
