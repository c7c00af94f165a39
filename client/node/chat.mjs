// SPDX-License-Identifier: Apache-2.0
// Chats and responses: bodies of requests, and what comes back.
import grpc from '@grpc/grpc-js';
import { LintelError } from './errors.mjs';

// camelCase names of members that differ from those of the bodies by more than that.
const CHAT_NAMES = { maxTokens: 'max_completion_tokens' };
const RESPONSE_NAMES = { maxTokens: 'max_output_tokens' };

// {topK: 1} -> {top_k: 1}, at the top alone; what is undefined is left out.
function members(request, names) {
  const own = Object.entries(request).filter(([, value]) => value !== undefined);
  return Object.fromEntries(
    own.map(([name, value]) => [names[name] ?? name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), value]),
  );
}

const isZod = (schema) => typeof schema?.safeParse === 'function';

// A JSON schema of a zod schema (zod 4, an optional peer), or the JSON schema that is given.
export async function schemaOf(schema) {
  if (!isZod(schema)) {
    if (typeof schema !== 'object' || schema === null) throw new TypeError(`a schema is an object, not ${schema}`);
    return schema;
  }
  let zod;
  try {
    zod = await import('zod');
  } catch (error) {
    throw new TypeError('schemas of zod need the package zod, 4 or later', { cause: error });
  }
  if (!zod.toJSONSchema || !schema._zod) throw new TypeError('schemas of zod have to be of zod 4 or later');
  return zod.toJSONSchema(schema, { io: 'input', override: close });
}

// zod leaves out members that an object does not have, so a model need not write any.
function close({ zodSchema, jsonSchema }) {
  const { type, catchall } = zodSchema._zod.def;
  if (type === 'object' && catchall === undefined) jsonSchema.additionalProperties = false;
}

// An answer's text as a value of the schema. Throws where a limit cut it, or where it does not fit.
function parse(schema, text, wasCut) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(wasCut ? 'a limit cut the answer: a larger maxTokens may help' : `the answer is no JSON: ${error.message}`);
  }
  return isZod(schema) ? schema.parse(value) : value;
}

// {name, description, parameters, strict} of a tool: its own, {type: 'function', function} or {type: 'function', name}.
async function functionOf(tool) {
  const { name, description, parameters, strict } = tool.function ?? tool;
  if (typeof name !== 'string') throw new TypeError('a tool is {name, description, parameters, run}: the name is missing');
  return {
    name,
    ...(description !== undefined && { description }),
    ...(parameters !== undefined && { parameters: await schemaOf(parameters) }),
    ...(strict !== undefined ? { strict } : isZod(parameters) && { strict: true }),
  };
}

async function formatOf(schema) {
  const json = await schemaOf(schema);
  return { type: 'json_schema', name: json.title ?? 'answer', schema: json, strict: true };
}

function listOf(given, name) {
  if (!Array.isArray(given)) throw new TypeError(`${name} is a text or a list`);
  return given;
}

// The body of a chat.
export async function chatBody({ messages, tools, toolChoice, schema, ...rest }) {
  const body = members(rest, CHAT_NAMES);
  body.messages = typeof messages === 'string' ? [{ role: 'user', content: messages }] : listOf(messages, 'messages');
  if (tools?.length) {
    body.tools = await Promise.all(tools.map(async (tool) => ({ type: 'function', function: await functionOf(tool) })));
  }
  if (toolChoice !== undefined) {
    body.tool_choice = toolChoice?.name ? { type: 'function', function: { name: toolChoice.name } } : toolChoice;
  }
  if (schema !== undefined) {
    const { type, ...form } = await formatOf(schema);
    body.response_format = { type, json_schema: form };
  }
  return body;
}

// The body of a response.
export async function responseBody({ input, previousResponseId, tools, toolChoice, schema, reasoningEffort, ...rest }) {
  const body = members(rest, RESPONSE_NAMES);
  body.input = typeof input === 'string' ? input : listOf(input, 'input');
  body.stream = !body.background;
  if (previousResponseId !== undefined) body.previous_response_id = previousResponseId?.id ?? previousResponseId;
  if (tools?.length) body.tools = await Promise.all(tools.map(async (tool) => ({ type: 'function', ...(await functionOf(tool)) })));
  if (toolChoice !== undefined) body.tool_choice = toolChoice?.name ? { type: 'function', name: toolChoice.name } : toolChoice;
  if (schema !== undefined) body.text = { ...body.text, format: await formatOf(schema) };
  if (reasoningEffort !== undefined) body.reasoning = { ...body.reasoning, effort: reasoningEffort };
  return body;
}

// BigInts, as of a seed, are numbers of JSON with all their digits.
export function toJson(value) {
  if (typeof value === 'bigint') return String(value);
  if (Array.isArray(value)) return `[${value.map((each) => (each === undefined ? 'null' : toJson(each))).join()}]`;
  if (typeof value !== 'object' || value === null || typeof value.toJSON === 'function') return JSON.stringify(value);
  const own = Object.entries(value).filter(([, each]) => each !== undefined && typeof each !== 'function');
  return `{${own.map(([name, each]) => `${JSON.stringify(name)}:${toJson(each)}`).join()}}`;
}

