// SPDX-License-Identifier: Apache-2.0
// Masks of hidden pixels: a byte a pixel, 1 where it is hidden.

const all = (width, height, hide) => {
  const out = new Uint8Array(width * height);
  for (let i = 0; i < out.length; ++i) out[i] = hide(i % width, Math.floor(i / width)) ? 1 : 0;
  return out;
};

export const MASKS = {
  bottom: ['Bottom half', (w, h) => all(w, h, (x, y) => y >= h / 2)],
  thirds: ['Lower two thirds', (w, h) => all(w, h, (x, y) => y >= Math.ceil(h / 3))],
  top: ['Top half', (w, h) => all(w, h, (x, y) => y < h / 2)],
  left: ['Left half', (w, h) => all(w, h, (x) => x < w / 2)],
  right: ['Right half', (w, h) => all(w, h, (x) => x >= w / 2)],
  box: [
    'Middle',
    (w, h) => all(w, h, (x, y) => Math.abs(x + 0.5 - w / 2) < w / 4 && Math.abs(y + 0.5 - h / 2) < h / 4),
  ],
  random: ['70 % at random', (w, h) => all(w, h, () => Math.random() < 0.7)],
  all: ['Everything', (w, h) => all(w, h, () => true)],
  none: ['Nothing', (w, h) => all(w, h, () => false)],
};

// Runs of pixels in [from, to) that are known: [[first, end], ...].
export function knownRuns(hidden, from, to) {
  const out = [];
  for (let i = from; i < to; ++i) {
    if (hidden[i]) continue;
    const first = i;
    while (i < to && !hidden[i]) ++i;
    out.push([first, i]);
  }
  return out;
}
