// SPDX-License-Identifier: Apache-2.0
// A small client of a Lintel server: connects, streams tokens, chats, completes images.
//
//   const client = new Client('127.0.0.1:50051');
//   for await (const { text } of client.generate({ prompt: 'Once upon', maxNewTokens: 100 })) {
//     process.stdout.write(text);
//   }
//   console.log((await client.chat({ messages: 'What is a linear transformer?' }).answer()).content);
//   client.close();
//
// Requests are the messages of proto/lintel/v1, which document every field, in camelCase; here they
// may hold token ids, text and pixels as they are (see values()), and 64-bit numbers as BigInt.
// Every call has a deadline. What does not end with OK throws LintelError.
import { createHash, randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';
import { Answer, chatBody, ChatStream, Response, responseBody, ResponseStream, toJson, ToolCall } from './chat.mjs';
import { connection } from './connection.mjs';
import { LintelError, lintelError, PROTO } from './errors.mjs';
import { checkImage } from './images.mjs';
import { Repeat, ResponseRepeat } from './repeat.mjs';
import { isUnsent, namesAServer, Servers, split } from './servers.mjs';

export { Answer, LintelError, Response, ToolCall };

const { v1 } = grpc.loadPackageDefinition(
  protoLoader.loadSync(
    ['chat', 'generation', 'model', 'response', 'session'].map((name) => `lintel/v1/${name}.proto`),
    // A seed has 64 bits, of which a Number keeps 53. Optional fields that are absent stay so.
    { includeDirs: [PROTO], longs: String, enums: String, defaults: true, oneofs: true },
  ),
).lintel;

// The ways to write tokens: text for models with a tokenizer (a string, sent as UTF-8), pixels of 8-bit image
// models (a Uint8Array in raster order), or token ids (an array of integers).
export function values(given) {
  if (typeof given === 'string') return { text: Buffer.from(given) };
  if (given instanceof Uint8Array) return { pixels: given };
  if (Array.isArray(given)) return { tokens: { ids: given } };
  return given; // a Values message
}

// {stop} with its strings as bytes.
function withStrings(stop) {
  if (!stop?.strings) return {};
  const strings = stop.strings.map((text) => (typeof text === 'string' ? Buffer.from(text) : text));
  return { stop: { ...stop, strings } };
}

// A message with its BigInts, at any depth, as text: protobufjs reads 64-bit numbers from that, and
// from a BigInt 0.
function withoutBigInts(message) {
  if (typeof message === 'bigint') return String(message);
  if (typeof message !== 'object' || message === null || ArrayBuffer.isView(message)) return message;
  if (Array.isArray(message)) return message.map(withoutBigInts);
  return Object.fromEntries(Object.entries(message).map(([key, value]) => [key, withoutBigInts(value)]));
}

// The default of maxNewTokens, of models without images.
const DEFAULT_NEW_TOKENS = 256;

// Sessions that are remembered to outlive the server or not; beyond that it is asked once more.
const MOST_KNOWN = 4096;

// Methods that a server may have had and another one is asked all the same: they change nothing, or leave
// what expires.
const IS_SAFE = new Set(['render', 'get', 'tokenize', 'detokenize', 'list', 'listStates', 'create', 'fork', 'listInputItems',
  'countInputTokens', 'compact']);

// Bytes of a snapshot in a message; the server takes 1 MiB.
const PIECE_BYTES = 256 * 1024;

export class Client {
  #token;
  #timeout;
  #servers;
  #modalities = new Map(); // of models that were asked, by name
  #retry;
  #durable = new Map(); // id -> true for sessions that outlive the server
  #address;
  #closed = false;

  // address: HOST:PORT or unix:PATH; or several with commas between them, of servers with the same sessions:
  // the first that answers is called, and another one when it does so no more. A name with several addresses
  // stands for all of them. tlsCa, tlsCert, tlsKey: PEM files; with a CA or a certificate the channel is encrypted. token:
  // sent with every call, never in plain text to another machine. timeout: ms, of every call. proxy:
  // [USER:PASSWORD@]HOST:PORT of an HTTP proxy to reach other machines through, by CONNECT; what the
  // environment says of proxies is not heeded, and this machine is never reached through one. retry: ms
  // for which a call on a session that outlives the server is repeated since something of it came; 0: never.
  // interceptors: grpc-js's, around every call, as for traces, or to see the metadata of answers (lintel-replica).
  constructor(
    address = '127.0.0.1:50051',
    { tlsCa, tlsCert, tlsKey, token, timeout = 300_000, proxy, retry = 30_000, interceptors } = {},
  ) {
    this.#token = token;
    this.#timeout = timeout;
    this.#retry = retry;
    const addresses = split(address);
    this.#address = addresses.join(', ');
    this.#servers = new Servers(addresses, (one, name) => {
      const others = addresses.length > 1 || name !== undefined;
      const way = connection(one, { tlsCa, tlsCert, tlsKey, token, proxy, interceptors }, { name, others });
      const services = {
        generation: new v1.GenerationService(way.address, way.credentials, way.options),
        models: new v1.ModelService(way.address, way.credentials, way.options),
        sessions: new v1.SessionService(way.address, way.credentials, way.options),
        chats: new v1.ChatService(way.address, way.credentials, way.options),
        responses: new v1.ResponseService(way.address, way.credentials, way.options),
      };
      return { address: one, services };
    });
  }

  close() {
    this.#closed = true;
    this.#servers.close();
  }

  #error(error, requestId, timeout = this.#timeout) {
    return lintelError(error, requestId, { address: this.#address, timeout });
  }

  // A service of `server`. grpc-js throws an error of its own for a call on a channel that is closed.
  #service(server, name, requestId) {
    if (this.#closed) throw new LintelError(grpc.status.CANCELLED, 'the client is closed', requestId);
    return server.services[name];
  }

  // Streams {position, token, source, sample, log2Prob, text}; source is SAMPLED, GIVEN or PROMPT. `text` is
  // what the token adds to the text, in whole characters (one of several tokens comes with its last one), where
  // the prompt is text or the request has tokenBytes. Leaving the loop, or aborting `signal`, ends the call on the server. `onFinish` gets the SampleFinish of
  // each sample. Without maxNewTokens and timeLimit an image goes to its end, and anything else to 256
  // tokens. A call on a session that outlives the server is repeated where it was cut off, for `retry` ms
  // and within the timeout: each position comes once, and one finish.
  async *generate(request, { onFinish, signal, timeout, retry = this.#retry } = {}) {
    const { prompt, given = [], sampling, ...rest } = request;
    const call = this.#call(timeout, request.sessionId);
    const wire = {
      ...rest,
      ...(await this.#bound(request, timeout)),
      ...(prompt !== undefined && { prompt: values(prompt) }),
      tokenBytes: request.tokenBytes ?? typeof prompt === 'string',
      ...withStrings(request.stop),
      given: given.map((span) => ({ position: span.position, values: values(span.values) })),
      // A Number beyond 2^63 would be cut to it.
      sampling: { ...sampling, ...(sampling?.seed !== undefined && { seed: String(sampling.seed) }) },
    };
    const options = { signal, timeout, call };
    const messages = (await this.#outlivesServer(request, retry, timeout))
      ? this.#repeated('generation', 'generate', new Repeat(wire, retry), options)
      : this.#read('generation', 'generate', wire, options, !request.sessionId);
    const characters = new Map(); // of each sample
    for await (const { chunks, finished } of messages) {
      for (const chunk of chunks) {
        const first = Number(chunk.firstPosition);
        const { sample } = chunk;
        if (!characters.has(sample)) characters.set(sample, new TextDecoder('utf-8', { ignoreBOM: true }));
        for (const [i, token] of chunk.tokens.entries()) {
          yield {
            position: first + i,
            token,
            source: chunk.source.replace('VALUE_SOURCE_', ''),
            sample,
            log2Prob: chunk.log2Probs[i],
            text: characters.get(sample).decode(chunk.tokenBytes[i], { stream: true }),
          };
        }
      }
      finished.forEach((finish) => onFinish?.(finish));
    }
  }

  // The messages of a call until it has gone through; of a repeat those with something new alone.
  async *#repeated(service, method, repeat, options) {
    for (let moves = 0; ; ) {
      const server = this.#servers.current;
      try {
        for await (const message of this.#stream(service, method, repeat.request, { ...options, server })) {
          moves = 0;
          const news = repeat.take(message);
          if (news !== undefined) yield news;
        }
        return;
      } catch (error) {
        if (options.signal?.aborted || this.#closed || repeat.failed) throw error;
        // Another server may continue it at once.
        if (!repeat.finished && (await this.#goesOn(server, error, ++moves, true))) {
          repeat.goesOn();
          continue;
        }
        moves = 0;
        const pause = error instanceof LintelError ? repeat.pauseAfter(error) : undefined;
        if (pause === undefined) throw error;
        if (repeat.finished) return;
        // An abortion of the wait shows in the next try.
        await sleep(pause, undefined, { signal: options.signal }).catch(() => {});
      }
    }
  }

  // Away from a server that failed, if another one may do what it did not. Whether the call goes to one that
  // was not tried yet; `moves`: how often it did, this time included; `isSafe`: though this one may have had it.
  async #goesOn(server, error, moves, isSafe) {
    if (this.#closed || !(error instanceof LintelError) || !namesAServer(error)) return false;
    const others = await this.#servers.leave(server, error);
    return others && moves < this.#servers.count && (isSafe || isUnsent(error));
  }

  // The messages of a stream; while none has come, of another server's where that is safe.
  async *#read(service, method, request, options = {}, isSafe = true) {
    const call = options.call ?? this.#call(options.timeout, request.id);
    for (let moves = 1, started = false; ; ++moves) {
      const server = this.#servers.current;
      try {
        for await (const message of this.#stream(service, method, request, { ...options, call, server })) {
          started = true;
          yield message;
        }
        return;
      } catch (error) {
        if (started || options.signal?.aborted || !(await this.#goesOn(server, error, moves, isSafe))) throw error;
      }
    }
  }

  // Asks the server once for each session, unless it was made here.
  async #outlivesServer({ sessionId, callId }, retry, timeout) {
    if (!sessionId || !(retry > 0)) return false;
    if (callId) return true; // only of such sessions do calls have names
    if (!this.#durable.has(sessionId)) {
      try {
        await this.#noted(this.#unary('sessions', 'get', { id: sessionId }, timeout));
      } catch {
        return false; // the generation's own error says more
      }
    }
    return this.#durable.get(sessionId) ?? false;
  }

  // Remembers whether a session outlives the server.
  async #noted(session) {
    const { id, durability } = await session;
    if (this.#durable.size >= MOST_KNOWN) this.#durable.clear();
    this.#durable.set(id, !['DURABILITY_UNSPECIFIED', 'DURABILITY_NONE'].includes(durability));
    return session;
  }

  // {maxNewTokens} for a request that has no bound, where its model is known to need one.
  async #bound({ prompt, maxNewTokens, timeLimit, model = '', sessionId }, timeout) {
    if (maxNewTokens !== undefined || timeLimit !== undefined || prompt instanceof Uint8Array) return {};
    const bound = { maxNewTokens: DEFAULT_NEW_TOKENS };
    if (typeof prompt === 'string') return bound;
    try {
      const name = sessionId ? (await this.#unary('sessions', 'get', { id: sessionId }, timeout)).model : model;
      if (!this.#modalities.has(name)) {
        this.#modalities.set(name, (await this.#unary('models', 'get', { name }, timeout)).modality);
      }
      return this.#modalities.get(name) === 'image' ? {} : bound;
    } catch {
      return {}; // the generation's own error says more
    }
  }

  // Draws the pixels of `image` (a Uint8Array in raster order) where `hidden(i)` is true; the others
  // stay as they are. `onPixel(i, token)` sees each as it comes. TypeError for an image that is not of
  // the model's shape; warns of dark on light. An error that comes later has what was drawn: `image`.
  // With `particles` above 1 known pixels influence hidden ones before them: see GenerateRequest.
  async completeImage(image, hidden, settings = {}) {
    const { model = '', adapter = '', sampling, startToken = 0, particles = 0, onPixel, ...options } = settings;
    const positions = [...image.keys()].filter((i) => hidden(i));
    const out = Uint8Array.from(image);
    if (positions.length === 0) return out;
    checkImage(image, hidden, await this.model(model));
    if (hidden(0)) out[0] = startToken; // a model has no distribution over its first token
    const first = Math.max(positions[0] || positions[1] || 1, 1);
    // Known pixels behind the last hidden one matter to particles alone.
    const end = particles > 1 ? image.length : Math.max(positions[positions.length - 1] + 1, first);
    const given = [];
    for (let i = first; i < end; ++i) {
      if (hidden(i)) continue;
      let next = i;
      while (next < end && !hidden(next)) ++next;
      given.push({ position: i, values: image.subarray(i, next) });
      i = next;
    }
    const prompt = out.subarray(0, first);
    const request = { model, adapter, prompt, maxNewTokens: end - first, given, sampling, particles };
    try {
      for await (const { position, token } of this.generate(request, options)) {
        out[position] = token;
        onPixel?.(position, token);
      }
    } catch (error) {
      if (error instanceof LintelError) error.image = out;
      throw error;
    }
    return out;
  }

  // Asks a model with a chat template. The request has the members of OpenAI's /v1/chat/completions (docs/chat.md) in
  // camelCase, and: `messages`, also a question as text; `tools`, {name, description, parameters, run} or OpenAI's form;
  // `toolChoice`, also a tool; `schema`, of the answer; `maxTokens`. `parameters` and `schema` are of zod or JSON schemas.
  // Returns a stream of deltas, which `for await` reads and answer() to its end: {content, reasoning, calls, finishReason,
  // usage, message, parsed, ...}. The call starts when it is read; leaving the loop, or aborting `signal`, ends it.
  chat(request, { signal, timeout } = {}) {
    return new ChatStream(this.#chatMessages(request, { signal, timeout }), request);
  }

  async *#chatMessages(request, options) {
    yield* this.#read('chats', 'complete', { body: Buffer.from(toJson(await chatBody(request))) }, options);
  }

  // The prompt that a chat's request becomes: {text, ids, turnBoundary, beforeGenerationPrompt, model}.
  async renderChat(request, { timeout } = {}) {
    const body = Buffer.from(toJson(await chatBody(request)));
    const { text, ids, turnBoundary, beforeGenerationPrompt, model } = await this.#unary('chats', 'render', { body }, timeout);
    const [boundary, before] = [turnBoundary, beforeGenerationPrompt].map(Number);
    return { text: String(text), ids, turnBoundary: boundary, beforeGenerationPrompt: before, model };
  }

  // Asks a model with a chat template in a conversation that the server keeps. The request has the members of OpenAI's
  // /v1/responses in camelCase: `input`, a question or items; `previousResponseId`, a response or its id, of which several may
  // continue; `instructions`, `store`, `background`, and tools, schema and so on as of chat(). Returns a stream of events, which
  // `for await` reads and response() to its end. A stored response that is cut off is repeated as a call on a session that
  // outlives the server is: where the server still has it, its events continue with the first that was not seen.
  // `idempotencyKey`: another call with this key and the same request gives the same response.
  respond(request, { signal, timeout, retry = this.#retry, idempotencyKey } = {}) {
    return new ResponseStream(this.#responseMessages(request, idempotencyKey, retry, { signal, timeout }), request);
  }

  async *#responseMessages(request, idempotencyKey, retry, options) {
    const body = await responseBody(request);
    const isStored = body.store !== false;
    const wire = { body: Buffer.from(toJson(body)), ...(isStored && { idempotencyKey: idempotencyKey ?? randomUUID() }) };
    const call = this.#call(options.timeout);
    yield* isStored && retry > 0
      ? this.#repeated('responses', 'create', new ResponseRepeat(wire, retry), { ...options, call })
      : this.#read('responses', 'create', wire, { ...options, call });
  }

  // A stored response, also one that failed or still runs.
  async getResponse(id) {
    return new Response(JSON.parse((await this.#unary('responses', 'get', { id })).body));
  }

  // Ends a response that runs with its next token. It keeps what it had until then.
  async cancelResponse(id) {
    return new Response(JSON.parse((await this.#unary('responses', 'cancel', { id })).body));
  }

  // Hides a response at once. It goes when no other continues it.
  async deleteResponse(id) {
    await this.#unary('responses', 'delete', { id });
  }

  // The events of a stored response once more, as respond() has them, after the one numbered `startingAfter` where that is
  // given. A response that is not in the background is waited for; events of one that is come as they are made.
  replayResponse(id, { startingAfter, signal, timeout } = {}) {
    return new ResponseStream(this.#read('responses', 'replay', { id, startingAfter }, { signal, timeout }), {});
  }

  // The items of a stored response's input, every page: the newest first, or the oldest.
  async listInputItems(id, { ascending = false } = {}) {
    const items = [];
    for (let afterId = ''; ; ) {
      const { body } = await this.#unary('responses', 'listInputItems', { id, limit: 100, ascending, afterId });
      const page = JSON.parse(body);
      items.push(...page.data);
      if (!page.has_more) return items;
      afterId = page.last_id;
    }
  }

  // The tokens of the prompt that a respond() with this request has. Nothing is generated.
  async countInputTokens(request, { timeout } = {}) {
    const body = Buffer.from(toJson(await responseBody(request)));
    return Number((await this.#unary('responses', 'countInputTokens', { body }, timeout)).inputTokens);
  }

  // A conversation as one sealed item, which the input of the next respond() begins with: a list of it. The request is that
  // of respond(), with `model`; without `input` it is the conversation of `previousResponseId`. Nothing is generated.
  async compactResponse({ input = [], ...request }, { timeout } = {}) {
    const body = Buffer.from(toJson(await responseBody({ input, ...request })));
    return JSON.parse((await this.#unary('responses', 'compact', { body }, timeout)).body).output;
  }

  async models() {
    return (await this.#unary('models', 'list', {})).models;
  }

  // `name` may be empty when one model is loaded.
  model(name = '') {
    return this.#unary('models', 'get', { name });
  }

  // A text as token ids, of models with a tokenizer. addSpecial: with the tokens that the model wants before and
  // after a text, as <s>; parseSpecial: special tokens spelt out in it become their ids.
  async tokenize(text, { model = '', addSpecial = false, parseSpecial = false } = {}) {
    const request = { model, text: Buffer.from(text), addSpecial, parseSpecial };
    return (await this.#unary('models', 'tokenize', request)).ids;
  }

  // Token ids as text: special tokens add nothing, and what is no UTF-8 is U+FFFD.
  async detokenize(ids, { model = '' } = {}) {
    return (await this.#unary('models', 'detokenize', { model, ids })).text;
  }

  // State on the server that lives between calls: its id goes into generate's sessionId. durability, one
  // of DURABILITY_NONE, _CALL, _INPUT and _TOKEN: what of it outlives the server; expireAfter, {seconds}.
  createSession(request = {}) {
    return this.#noted(this.#unary('sessions', 'create', request));
  }

  getSession(id) {
    return this.#noted(this.#unary('sessions', 'get', { id }));
  }

  deleteSession(id) {
    return this.#unary('sessions', 'delete', { id });
  }

  // Sessions with the tokens of this one before `position` (left out: all, of a session that is not in use); all of
  // `count` or none.
  async forkSession(id, { position, count, durability } = {}) {
    const request = { id, position, count, durability };
    const { sessions } = await this.#unary('sessions', 'fork', request).catch((error) => {
      const isBusy = error.code === grpc.status.ABORTED && !error.reason;
      if (!isBusy || position !== undefined) throw error;
      throw new LintelError(error.code, `${error.details}: a copy of it needs \`position\``, error.requestId);
    });
    return Promise.all(sessions.map((session) => this.#noted(session)));
  }

  // Takes back the tokens from `position` on; with `expectedDigest` only while that is the history's.
  rewindSession(id, position, { expectedDigest } = {}) {
    return this.#noted(this.#unary('sessions', 'rewind', { id, position, expectedDigest }));
  }

  // All that a session is, as a Buffer. `request`: position, withoutHistory, withoutState.
  async snapshotSession(id, request = {}, options) {
    const pieces = [];
    for await (const { data } of this.#read('sessions', 'snapshot', { id, ...request }, options)) pieces.push(data);
    return Buffer.concat(pieces);
  }

  // A new session out of such bytes, here or on another server. `header`: model, verify,
  // acceptOtherNumerics, durability.
  restoreSession(snapshot, header = {}, { timeout } = {}) {
    const { requestId, metadata, deadline } = this.#call(timeout);
    const restored = new Promise((resolve, reject) => {
      const call = this.#service(this.#servers.current, 'sessions', requestId).restore(metadata, { deadline }, (error, response) =>
        error ? reject(this.#error(error, requestId, timeout)) : resolve(response),
      );
      call.write({ header: { ...header, totalBytes: String(snapshot.length) } });
      for (let at = 0; at < snapshot.length; at += PIECE_BYTES) {
        call.write({ data: snapshot.subarray(at, at + PIECE_BYTES) });
      }
      call.end();
    });
    return this.#noted(restored);
  }

  // Streams {position, token, source} of a session's tokens from `from` to before `to` (left out: all).
  async *history(id, { from = 0, to } = {}, options) {
    const request = { id, fromPosition: from, toPosition: to };
    for await (const chunk of this.#read('sessions', 'readHistory', request, options)) {
      const first = Number(chunk.firstPosition);
      const source = chunk.source.replace('VALUE_SOURCE_', '');
      for (const [i, token] of chunk.tokens.entries()) yield { position: first + i, token, source };
    }
  }

  // Keeps a session's state under a name, which createSession's and generate's initialState name.
  // `request`: position, isPublic (role admin).
  saveState(sessionId, name, request = {}) {
    return this.#unary('sessions', 'saveState', { sessionId, name, ...request });
  }

  async states(model = '') {
    const states = [];
    for (let pageToken = ''; ; ) {
      const page = await this.#unary('sessions', 'listStates', { model, pageSize: 1000, pageToken });
      states.push(...page.states);
      pageToken = page.nextPageToken;
      if (!pageToken) return states;
    }
  }

  deleteState(name, { isPublic = false } = {}) {
    return this.#unary('sessions', 'deleteState', { name, isPublic });
  }

  // The messages of a server stream. Leaving the loop, or aborting `signal`, ends the call on the server.
  async *#stream(service, method, request, { signal, timeout, call, server }) {
    const { requestId, metadata, deadline } = call;
    const stream = this.#service(server, service, requestId)[method](withoutBigInts(request), metadata, { deadline });
    const cancel = () => stream.cancel();
    signal?.addEventListener('abort', cancel, { once: true });
    if (signal?.aborted) cancel();
    try {
      yield* stream;
    } catch (error) {
      throw 'code' in error && 'metadata' in error ? this.#error(error, requestId, timeout) : error;
    } finally {
      signal?.removeEventListener('abort', cancel);
      stream.on('error', () => {}); // the cancellation's own
      stream.cancel(); // nothing happens to a stream that has ended
    }
  }

  async #unary(service, method, request, timeout) {
    const { requestId, metadata, deadline } = this.#call(timeout, request.sessionId ?? request.id);
    for (let moves = 1; ; ++moves) {
      const server = this.#servers.current;
      try {
        return await new Promise((resolve, reject) => {
          this.#service(server, service, requestId)[method](withoutBigInts(request), metadata, { deadline }, (error, response) =>
            error ? reject(this.#error(error, requestId, timeout)) : resolve(response),
          );
        });
      } catch (error) {
        if (!(await this.#goesOn(server, error, moves, IS_SAFE.has(method)))) throw error;
      }
    }
  }

  // sessionId: that it is about; balancers find by its hash where the session is in memory.
  #call(timeout = this.#timeout, sessionId = '') {
    const requestId = randomUUID();
    const metadata = new grpc.Metadata();
    metadata.set('x-request-id', requestId);
    if (sessionId) metadata.set('lintel-affinity', createHash('sha256').update(sessionId).digest('hex').slice(0, 16));
    if (this.#token) metadata.set('authorization', `Bearer ${this.#token}`);
    return { requestId, metadata, deadline: Date.now() + timeout };
  }
}
