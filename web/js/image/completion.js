// SPDX-License-Identifier: Apache-2.0
// An occluded image as a request, and what comes back as images.
import { toBase64 } from '../wire/base64.js';
import { knownRuns } from './masks.js';

// A model has no distribution over its first pixel: one that is hidden is its start token.
export function firstKnown(image, hidden, startToken) {
  const out = Uint8Array.from(image);
  if (hidden[0]) out[0] = startToken;
  return out;
}

const pixels = (image, from, to) => ({ pixels: toBase64(image.subarray(from, to)) });

// The known pixels in [first, end), at their positions.
const givenSpans = (image, hidden, first, end) =>
  knownRuns(hidden, first, end).map(([from, to]) => ({ position: from, values: pixels(image, from, to) }));

// Fields of a request for all that is hidden. Known pixels before the first hidden one are the prompt, those after it
// are given. image: as firstKnown gives it.
export function completionRequest(image, hidden) {
  let first = 1;
  while (first < image.length && !hidden[first]) ++first;
  let end = image.length;
  while (end > first && !hidden[end - 1]) --end;
  return { prompt: pixels(image, 0, first), maxNewTokens: end - first, given: givenSpans(image, hidden, first, end) };
}

// Fields of a request that continues a session that has the pixels before `first`, up to `end`. The
// first request has the first pixel as its prompt.
export function segmentRequest(image, hidden, first, end) {
  return {
    ...(first === 1 && { prompt: pixels(image, 0, 1) }),
    maxNewTokens: end - first,
    given: givenSpans(image, hidden, first, end),
  };
}

// The entropy in bits of a distribution of which the likeliest tokens are known: the rest is taken to be spread
// evenly over `others` tokens, so that this is never too little by the part that was cut off.
export function entropy(log2Probs, others) {
  let rest = 1;
  let bits = 0;
  for (const log2 of log2Probs) {
    const p = 2 ** log2;
    if (p === 0) continue;
    rest -= p;
    bits -= p * log2;
  }
  if (rest > 1e-6 && others > 0) bits -= rest * Math.log2(rest / others);
  return Math.max(0, bits);
}

// The samples of one request as they come.
export class Completion {
  constructor(image, hidden, samples, vocabSize) {
    this.hidden = hidden;
    this.vocabSize = vocabSize;
    this.samples = Array.from({ length: samples }, () => ({
      pixels: Uint8Array.from(image),
      here: Uint8Array.from(hidden, (h) => 1 - h), // which pixels are there
      bits: 0, // of what was drawn
      drawn: 0,
      finish: undefined,
    }));
    this.entropySums = new Float32Array(image.length);
    this.entropyCounts = new Uint16Array(image.length);
    this.tokens = 0;
  }

  // One GenerateResponse. Gives which positions came, for who draws them: [[sample, position], ...].
  take({ chunks = [], finished = [] }) {
    const came = [];
    for (const { sample = 0, firstPosition = 0, source, tokens = [], log2Probs = [], top = [] } of chunks) {
      const into = this.samples[sample];
      tokens.forEach((token, i) => {
        const at = Number(firstPosition) + i;
        if (at >= into.pixels.length) return;
        ++this.tokens;
        into.pixels[at] = token;
        if (!into.here[at]) came.push([sample, at]);
        into.here[at] = 1;
        if (source !== 'VALUE_SOURCE_SAMPLED') return;
        ++into.drawn;
        if (log2Probs[i] !== undefined) into.bits -= Number(log2Probs[i]);
        if (top[i]) {
          const best = (top[i].log2Probs ?? []).map(Number);
          this.entropySums[at] += entropy(best, this.vocabSize - best.length);
          ++this.entropyCounts[at];
        }
      });
    }
    for (const finish of finished) this.samples[finish.sample ?? 0].finish = finish;
    return came;
  }

  // The model's uncertainty at each pixel, in bits: the mean of the entropies of the samples; NaN where none was
  // drawn.
  entropies() {
    return this.entropySums.map((sum, i) => (this.entropyCounts[i] > 0 ? sum / this.entropyCounts[i] : NaN));
  }

  // The spread of the samples at each pixel: the standard deviation of grey levels, 0 to 127.5; NaN where nothing was
  // hidden or less than two samples are there.
  spreads() {
    const out = new Float32Array(this.hidden.length).fill(NaN);
    for (let i = 0; i < out.length; ++i) {
      const drawn = this.samples.filter((s) => s.here[i]).map((s) => s.pixels[i]);
      if (!this.hidden[i] || drawn.length < 2) continue;
      const mean = drawn.reduce((a, b) => a + b) / drawn.length;
      out[i] = Math.sqrt(drawn.reduce((sum, v) => sum + (v - mean) ** 2, 0) / drawn.length);
    }
    return out;
  }
}