// A call of a tool that the model asks for: id, name and arguments, a JSON object as text.
export class ToolCall {
  #tools;

  constructor(id, name, text, tools = []) {
    this.id = id;
    this.name = name;
    this.arguments = text;
    this.#tools = tools;
  }

  // The arguments as an object.
  get args() {
    return JSON.parse(this.arguments);
  }

  // The result of the tool's own `run` for the arguments, which go through its zod schema first.
  async run() {
    const tool = this.#tools.find(({ name }) => name === this.name);
    if (typeof tool?.run !== 'function') throw new TypeError(`the tool ${this.name}, which the model calls, has no run`);
    return tool.run(isZod(tool.parameters) ? tool.parameters.parse(this.args) : this.args);
  }

  // The message of a chat that answers the call: a text as it is, else JSON.
  result(value) {
    return { role: 'tool', tool_call_id: this.id, content: textOf(value) };
  }

  // The item of a response's input that answers the call.
  output(value) {
    return { type: 'function_call_output', call_id: this.id, output: textOf(value) };
  }
}

const textOf = (value) => (typeof value === 'string' ? value : toJson(value ?? null));

// A call that broke off cannot be run.
function isWhole({ arguments: text }) {
  try {
    const value = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}

// One choice of a chat, whole: content, reasoning, calls (whole ones alone), finishReason (STOP, LENGTH, TOOL_CALLS), seed,
// model, usage, choice, stopString (that ended it), atContextEnd, timings (seconds: queued, prompt, generation, perToken);
// tokens, tokenIds and promptIds where they were asked for.
export class Answer {
  #schema;

  constructor(parts, schema) {
    Object.assign(this, parts);
    this.#schema = schema;
  }

  // The answer as a message, for the next request's `messages`.
  get message() {
    const calls = this.calls.map((call) => ({
      id: call.id, type: 'function', function: { name: call.name, arguments: call.arguments },
    }));
    return {
      role: 'assistant',
      content: this.content,
      ...(this.reasoning && { reasoning_content: this.reasoning }),
      ...(calls.length > 0 && { tool_calls: calls }),
    };
  }

  // The content as a value of the request's `schema`; undefined where the answer is calls.
  get parsed() {
    return parsed(this.#schema, this, this.finishReason === 'LENGTH');
  }
}

// A response, whole: id, status, model, content, reasoning, calls, output (its items), usage, previousResponseId, and `data`,
// all of it in the form of OpenAI's API.
export class Response {
  #schema;

  constructor(data, { schema, tools } = {}) {
    const text = (item, part) =>
      data.output.filter(({ type }) => type === item).flatMap(({ content }) => content ?? [])
        .filter(({ type }) => type === part).map((each) => each.text).join('');
    this.id = data.id;
    this.status = data.status; // completed, incomplete, failed, cancelled, queued or in_progress
    this.model = data.model;
    this.content = text('message', 'output_text');
    this.reasoning = text('reasoning', 'reasoning_text');
    this.calls = data.output.filter(({ type }) => type === 'function_call')
      .map((item) => new ToolCall(item.call_id, item.name, item.arguments, tools)).filter(isWhole);
    this.output = data.output;
    this.usage = {
      promptTokens: data.usage?.input_tokens ?? 0,
      cachedTokens: data.usage?.input_tokens_details?.cached_tokens ?? 0,
      completionTokens: data.usage?.output_tokens ?? 0,
      reasoningTokens: data.usage?.output_tokens_details?.reasoning_tokens ?? 0,
    };
    this.previousResponseId = data.previous_response_id ?? undefined;
    this.data = data;
    this.#schema = schema;
  }

  // The same method as Answer's.
  get parsed() {
    return parsed(this.#schema, this, this.status === 'incomplete');
  }
}

function parsed(schema, { content, calls }, wasCut) {
  if (schema === undefined) throw new Error('the request has no schema');
  return calls.length > 0 && content === '' ? undefined : parse(schema, content, wasCut);
}

// A stream that is read piece by piece with `for await`, once, or to its end by a method; it starts when it is read.
// Leaving the loop ends the call on the server.
class Pieces {
  #messages;
  #wasLeft = false;
  #hasEnded = false;

  // messages: an async generator.
  constructor(messages) {
    this.#messages = messages;
  }

  // The pieces of the next message; undefined: the end.
  async next() {
    if (this.#hasEnded) return undefined;
    if (this.#wasLeft) throw new LintelError(grpc.status.CANCELLED, 'the stream was left before its end', '');
    const { value, done } = await this.#messages.next();
    this.#hasEnded = done;
    return done ? undefined : this.take(value);
  }

  async *[Symbol.asyncIterator]() {
    try {
      for (let pieces; (pieces = await this.next()) !== undefined; ) yield* pieces;
    } finally {
      this.#wasLeft = true;
      await this.#messages.return();
    }
  }

  async leave() {
    this.#wasLeft = true;
    await this.#messages.return();
  }

  async readAll(isEnough = () => false) {
    while ((await this.next()) !== undefined) if (isEnough()) return this.leave();
    return undefined;
  }
}

// An answer as it comes. Deltas are {content, reasoning, call: {index, id, name, arguments}, choice, tokens, tokenIds}, of
// which content and reasoning are texts, and call is there in pieces of calls alone.
export class ChatStream extends Pieces {
  #choices;
  #schema;
  #tools;
  #model = '';
  #usage = { promptTokens: 0, cachedTokens: 0, completionTokens: 0, reasoningTokens: 0 };
  #promptIds = [];

  constructor(messages, { n = 1, schema, tools }) {
    super(messages);
    this.#choices = Array.from({ length: n }, () => ({ content: '', reasoning: '', calls: [], tokens: [], tokenIds: [] }));
    this.#schema = schema;
    this.#tools = tools;
  }

  take({ deltas, finished, usage, model, promptIds }) {
    if (model) this.#model = model;
    if (promptIds?.length) this.#promptIds = promptIds;
    if (usage) this.#usage = Object.fromEntries(Object.entries(usage).map(([name, count]) => [name, Number(count)]));
    for (const { choice, reason, stopString, timings, ...finish } of finished) {
      const finishReason = reason.replace('CHAT_FINISH_REASON_', '');
      const seconds = Object.fromEntries(Object.entries(timings ?? {}).map(([name, time]) => [name, secondsOf(time)]));
      Object.assign(this.#choice(choice), { ...finish, finishReason, stopString: String(stopString), timings: seconds });
    }
    return deltas.map(({ call, ...delta }) => {
      const parts = this.#choice(delta.choice);
      for (const name of ['content', 'reasoning']) parts[name] += delta[name];
      for (const name of ['tokens', 'tokenIds']) parts[name].push(...(delta[name] ?? []));
      if (!call) return delta;
      parts.calls[call.index] ??= { ...call, arguments: '' };
      parts.calls[call.index].arguments += call.arguments;
      return { ...delta, call };
    });
  }

  #choice(index) {
    if (index < this.#choices.length) return this.#choices[index];
    throw new LintelError(grpc.status.INTERNAL, 'the server sent a choice that was not requested', '');
  }

  // Reads to the end. The first choice, whole: also after the stream was read.
  async answer() {
    return (await this.answers())[0];
  }

  // Each of the `n` choices, as answer() has one. An error has the choices of a failed call in `answers`.
  async answers() {
    try {
      await this.readAll();
      if (this.#choices.some(({ finishReason }) => finishReason === undefined)) {
        throw new LintelError(grpc.status.INTERNAL, 'the stream ended before every answer had', '');
      }
    } catch (error) {
      error.answers = this.#answers();
      throw error;
    }
    return this.#answers();
  }

  #answers() {
    return this.#choices.map(({ calls, ...parts }, choice) => {
      const whole = calls.map((call) => new ToolCall(call.id, call.name, call.arguments, this.#tools)).filter(isWhole);
      const about = { model: this.#model, usage: this.#usage, choice, promptIds: this.#promptIds };
      return new Answer({ ...parts, calls: whole, ...about }, this.#schema);
    });
  }
}

const secondsOf = (duration) => (duration ? Number(duration.seconds) + duration.nanos / 1e9 : 0);

const CONTENT = ['response.output_text.delta'];
const REASONING = ['response.reasoning.delta', 'response.reasoning_text.delta'];

// A response as it comes. Events are {type, data, content, reasoning}: `data` in the form of OpenAI's API, the texts what
// the event adds to them.
export class ResponseStream extends Pieces {
  #request;
  #response;

  constructor(messages, request) {
    super(messages);
    this.#request = request;
  }

  take({ events, response }) {
    if (response.length > 0) this.#response = new Response(JSON.parse(response), this.#request);
    return events.map(({ type, body }) => {
      const data = JSON.parse(body);
      const text = (types) => (types.includes(type) ? data.delta : '');
      return { type, data, content: text(CONTENT), reasoning: text(REASONING) };
    });
  }

  // Reads to the end; in the background to what the response begins as. Throws for a response that failed.
  async response() {
    await this.readAll(() => this.#request.background && this.#response !== undefined);
    const response = this.#response;
    if (response === undefined) throw new LintelError(grpc.status.INTERNAL, 'the stream ended without the response', '');
    if (response.status !== 'failed') return response;
    const { code, message } = response.data.error ?? {};
    const details = { reason: code, facts: { response: response.id } };
    throw new LintelError(grpc.status.INTERNAL, `response ${response.id} failed: ${message}`, '', details);
  }
}
