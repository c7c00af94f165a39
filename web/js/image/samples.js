// SPDX-License-Identifier: Apache-2.0
// The digits to pick from: a sheet of 28x28 pixels each, drawn by a model of ours.
import { h } from '../dom.js';
import { whenReached } from '../wire/reach.js';

const SIZE = 28;
const SHEET = 'digits.png';
// A zero, a one, and so on.
const PICKED = [62, 74, 69, 79, 42, 48, 85, 43, 13, 7];

let sheet;
function load() {
  sheet ??= (async () => {
    const image = new Image();
    image.src = SHEET;
    await image.decode().catch(() => {
      throw Object.assign(new Error('the digits to begin with did not come'), { code: 'unavailable' });
    });
    const canvas = Object.assign(document.createElement('canvas'), {
      width: image.width,
      height: image.height,
    });
    const context = canvas.getContext('2d', { willReadFrequently: true });
    context.drawImage(image, 0, 0);
    return context;
  })();
  sheet.catch(() => (sheet = undefined));
  return sheet;
}

// 784 levels that show `digit`.
export async function sample(digit) {
  const context = await load();
  const index = PICKED[digit];
  const across = context.canvas.width / SIZE;
  const { data } = context.getImageData((index % across) * SIZE, Math.floor(index / across) * SIZE, SIZE, SIZE);
  return Uint8Array.from({ length: SIZE * SIZE }, (_, i) => data[4 * i]);
}

// Fills `tray` with a button for each; pick(levels) gets the one that is pressed.
export function sampleTray(tray, pick) {
  PICKED.forEach(async (_, digit) => {
    const canvas = h('canvas', { width: SIZE, height: SIZE });
    const button = h('button', { type: 'button', 'aria-label': `A ${digit}` }, canvas);
    tray.append(button);
    const levels = await whenReached(() => sample(digit));
    const context = canvas.getContext('2d');
    const image = context.createImageData(SIZE, SIZE);
    levels.forEach((v, at) => image.data.set([v, v, v, 255], 4 * at));
    context.putImageData(image, 0, 0);
    button.addEventListener('click', () => {
      for (const other of tray.children) other.setAttribute('aria-pressed', other === button);
      pick(levels);
    });
  });
}
