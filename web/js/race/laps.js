// SPDX-License-Identifier: Apache-2.0
// The clock of a race: what a token takes, by position, as the server measured it.

export const SEGMENT = 56; // tokens of a call, which share a point of the curve: two rows of a digit

// A slow lap was held up by something else, for nothing runs faster than it can: of several laps the fastest counts,
// at each position by itself.
export class LapClock {
  #fastest = new Map(); // first position of a segment -> {end, micros a token}

  // The tokens at positions [first, end) took so many microseconds each.
  took(first, end, micros) {
    const before = this.#fastest.get(first)?.micros ?? Infinity;
    this.#fastest.set(first, { end, micros: Math.min(before, micros) });
  }

  // [[position, microseconds a token], ...] by position.
  curve() {
    const segments = [...this.#fastest].sort(([a], [b]) => a - b);
    return segments.map(([first, { end, micros }]) => [(first + end) / 2, micros]);
  }

  // Microseconds a token over all positions so far; NaN before the first.
  overall() {
    let [tokens, micros] = [0, 0];
    for (const [first, segment] of this.#fastest) {
      tokens += segment.end - first;
      micros += (segment.end - first) * segment.micros;
    }
    return micros / tokens;
  }
}
