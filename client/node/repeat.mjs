// SPDX-License-Identifier: Apache-2.0
// Calls that are repeated where they were cut off, so that each part of an answer comes once.
import { randomBytes, randomUUID } from 'node:crypto';
import grpc from '@grpc/grpc-js';
import { LintelError } from './errors.mjs';
import { isLost } from './servers.mjs';

const FIRST_PAUSE = 100; // ms, doubling
const LONGEST_PAUSE = 2000;

class RepeatBase {
  #patience;
  #giveUp; // set by the first failure since something came
  #pause = 0;
  #sent = false;
  finished = false; // there is nothing more to come
  failed = false; // the server cannot continue it

  // `patience`: ms since something came.
  constructor(patience) {
    this.#patience = patience;
  }

  // Something came.
  hasCome() {
    this.#giveUp = undefined;
    this.#pause = 0;
  }

  // Sends the call again at once, to another server.
  goesOn() {
    this.#sent = true;
  }

  // ms after which to send it again; undefined where that is of no use, or patience is at its end. Not for
  // a call that was cancelled here.
  pauseAfter({ code, retryDelay, reason = '' }) {
    const { ABORTED, RESOURCE_EXHAUSTED } = grpc.status;
    // A first try found the session held by another call, or no room; for a repeat both may pass. A server
    // that is gone lets go of a session in any case.
    const isHeld = code === ABORTED && reason.startsWith('SESSION_');
    const mayPass =
      isHeld || (this.#sent && (code === ABORTED || (code === RESOURCE_EXHAUSTED && retryDelay !== undefined)));
    if (!isLost({ code }) && !mayPass) return undefined;
    this.#sent = true;
    const now = Date.now();
    this.#giveUp ??= now + this.#patience;
    if (now >= this.#giveUp) return undefined;
    this.#pause = Math.min(Math.max(2 * this.#pause, FIRST_PAUSE), LONGEST_PAUSE);
    // Jitter: clients that lost their server together do not come back together.
    const pause = this.#pause * (0.8 + 0.4 * Math.random());
    return Math.min(Math.max(pause, retryDelay ?? 0), this.#giveUp - now);
  }
}

// A call on a session that outlives the server (Session.durability).
export class Repeat extends RepeatBase {
  #seen = false;

  // `request` as generate sends it: the call gets a name, and a seed, since a server that forgot the call
  // draws all tokens again, some of which were seen.
  constructor(request, patience) {
    super(patience);
    const { callId, sampling, fromPosition = 0 } = request;
    this.request = {
      ...request,
      callId: callId || randomUUID(),
      sampling: { ...sampling, seed: sampling?.seed ?? String(randomBytes(8).readBigUInt64LE()) },
      fromPosition: Number(fromPosition),
    };
  }

  // The part of a message that was not seen yet; undefined: none. Throws where positions are left out.
  take({ chunks, finished }) {
    this.hasCome();
    const news = [];
    for (const chunk of chunks) {
      const first = Number(chunk.firstPosition);
      const from = this.request.fromPosition;
      if (this.#seen && first > from) {
        throw new Error(`the server left out the tokens from position ${from} to ${first - 1}`);
      }
      const seen = Math.max(from - first, 0);
      if (seen >= chunk.tokens.length) continue;
      const cut = Object.fromEntries(['tokens', 'log2Probs', 'top', 'tokenBytes'].map((key) => [key, chunk[key].slice(seen)]));
      news.push({ ...chunk, ...cut, firstPosition: String(first + seen) });
      this.request.fromPosition = first + chunk.tokens.length;
      this.#seen = true;
    }
    this.finished ||= finished.length > 0;
    return news.length > 0 || finished.length > 0 ? { chunks: news, finished } : undefined;
  }
}

// A stored response under its idempotency key: a server that has it sends the same events again.
export class ResponseRepeat extends RepeatBase {
  #id;
  #seen = 0; // events
  #next = 0; // number of the next event of this attempt

  constructor(request, patience) {
    super(patience);
    this.request = request;
  }

  // The same method as Repeat's. Throws where the server has lost the response, and begins another.
  take({ events, response, ...rest }) {
    this.hasCome();
    const news = [];
    for (const event of events) {
      if (event.type === 'response.created') {
        this.#next = 0;
        const { id } = JSON.parse(event.body).response;
        this.#id ??= id;
        if (id !== this.#id) {
          this.failed = true;
          const what = `the server lost response ${this.#id} with its end: it stores none, or another server answers`;
          throw new LintelError(grpc.status.UNAVAILABLE, what, '');
        }
      }
      if (this.#next++ >= this.#seen) news.push(event);
    }
    this.#seen = Math.max(this.#seen, this.#next);
    this.finished ||= response.length > 0;
    return news.length > 0 || response.length > 0 ? { ...rest, events: news, response } : undefined;
  }

  // Decides as for a session's call. A call of which nothing has come fails as any other does.
  pauseAfter(error) {
    return this.#seen > 0 ? super.pauseAfter(error) : undefined;
  }
}
