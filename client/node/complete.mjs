#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// Hides the lower half of an image and lets the model draw it, painted as it comes.
import { readFileSync, writeFileSync } from 'node:fs';
import { COMMON, connect, parseFlags } from './flags.mjs';

const flags = parseFlags(
  `Usage: node complete.mjs [--image FILE.pgm] [--out FILE.pgm] ${COMMON}
Without an image the model draws one first, with --seed N; its lower half is then drawn with N + 1.`,
  { image: { type: 'string' }, out: { type: 'string' } },
);

const FIT = '`lintel complete --images FILE --fit` takes PNG files of any size';

// Binary PGM with 8 bits a pixel, without comments.
function readPgm(file) {
  const bytes = readFileSync(file);
  const header = /^P5\s+(\d+)\s+(\d+)\s+255\s/.exec(bytes.toString('latin1'));
  if (!header) throw new Error(`${file} is no binary PGM with 255 levels; ${FIT}`);
  const [width, height] = [Number(header[1]), Number(header[2])];
  const pixels = bytes.subarray(header[0].length);
  if (pixels.length < width * height) throw new Error(`${file} ends early`);
  return { width, height, pixels: pixels.subarray(0, width * height) };
}

function writePgm(file, { width, height, pixels }) {
  writeFileSync(file, Buffer.concat([Buffer.from(`P5\n${width} ${height}\n255\n`), pixels]));
}

// Two rows of pixels a line of text, in 24-bit colours; where no terminal shows them, as two shades.
function picture({ width, height, pixels }) {
  if (!process.stdout.isTTY) {
    const rows = [];
    for (let row = 0; row < height; row += 2) {
      const dark = (y, x) => y < height && pixels[y * width + x] >= 128;
      rows.push(Array.from({ length: width }, (_, x) => ' ▀▄█'[dark(row, x) + 2 * dark(row + 1, x)]).join(''));
    }
    return `${rows.join('\n')}\n`;
  }
  const grey = (kind, v) => `\x1b[${kind};2;${v};${v};${v}m`;
  let text = '';
  for (let row = 0; row < height; row += 2) {
    for (let column = 0; column < width; ++column) {
      const upper = pixels[row * width + column];
      const lower = row + 1 < height ? pixels[(row + 1) * width + column] : 0;
      text += `${grey(38, upper)}${grey(48, lower)}▀`;
    }
    text += '\x1b[0m\n';
  }
  return text;
}

const client = connect(flags);
try {
  const models = await client.models();
  const model = models.find((m) => (flags.model ? m.name === flags.model : m.image));
  if (!model?.image) throw new Error('the server has no such image model');
  const shape = { width: model.image.width, height: model.image.height };
  if (model.image.channels !== 1) throw new Error('this example has one token a pixel');
  const options = {
    model: model.name,
    adapter: flags.adapter,
    startToken: model.image.startToken ?? 0,
  };
  const withSeed = (seed) => ({ ...options, sampling: seed === undefined ? {} : { seed } });
  // An image and its completion must not be drawn from the same noise: they would be the same.
  const seed = flags.image || flags.seed === undefined ? flags.seed : BigInt.asUintN(64, flags.seed + 1n);
  const original = flags.image
    ? readPgm(flags.image)
    : { ...shape, pixels: await client.completeImage(new Uint8Array(shape.width * shape.height), () => true, withSeed(flags.seed)) };
  if (original.width !== shape.width || original.height !== shape.height) {
    const found = `${original.width}x${original.height}`;
    throw new Error(`${flags.image} is ${found}, ${model.name} draws images of ${shape.width}x${shape.height}; ${FIT}`);
  }

  const half = Math.floor(shape.height / 2) * shape.width;
  const shown = { ...shape, pixels: original.pixels.map((v, i) => (i < half ? v : 0)) };
  const watched = process.stdout.isTTY;
  if (watched) process.stdout.write(picture(shown));
  const completed = await client.completeImage(original.pixels, (i) => i >= half, {
    ...withSeed(seed),
    onPixel(i, token) {
      shown.pixels[i] = token;
      if (watched && i % shape.width === shape.width - 1) {
        process.stdout.write(`\x1b[${Math.ceil(shape.height / 2)}A${picture(shown)}`);
      }
    },
  });
  if (!watched) process.stdout.write(picture({ ...shape, pixels: completed }));
  if (flags.out) writePgm(flags.out, { ...shape, pixels: completed });
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  client.close();
}
