// SPDX-License-Identifier: Apache-2.0
// A call on a session that outlives the server (Session.durability), repeated where it was cut off.
import { randomBytes, randomUUID } from 'node:crypto';
import grpc from '@grpc/grpc-js';
import { isLost } from './servers.mjs';

const FIRST_PAUSE = 100; // ms, doubling
const LONGEST_PAUSE = 2000;

export class Repeat {
  #patience;
  #giveUp; // set by the first failure since something came
  #pause = 0;
  #sent = false;
  #seen = false;
  finished = false; // there is nothing more to come

  // `request` as generate sends it: the call gets a name, and a seed, since a server that forgot the call
  // draws all tokens again, some of which were seen. `patience`: ms since something came.
  constructor(request, patience) {
    const { callId, sampling, fromPosition = 0 } = request;
    this.request = {
      ...request,
      callId: callId || randomUUID(),
      sampling: { ...sampling, seed: sampling?.seed ?? String(randomBytes(8).readBigUInt64LE()) },
      fromPosition: Number(fromPosition),
    };
    this.#patience = patience;
  }

  // What of a message was not seen yet. Throws where positions are left out.
  take({ chunks, finished }) {
    this.#giveUp = undefined;
    this.#pause = 0;
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
    return { chunks: news, finished };
  }

  // It is sent again at once, to another server.
  goesOn() {
    this.#sent = true;
  }

  // ms after which to send it again; undefined where that is of no use, or patience is at its end. Not for
  // a call that was cancelled here.
  pauseAfter({ code, retryDelay, reason = '' }) {
    const { ABORTED, RESOURCE_EXHAUSTED } = grpc.status;
    // Of a first try another call holds the session, or there is no room; of a repeat both may pass. A server
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
    // So that clients that lost their server together do not come back together.
    const pause = this.#pause * (0.8 + 0.4 * Math.random());
    return Math.min(Math.max(pause, retryDelay ?? 0), this.#giveUp - now);
  }
}
