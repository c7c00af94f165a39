// SPDX-License-Identifier: Apache-2.0
// Images onto canvases: one canvas pixel for each pixel, enlarged by style.

// Drawn pixels are tinted, to distinguish them from given ones.
const DRAWN = [255, 178, 92];
const HIDDEN = [64, 52, 44];

// From dark over red to pale yellow, for heat: stops at 0, 1/4, 1/2, 3/4 and 1.
const HEAT = [
  [10, 8, 24],
  [92, 20, 82],
  [196, 52, 56],
  [245, 142, 40],
  [255, 240, 170],
];

export function heatColour(share) {
  const at = Math.min(1, Math.max(0, share)) * (HEAT.length - 1);
  const stop = Math.min(HEAT.length - 2, Math.floor(at));
  return HEAT[stop].map((v, i) => Math.round(v + (HEAT[stop + 1][i] - v) * (at - stop)));
}

function draw(canvas, width, height, colour) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const context = canvas.getContext('2d');
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; ++i) {
    image.data.set(colour(i), 4 * i);
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

// hidden, here: a byte a pixel; what is hidden and not here yet is drawn as such.
export function drawImage(canvas, { width, height }, pixels, hidden, here, tint = true) {
  draw(canvas, width, height, (i) => {
    if (!here[i]) return (Math.floor(i / width) + (i % width)) % 2 ? HIDDEN : HIDDEN.map((v) => v * 0.75);
    if (!hidden[i] || !tint) return [pixels[i], pixels[i], pixels[i]];
    return DRAWN.map((v) => (v * pixels[i]) / 255);
  });
}

// values: from 0 to `most`, NaN for none.
export function drawHeat(canvas, { width, height }, values, most) {
  draw(canvas, width, height, (i) =>
    Number.isNaN(values[i]) ? [44, 44, 46] : heatColour(most > 0 ? values[i] / most : 0),
  );
}

// Canvases in a row, each enlarged, as one PNG under `name`.
export function download(canvases, name, scale = 8) {
  const gap = 8;
  const width = canvases.reduce((sum, c) => sum + c.width * scale + gap, gap);
  const height = Math.max(...canvases.map((c) => c.height)) * scale + 2 * gap;
  const sheet = Object.assign(document.createElement('canvas'), { width, height });
  const context = sheet.getContext('2d');
  context.imageSmoothingEnabled = false;
  context.fillStyle = '#191512';
  context.fillRect(0, 0, width, height);
  let x = gap;
  for (const canvas of canvases) {
    context.drawImage(canvas, x, gap, canvas.width * scale, canvas.height * scale);
    x += canvas.width * scale + gap;
  }
  sheet.toBlob((blob) => {
    const link = Object.assign(document.createElement('a'), {
      href: URL.createObjectURL(blob),
      download: name,
    });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }, 'image/png');
}
