// SPDX-License-Identifier: Apache-2.0
// /v1/responses of the real server: the requests of the Open Responses suite with its demands as a schema, OpenAI's
// own client, and a server that is killed.
//
// Needs LINTEL_SERVER and LINTEL_WRITE_TINY_MODELS, two binaries, and LINTEL_PACKAGES, where the client, ajv and ws are.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { serve } from '../client_node/serving.mjs';

const { LINTEL_PACKAGES, LINTEL_WRITE_TINY_MODELS } = process.env;
const load = async (path) => (await import(pathToFileURL(join(LINTEL_PACKAGES, 'node_modules', path)))).default;
const OpenAI = await load('openai/index.mjs');
const { default: Ajv } = await load('ajv/dist/2020.js');
const WebSocket = await load('ws/wrapper.mjs');
const { ResponsesWS } = await import(
  pathToFileURL(join(LINTEL_PACKAGES, 'node_modules/openai/resources/responses/ws.mjs')));

const golden = (name) => JSON.parse(readFileSync(join(import.meta.dirname, '../golden/chat/responses', name), 'utf8'));
const compliance = golden('compliance.json');
const schema = golden('open_responses.schema.json');
const ajv = new Ajv({ strict: false });
ajv.addSchema(schema, 'suite');

function checkShape(kind, value) {
  const validate = ajv.getSchema(`suite#/$defs/${kind}`);
  assert.ok(validate(value), `${kind}: ${JSON.stringify(validate.errors?.slice(0, 3))} in ${JSON.stringify(value)}`);
}

let directory;
let server;
let url;

// A model with random weights ends by itself where its end token is likely, and a text of JSON where its quotation
// mark is.
const END_TOKEN = 1460;
const QUOTATION_MARK = 1;
const ending = { model: 'chat', seed: 7, logit_bias: { [END_TOKEN]: 7, [QUOTATION_MARK]: 5 } };

function post(path, body, headers = {}) {
  return fetch(`${url}/v1${path}`, {
    method: 'POST', headers: { 'Content-Type': 'application/json', ...headers }, body: JSON.stringify(body),
  });
}

// The events of a stream, as far as it comes.
async function* eventsOf(response) {
  let text = '';
  for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
    text += piece;
    for (let end; (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) {
      const lines = text.slice(0, end).split('\n');
      if (lines[0] === 'data: [DONE]') return;
      const event = JSON.parse(lines[1].replace(/^data: /, ''));
      assert.equal(lines[0], `event: ${event.type}`);
      yield event;
    }
  }
}

async function allOf(events) {
  const all = [];
  for await (const event of events) all.push(event);
  return all;
}

// A request of the suite, with what answers of earlier steps are to be put in.
function filled(value, answers) {
  if (typeof value === 'string') {
    const [, step, member] = /^\$(\d+)\.(\w+)$/.exec(value) ?? [];
    if (step === undefined) return value;
    const answer = answers[Number(step)];
    return member === 'call_id' ? answer.output.find((item) => item.type === 'function_call').call_id : answer[member];
  }
  if (Array.isArray(value)) return value.flatMap((each) => filled(each, answers));
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, filled(each, answers)]));
}

// A WebSocket of /v1/responses, a turn at a time.
class Connection {
  #arrived = [];
  #wake = () => {};

  static async open() {
    const connection = new Connection();
    connection.socket = new WebSocket(`${url.replace(/^http/, 'ws')}/v1/responses`);
    connection.socket.on('message', (data, isBinary) => {
      assert.equal(isBinary, false);
      connection.#arrived.push(JSON.parse(data.toString()));
      connection.#wake();
    });
    connection.closed = new Promise((done) => connection.socket.on('close', done));
    await new Promise((done, failed) => connection.socket.once('open', done).once('error', failed));
    return connection;
  }

