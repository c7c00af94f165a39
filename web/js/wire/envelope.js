// SPDX-License-Identifier: Apache-2.0
// Connect's envelopes: a byte of flags, four of length (big endian), a message. What a stream's messages come in,
// both ways; the last one of an answer has the flag END and the call's status.
// https://connectrpc.com/docs/protocol#streaming-rpcs

export const END = 2;
const HEADER = 5;

export function wrap(message) {
  const out = new Uint8Array(HEADER + message.length);
  new DataView(out.buffer).setUint32(1, message.length);
  out.set(message, HEADER);
  return out;
}

// Takes bytes as they come, gives the envelopes that are whole: {flags, message}.
export class EnvelopeReader {
  #bytes = new Uint8Array(0);
  #used = 0; // of #bytes

  push(bytes) {
    const kept = this.#bytes.length;
    if (this.#used + bytes.length > kept) {
      const larger = new Uint8Array(Math.max(2 * kept, this.#used + bytes.length));
      larger.set(this.#bytes.subarray(0, this.#used));
      this.#bytes = larger;
    }
    this.#bytes.set(bytes, this.#used);
    this.#used += bytes.length;

    const out = [];
    let at = 0;
    const view = new DataView(this.#bytes.buffer);
    while (this.#used - at >= HEADER) {
      const end = at + HEADER + view.getUint32(at + 1);
      if (end > this.#used) break;
      out.push({ flags: this.#bytes[at], message: this.#bytes.slice(at + HEADER, end) });
      at = end;
    }
    this.#bytes.copyWithin(0, at, this.#used);
    this.#used -= at;
    return out;
  }

  // The number of bytes of an envelope that is not whole.
  get rest() {
    return this.#used;
  }
}
