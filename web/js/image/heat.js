// SPDX-License-Identifier: Apache-2.0
// The heat map of the tab Digits: how unsure the model was of each pixel.
import { byId, chosen } from '../dom.js';
import { digits } from '../format.js';
import { drawHeat, heatColour } from './paint.js';

const UNITS = { entropy: 'bits', spread: 'levels' };

export class HeatMap {
  canvas = byId('heat');
  #of = byId('heat-of');
  #note = byId('heat-note');
  #summary = this.#note.textContent;
  #shown; // {completion, shape, values}

  constructor() {
    const context = byId('heat-legend').getContext('2d');
    for (let i = 0; i < 64; ++i) {
      context.fillStyle = `rgb(${heatColour(i / 63)})`;
      context.fillRect(i, 0, 1, 1);
    }
    this.#of.addEventListener('change', () => this.#shown && this.show(this.#shown.completion, this.#shown.shape));
    this.canvas.addEventListener('pointermove', (event) => this.#look(event));
    this.canvas.addEventListener('pointerleave', () => (this.#note.textContent = this.#summary));
  }

  // Selects the spread, for completions whose distributions are unknown.
  useSpread() {
    this.#of.querySelector('[value=spread]').checked = true;
  }

  show(completion, shape) {
    const of = chosen(this.#of);
    const values = of === 'entropy' ? completion.entropies() : completion.spreads();
    this.#shown = { completion, shape, values };
    const there = [...values.keys()].filter((i) => !Number.isNaN(values[i]));
    const highest = there.reduce((a, i) => (a < 0 || values[i] > values[a] ? i : a), -1);
    const most = of === 'entropy' ? Math.max(1, values[highest] ?? 1) : 127.5;
    drawHeat(this.canvas, shape, values, most);
    byId('heat-most').textContent = `${digits(most)} ${UNITS[of]}`;
    if (highest < 0) {
      this.#summary = completion.tokens > 0 ? 'Unknown for these.' : 'Nothing is drawn yet.';
    } else {
      const mean = there.reduce((sum, i) => sum + values[i], 0) / there.length;
      this.#summary = `${digits(mean)} ${UNITS[of]} on the average; least sure at ${this.#place(highest)}: ${digits(values[highest])} ${UNITS[of]}.`;
    }
    this.#note.textContent = this.#summary;
    this.canvas.setAttribute('aria-label', `Heat map of ${of}: ${this.#summary}`);
  }

  #place(i) {
    const { width } = this.#shown.shape;
    return `row ${Math.floor(i / width) + 1}, column ${(i % width) + 1}`;
  }

  #look(event) {
    if (!this.#shown) return;
    const { completion, shape, values } = this.#shown;
    const box = this.canvas.getBoundingClientRect();
    const cell = (at, size, count) => Math.min(count - 1, Math.max(0, Math.floor((at / size) * count)));
    const i =
      cell(event.clientY - box.top, box.height, shape.height) * shape.width +
      cell(event.clientX - box.left, box.width, shape.width);
    this.#note.textContent = Number.isNaN(values[i])
      ? `${this.#place(i)}: was known`
      : `${this.#place(i)}: ${digits(values[i])} ${UNITS[chosen(this.#of)]}; drawn: ${completion.samples.map((s) => s.pixels[i]).join(', ')}`;
  }
}