  // The events of a turn: of one that is refused the error alone.
  async turn(body) {
    this.socket.send(JSON.stringify(body));
    for (const events = []; ;) {
      while (this.#arrived.length === 0) await new Promise((wake) => (this.#wake = wake));
      events.push(this.#arrived.shift());
      if (/^(error|response\.(completed|incomplete|failed))$/.test(events.at(-1).type)) return events;
    }
  }

  async close() {
    this.socket.close();
    return this.closed;
  }
}

async function runTurn(step, answers, connection) {
  const events = await connection.turn({ ...filled(step.body, answers), ...ending });
  if (step.error) {
    const [event] = events;
    checkShape('websocket_error', event);
    assert.ok(event.status >= 400 && event.status < 600);
    if (step.error !== 'any') assert.equal(event.error.code, step.error);
    return undefined;
  }
  events.forEach((event, index) => {
    if (step.every_event) checkShape(step.every_event, event);
    assert.equal(event.sequence_number, index);
  });
  const answer = events.at(-1).response;
  checkShape(step.schema, answer);
  if (step.status) assert.equal(answer.status, step.status);
  assert.notEqual(answer.output.length, 0);
  return answer;
}

async function runSocketTest(test) {
  const answers = [];
  let connection = await Connection.open();
  for (const step of test.steps) {
    if (step.reconnect) {
      await connection.close();
      connection = await Connection.open();
    }
    answers.push(await (step.http_step ? runStep(step, answers) : runTurn(step, answers, connection)));
  }
  assert.equal(await connection.close(), 1005);
}

async function runStep(step, answers) {
  const body = { ...filled(step.body, answers), ...ending };
  if (step.no_model) delete body.model;
  // Random weights call nothing by themselves, and find no required name among all that may come.
  if (step.output === 'function_call' || step.events) body.tool_choice ??= 'required';
  body.tools = body.tools?.map((tool) => ({ ...tool, parameters: { ...tool.parameters, additionalProperties: false } }));
  const response = await post(step.path ?? '/responses', body);
  if (step.http) {
    assert.ok(step.http.includes(response.status), `status ${response.status}`);
    return undefined;
  }
  assert.equal(response.status, 200, await (response.ok ? '' : response.text()));
  let answer;
  if (body.stream) {
    const seen = new Set();
    let next = 0;
    for await (const event of eventsOf(response)) {
      checkShape('event', event);
      assert.equal(event.sequence_number, next++);
      seen.add(event.item ? `${event.type}(${event.item.type})` : event.type);
      answer = event.response ?? answer;
    }
    for (const event of step.events ?? []) assert.ok(seen.has(event), `${event} in ${[...seen]}`);
  } else {
    answer = await response.json();
  }
  checkShape(step.schema, answer);
  if (step.status) assert.equal(answer.status, step.status);
  if (step.output) assert.notEqual(answer.output.length, 0);
  if (step.output && step.output !== 'any') assert.ok(answer.output.some((item) => item.type === step.output));
  return answer;
}

describe('/v1/responses', () => {
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-responses-'));
    await promisify(execFile)(LINTEL_WRITE_TINY_MODELS, [directory]);
    server = await serve(join(directory, 'chat'), '--http-listen', '127.0.0.1:0', '--max-new-tokens', '1000000');
    url = await server.httpAddress();
  });
  after(async () => {
    await server?.stop();
    rmSync(directory, { recursive: true, force: true });
  });

  for (const test of compliance.tests) {
    if (test.websocket) {
      it(`complies: ${test.id}`, { timeout: 30_000 }, () => runSocketTest(test));
      continue;
    }
    it(`${compliance.must.includes(test.id) ? 'complies' : 'refuses by name'}: ${test.id}`, async () => {
      const answers = [];
      for (const step of test.steps) answers.push(await runStep(step, answers));
    });
  }

  it('takes the requests of the suite at once', async () => {
    const steps = compliance.tests.filter((test) => !test.websocket).map((test) => test.steps[0]).filter(Boolean);
    await Promise.all([...steps, ...steps].map((step) => runStep(step, [])));
  });

  it("serves OpenAI's client: create, stream, tools, retrieve, input items, delete", async () => {
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
    const request = { ...ending, logit_bias: undefined, max_output_tokens: 30 };
    const whole = await client.responses.create({ ...request, input: 'Good morrow.' });
    assert.equal(whole.status, 'incomplete');
    assert.ok(whole.output_text.length > 0);
    const stream = client.responses.stream({ ...request, input: 'Good morrow.' });
    let text = '';
    stream.on('response.output_text.delta', (event) => (text += event.delta));
    const last = await stream.finalResponse();
    assert.equal(text, whole.output_text);
    assert.equal(last.output_text, whole.output_text);

    const tools = [{ type: 'function', name: 'get_weather', strict: true, parameters: {
      type: 'object', properties: { city: { enum: ['Bern', 'Rome'] } }, required: ['city'], additionalProperties: false } }];
    const call = await client.responses.create({
      ...ending, input: 'Weather?', tools, tool_choice: 'required', parallel_tool_calls: false, previous_response_id: whole.id });
    const [{ type, name, arguments: given, call_id: id }] = call.output;
    assert.deepEqual([type, name], ['function_call', 'get_weather']);
    assert.ok(['Bern', 'Rome'].includes(JSON.parse(given).city));
    const next = await client.responses.create({
      ...request, tools, tool_choice: 'none', previous_response_id: call.id,
      input: [{ type: 'function_call_output', call_id: id, output: 'sunny' }] });
    assert.equal(next.previous_response_id, call.id);
    assert.ok(next.usage.input_tokens > call.usage.input_tokens);

    const again = await client.responses.retrieve(next.id);
    assert.deepEqual(again.output, next.output);
    const items = await allOf(client.responses.inputItems.list(next.id));
    assert.deepEqual(items.map((item) => item.output), ['sunny']);
    const events = await allOf(await client.responses.retrieve(next.id, { stream: true, starting_after: 2 }));
    assert.equal(events[0].sequence_number, 3);
    assert.deepEqual(events.at(-1).response.output, next.output);

    await client.responses.delete(next.id);
    await assert.rejects(client.responses.retrieve(next.id), (error) => {
      assert.ok(error instanceof OpenAI.NotFoundError);
      assert.equal(error.code, 'response_not_found');
      return true;
    });
    await assert.rejects(client.responses.create({ ...request, input: 'x', previous_response_id: next.id }), OpenAI.BadRequestError);
    assert.ok((await client.responses.inputTokens.count({ model: 'chat', input: 'Good morrow.' })).input_tokens > 0);
  });

  it("serves OpenAI's client over a WebSocket", async () => {
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
    const request = { ...ending, logit_bias: undefined, max_output_tokens: 30 };
    const whole = await client.responses.create({ ...request, input: 'Good morrow.' });
    const socket = new ResponsesWS(client);
    const events = socket.stream();
    const turn = async (body) => {
      socket.send({ type: 'response.create', ...request, store: false, ...body });
      let text = '';
      for (;;) {
        const { value } = await events.next();
        if (value.type === 'error') throw value.error;
        if (value.message?.type === 'response.output_text.delta') text += value.message.delta;
        if (value.message?.type === 'response.incomplete') return { text, response: value.message.response };
      }
    };
    const first = await turn({ input: 'Good morrow.' });
    assert.equal(first.text, whole.output_text);
    const next = await turn({ input: 'What news?', previous_response_id: first.response.id });
    assert.ok(next.response.usage.input_tokens > first.response.usage.input_tokens);
    await assert.rejects(turn({ input: 'x', previous_response_id: 'resp_missing' }), /unknown, deleted or expired/);
    socket.close();
    for await (const event of events) if (event.type === 'close') assert.equal(event.code, 1000);
  });

  it('answers a request by its Idempotency-Key with the same values after kill -9 in the middle', async () => {
    const store = join(directory, 'store');
    // Its reader holds a stream up, so that it is not over when the server is killed.
    const start = () => serve(join(directory, 'chat'), '--http-listen', '127.0.0.1:0', '--session-store', store,
      '--outbox-tokens', '256');
    const tokens = 30_000;
    const body = { model: 'chat', input: 'Tell a long story.', max_output_tokens: tokens, stream: true,
      logit_bias: { [END_TOKEN]: -100 } };
    const key = { 'Idempotency-Key': 'story' };
    const outer = url;
    let running = await start();
    try {
      url = await running.httpAddress();
      const cut = [];
      const response = await post('/responses', body, key);
      assert.equal(response.headers.get('lintel-durability'), null);
      await assert.rejects(async () => {
        for await (const event of eventsOf(response)) {
          cut.push(event);
          if (cut.length === 200) await running.stop('SIGKILL');
        }
      });
      const [{ response: { id } }] = cut;

      running = await start();
      url = await running.httpAddress();
      const found = await (await fetch(`${url}/v1/responses/${id}`)).json();
      assert.equal(found.status, 'in_progress');
      const whole = await allOf(eventsOf(await post('/responses', body, key)));
      assert.deepEqual(whole.slice(0, cut.length), cut);
      assert.equal(whole.at(-1).response.id, id);
      assert.equal(whole.at(-1).response.usage.output_tokens, tokens);

      await running.stop('SIGKILL'); // a response that was seen to end survives
      running = await start();
      url = await running.httpAddress();
      assert.deepEqual(await (await fetch(`${url}/v1/responses/${id}`)).json(), whole.at(-1).response);
      const again = await allOf(eventsOf(await post('/responses', body, key)));
      assert.deepEqual(again, whole);

      // A background response continues by itself, with the same text.
      const background = await (await post('/responses', { ...body, stream: false, background: true, seed: 5 })).json();
      await running.stop('SIGKILL');
      running = await start();
      url = await running.httpAddress();
      let events;
      do events = await fetch(`${url}/v1/responses/${background.id}?stream=true`); while (events.status === 409);
      const over = await allOf(eventsOf(events));
      const same = await (await post('/responses', { ...body, stream: false, seed: 5 })).json();
      assert.equal(over.at(-1).response.id, background.id);
      assert.deepEqual(over.at(-1).response.output[0].content, same.output[0].content);
    } finally {
      url = outer;
      await running.stop();
    }
  });
});
