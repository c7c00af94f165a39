// SPDX-License-Identifier: Apache-2.0
// LangChain's ChatOpenAI against the real server: what it sends is taken, what comes back is what it reads.
//
// Needs LINTEL_SERVER, a binary, and LINTEL_PACKAGES, where the client is.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { serve } from '../client_node/serving.mjs';
import { writeToolModel } from './tool_model.mjs';

const { resolve } = createRequire(join(process.env.LINTEL_PACKAGES, 'package.json'));
const load = (name) => import(pathToFileURL(resolve(name)));
const { ChatOpenAI } = await load('@langchain/openai');
const { HumanMessage, SystemMessage, ToolMessage } = await load('@langchain/core/messages');
const { tool } = await load('@langchain/core/tools');

const WEATHER = {
  type: 'object',
  properties: { city: { type: 'string', enum: ['Rome', 'Oslo'] }, days: { type: 'integer', minimum: 1, maximum: 7 } },
  required: ['city', 'days'],
  additionalProperties: false,
};
const weather = tool(({ city, days }) => `${days} days of rain in ${city}`, {
  name: 'weather', description: 'The weather of the next days.', schema: WEATHER });

function checkWeather({ city, days }) {
  assert.ok(['Rome', 'Oslo'].includes(city));
  assert.ok(Number.isInteger(days) && days >= 1 && days <= 7);
}

let directory;
let server;
let options;

const model = (more) => new ChatOpenAI({ ...options, ...more });

describe("LangChain's client", () => {
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-langchain-'));
    writeToolModel(directory);
    server = await serve(`chat=${directory}`, '--http-listen', '127.0.0.1:0');
    options = {
      model: 'chat', apiKey: 'none', maxRetries: 0, maxTokens: 600, modelKwargs: { seed: 5 },
      configuration: { baseURL: `${await server.httpAddress()}/v1` },
    };
  });
  after(async () => {
    await server?.stop();
    rmSync(directory, { recursive: true, force: true });
  });

  it('chats with every option that it has', async () => {
    const chat = model({
      maxTokens: 20, temperature: 0.7, topP: 0.9, frequencyPenalty: 0.1, presencePenalty: 0.1, stop: ['\n\n\n'], n: 1,
      user: 'someone', logprobs: true, topLogprobs: 2, metadata: { of: 'the tracer' },
    });
    const answer = await chat.invoke([new SystemMessage('You are a poet.'), new HumanMessage('Good morrow.')]);
    assert.equal(typeof answer.content, 'string');
    assert.notEqual(answer.content, '');
    assert.equal(answer.usage_metadata.output_tokens, 20);
    assert.ok(answer.usage_metadata.input_tokens > 5);
    assert.equal(answer.response_metadata.finish_reason, 'length');
  });

  it('streams the text that it gets at once', async () => {
    const chat = model({ maxTokens: 40 });
    const question = 'Good morrow, what news is there of the king, who went to the war with all his men?';
    const whole = await chat.invoke(question);
    let pieces = 0;
    let streamed;
    for await (const piece of await chat.stream(question)) {
      streamed = streamed === undefined ? piece : streamed.concat(piece);
      pieces += 1;
    }
    assert.ok(pieces > 2);
    assert.equal(streamed.content, whole.content);
    assert.equal(streamed.usage_metadata.output_tokens, 40);
    assert.equal(streamed.usage_metadata.input_tokens, whole.usage_metadata.input_tokens);
    assert.ok(streamed.usage_metadata.input_token_details.cache_read > 0); // the prompt of the first call
  });

  it('gets calls of bound tools, and answers their results', async () => {
    const chat = model().bindTools([weather], { tool_choice: 'required', parallel_tool_calls: false, strict: true });
    const history = [new HumanMessage('What weather will it be?')];
    const asked = await chat.invoke(history);
    assert.equal(asked.response_metadata.finish_reason, 'tool_calls');
    assert.deepEqual(asked.invalid_tool_calls, []);
    assert.equal(asked.tool_calls.length, 1);
    const [call] = asked.tool_calls;
    assert.equal(call.name, 'weather');
    checkWeather(call.args);

    const result = await weather.invoke(call);
    assert.ok(result instanceof ToolMessage);
    history.push(asked, result);
    const answer = await model({ maxTokens: 10 }).bindTools([weather], { tool_choice: 'none' }).invoke(history);
    assert.deepEqual(answer.tool_calls, []);
    assert.equal(answer.usage_metadata.output_tokens, 10);
  });

  it('streams calls in pieces that make them whole', async () => {
    const chat = model().bindTools([weather], { tool_choice: 'weather', parallel_tool_calls: false });
    let streamed;
    for await (const piece of await chat.stream('What weather will it be?')) {
      streamed = streamed === undefined ? piece : streamed.concat(piece);
    }
    assert.deepEqual(streamed.invalid_tool_calls, []);
    assert.equal(streamed.tool_calls.length, 1);
    checkWeather(streamed.tool_calls[0].args);
  });

  for (const method of ['jsonSchema', 'functionCalling']) {
    it(`parses structured output by ${method}`, async () => {
      // This model would call again and again.
      const chat = model({ modelKwargs: { seed: 5, parallel_tool_calls: false } })
        .withStructuredOutput(WEATHER, { name: 'weather', method, strict: true, includeRaw: true });
      const { raw, parsed } = await chat.invoke('What weather will it be?');
      assert.notEqual(raw.response_metadata.finish_reason, 'length');
      checkWeather(parsed);
    });
  }

  it('gets several choices of a batch of prompts', async () => {
    const { generations } = await model({ maxTokens: 5, n: 2 }).generate([
      [new HumanMessage('Good morrow.')], [new HumanMessage('Good night.')],
    ]);
    assert.deepEqual(generations.map((choices) => choices.length), [2, 2]);
  });

  it('gets the refusal of a schema by name', async () => {
    const schema = { ...WEATHER, properties: { ...WEATHER.properties, days: { type: 'array', uniqueItems: true } } };
    const chat = model().withStructuredOutput(schema, { name: 'weather', method: 'jsonSchema', strict: true });
    await assert.rejects(chat.invoke('What weather will it be?'), (error) => {
      assert.equal(error.status, 400);
      assert.match(error.message, /uniqueItems/);
      return true;
    });
  });
});
