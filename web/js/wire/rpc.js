// SPDX-License-Identifier: Apache-2.0
// Calls of lintel.v1, by the Connect protocol with JSON. Requests and answers are the messages of proto/lintel/v1 as
// protobuf's JSON: camelCase, 64-bit numbers and enums as strings, bytes in base64, fields with their default left out.
import { END, EnvelopeReader, wrap } from './envelope.js';
import { look, noteReach, noteStatus } from './reach.js';

const utf8 = new TextEncoder();
const text = new TextDecoder();

export class RpcError extends Error {
  constructor({ code = 'unknown', message = '', param, reason } = {}) {
    super(message || code.replaceAll('_', ' '));
    this.code = code; // as Connect writes it: 'not_found'
    this.param = param; // of OpenAI's errors: the member that is wrong
    this.reason = reason; // of OpenAI's errors: their code, 'context_length_exceeded'
  }
}

// The caller's token. In this tab's memory alone.
const KEY = 'lintel-token';
let token = globalThis.sessionStorage?.getItem(KEY) ?? '';
export const hasToken = () => token !== '';
export function useToken(value) {
  token = value.trim();
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
}

// Called where the server does not know who calls; resolves to whether there is another token to try.
let askForToken = async () => false;
export function onUnauthenticated(ask) {
  askForToken = ask;
}

// Codes of HTTP statuses without an error of ours (a proxy's, for one).
const CODES = {
  400: 'internal',
  401: 'unauthenticated',
  403: 'permission_denied',
  404: 'unimplemented',
  429: 'unavailable',
  502: 'unavailable',
  503: 'unavailable',
  504: 'unavailable',
};

// The connection broke during a response: look() finds out whether the server is gone.
export function broken(signal) {
  if (signal?.aborted) return new RpcError({ code: 'canceled' });
  look();
  return new RpcError({ code: 'unavailable', message: 'the connection to the server was lost' });
}

export async function refusal(response, signal) {
  const body = await response.text().catch(() => {
    throw broken(signal);
  });
  const code = CODES[response.status];
  try {
    const json = JSON.parse(body);
    if (!json.error) return new RpcError(json); // Connect's shape, else OpenAI's
    const { message, param, code: reason } = json.error;
    return new RpcError({ code, message, param, reason });
  } catch {
    const away = code === 'unavailable' && response.status > 500;
    return new RpcError({
      code,
      message: away
        ? `the server does not answer (HTTP ${response.status})`
        : `HTTP ${response.status} ${body.slice(0, 200)}`,
    });
  }
}

// fetch() with the token.
export async function send(path, { method = 'POST', type, body, signal, keepalive }) {
  const headers = { 'Content-Type': type };
  if (path.startsWith('/lintel.v1.')) headers['Connect-Protocol-Version'] = '1';
  if (token) headers.Authorization = `Bearer ${token}`;
  try {
    const response = await fetch(path, {
      method,
      headers,
      body,
      signal,
      keepalive,
      cache: 'no-store',
    });
    noteStatus(response.status);
    return response;
  } catch {
    if (signal?.aborted) throw new RpcError({ code: 'canceled' });
    noteReach(false);
    throw new RpcError({ code: 'unavailable', message: 'the server does not answer' });
  }
}

// Once more where a token was asked for and given.
export async function withToken(call) {
  for (;;) {
    const used = token;
    try {
      return await call();
    } catch (error) {
      if (error.code !== 'unauthenticated') throw error;
      if (token === used && !(await askForToken(error.message))) throw error;
    }
  }
}

// unary('ModelService/List', {}). options: fetch's signal and keepalive.
export function unary(method, request = {}, options = {}) {
  return withToken(async () => {
    const response = await send(`/lintel.v1.${method}`, {
      type: 'application/json',
      body: JSON.stringify(request),
      ...options,
    });
    if (!response.ok) throw await refusal(response, options.signal);
    const body = await response.text().catch(() => {
      throw broken(options.signal);
    });
    try {
      return JSON.parse(body);
    } catch {
      throw new RpcError({ code: 'internal', message: 'the answer is not JSON' });
    }
  });
}

// The messages that are there at a time, as a list, for what is drawn once for all of them. Leaving the loop, or
// `signal`, cancels the call.
export async function* stream(method, request, { signal } = {}) {
  const leave = new AbortController();
  const either = signal ? AbortSignal.any([signal, leave.signal]) : leave.signal;
  try {
    const body = await withToken(async () => {
      const response = await send(`/lintel.v1.${method}`, {
        type: 'application/connect+json',
        body: wrap(utf8.encode(JSON.stringify(request))),
        signal: either,
      });
      if (!response.ok) throw await refusal(response, either);
      return peek(response.body.getReader(), either);
    });
    yield* body;
  } catch (error) {
    if (signal?.aborted) throw new RpcError({ code: 'canceled' });
    throw error;
  } finally {
    leave.abort();
  }
}

// A refusal comes as the only envelope of an answer that is 200: it is read here, where a token can still be asked for.
async function peek(reader, signal) {
  const rest = messages(reader, signal);
  const first = await rest.next();
  return (async function* () {
    if (!first.done) yield first.value;
    yield* rest;
  })();
}

async function* messages(reader, signal) {
  const envelopes = new EnvelopeReader();
  for (;;) {
    const { done, value } = await reader.read().catch(() => {
      throw broken(signal);
    });
    if (done) throw broken(signal); // before it said how it ended
    const batch = [];
    let end;
    for (const { flags, message } of envelopes.push(value)) {
      const json = JSON.parse(text.decode(message));
      if (flags & END) end = json;
      else batch.push(json);
    }
    if (batch.length > 0) yield batch;
    if (end?.error) throw new RpcError(end.error);
    if (end) return;
  }
}
