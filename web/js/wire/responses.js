// SPDX-License-Identifier: Apache-2.0
// Responses of OpenAI's API, which the server keeps: /v1/responses, streamed as server-sent events.
import { RpcError, broken, refusal, send, withToken } from './rpc.js';

const PATH = '/v1/responses';

// Takes text as it comes, gives the data of the events that are whole. Comments are no events.
export class EventReader {
  #rest = '';

  push(text) {
    const events = (this.#rest + text).split('\n\n');
    this.#rest = events.pop();
    const written = events.filter((event) => !event.startsWith(':'));
    return written.map((event) => event.replace(/^event: .*\n/, '').replace(/^data: /, ''));
  }
}

function request(path, { signal, ...options }) {
  return withToken(async () => {
    const response = await send(path, { type: 'application/json', signal, ...options });
    if (!response.ok) throw await refusal(response, signal);
    return response;
  });
}

// The events that are there at a time, as a list. `signal` cancels the response.
export async function* create(body, { signal } = {}) {
  const response = await request(PATH, { body: JSON.stringify({ ...body, stream: true }), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const events = new EventReader();
  for (;;) {
    const { done, value } = await reader.read().catch(() => {
      throw broken(signal);
    });
    if (done) throw broken(signal); // before it was whole
    const data = events.push(value);
    const whole = data.filter((event) => event !== '[DONE]').map((event) => JSON.parse(event));
    const failed = whole.find((event) => event.error);
    if (failed) throw new RpcError({ ...failed.error, code: undefined, reason: failed.error.code });
    if (whole.length > 0) yield whole;
    if (data.includes('[DONE]')) return;
  }
}

export async function get(id) {
  return (await request(`${PATH}/${id}`, { method: 'GET' })).json();
}

export function remove(id) {
  return request(`${PATH}/${id}`, { method: 'DELETE' });
}
