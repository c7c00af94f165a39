// SPDX-License-Identifier: Apache-2.0
// A picture of any size as a digit of a model: grey levels, light on dark, scaled and centred as those of MNIST are
// (the ink in a box of 20 of 28 pixels, its centre of mass in the middle; http://yann.lecun.com/exdb/mnist).

// Grey levels of RGBA bytes, on black where they are transparent.
export function greyLevels(rgba) {
  const out = new Float32Array(rgba.length / 4);
  for (let i = 0; i < out.length; ++i) {
    const [r, g, b, a] = rgba.subarray(4 * i, 4 * i + 4);
    out[i] = ((0.299 * r + 0.587 * g + 0.114 * b) * a) / 255;
  }
  return out;
}

// True if the border is light: dark ink on paper.
export function hasLightBorder(grey, width, height) {
  const border = [];
  for (let x = 0; x < width; ++x) border.push(grey[x], grey[(height - 1) * width + x]);
  for (let y = 1; y + 1 < height; ++y) border.push(grey[y * width], grey[y * width + width - 1]);
  border.sort((a, b) => a - b);
  return border[border.length >> 1] > 127;
}

// The mean of the source over [x0, x1) x [y0, y1), parts of pixels included; nothing beyond the border.
function areaMean(grey, width, height, x0, y0, x1, y1) {
  let sum = 0;
  for (let y = Math.max(0, Math.floor(y0)); y < Math.min(height, Math.ceil(y1)); ++y) {
    const high = Math.min(y1, y + 1) - Math.max(y0, y);
    for (let x = Math.max(0, Math.floor(x0)); x < Math.min(width, Math.ceil(x1)); ++x) {
      sum += grey[y * width + x] * high * (Math.min(x1, x + 1) - Math.max(x0, x));
    }
  }
  return sum / ((x1 - x0) * (y1 - y0));
}

// rgba: 4 * width * height bytes. to: {width, height} of the model. Gives to.width * to.height levels.
export function fitDigit(rgba, width, height, to) {
  let grey = greyLevels(rgba);
  if (hasLightBorder(grey, width, height)) grey = grey.map((v) => 255 - v);
  if (width === to.width && height === to.height) return Uint8Array.from(grey, Math.round);

  let most = 0;
  let least = 255;
  for (const v of grey) [most, least] = [Math.max(most, v), Math.min(least, v)];
  // Paper that is not quite white, ink that is not quite black.
  const floor = least + 0.25 * (most - least);
  grey = grey.map((v) => (most > floor ? Math.max(0, ((v - floor) * 255) / (most - floor)) : 0));

  let [left, top, right, bottom] = [width, height, 0, 0];
  let [mass, massX, massY] = [0, 0, 0];
  for (let y = 0; y < height; ++y) {
    for (let x = 0; x < width; ++x) {
      const v = grey[y * width + x];
      if (v === 0) continue;
      [left, right] = [Math.min(left, x), Math.max(right, x + 1)];
      [top, bottom] = [Math.min(top, y), Math.max(bottom, y + 1)];
      mass += v;
      massX += v * (x + 0.5);
      massY += v * (y + 0.5);
    }
  }
  const out = new Uint8Array(to.width * to.height);
  if (mass === 0) return out;

  // Source pixels to one of the model's.
  const scale = Math.max((right - left) / ((to.width * 5) / 7), (bottom - top) / ((to.height * 5) / 7));
  const originX = massX / mass - (to.width / 2) * scale;
  const originY = massY / mass - (to.height / 2) * scale;
  for (let y = 0; y < to.height; ++y) {
    for (let x = 0; x < to.width; ++x) {
      const [x0, y0] = [originX + x * scale, originY + y * scale];
      out[y * to.width + x] = Math.round(areaMean(grey, width, height, x0, y0, x0 + scale, y0 + scale));
    }
  }
  return out;
}
