// SPDX-License-Identifier: Apache-2.0
// The completions of the tab Digits, as they appear.
import { byId, h } from '../dom.js';
import { digits } from '../format.js';
import { drawImage } from './paint.js';

const SLOW = 700; // pixels a second in slow motion, of all completions together

export class Results {
  canvases = [];
  #captions = [];
  #queue = []; // pixels that came and are not shown yet: [[sample, position], ...]
  #frame;
  #budget = 0; // pixels that slow motion may show by now
  #last; // the time of the last frame

  // drawn(): after each frame.
  constructor(drawn) {
    this.drawn = drawn;
    byId('digits-tint').addEventListener('change', () => this.completion && this.draw());
  }

  begin(completion, shape) {
    Object.assign(this, { completion, shape });
    this.#queue = [];
    this.canvases = completion.samples.map((_, i) =>
      h('canvas', { class: 'pixels', role: 'img', 'aria-label': `Completion ${i + 1}` }),
    );
    this.#captions = this.canvases.map(() => h('figcaption', {}, '\u00a0'));
    this.here = completion.samples.map((s) => Uint8Array.from(s.here));
    byId('digits-results').replaceChildren(
      ...this.canvases.map((canvas, i) => h('figure', {}, canvas, this.#captions[i])),
    );
    this.draw();
  }

  came(pixels) {
    this.#queue.push(...pixels);
    this.animate();
  }

  // Draws new pixels at most once a frame; in slow motion a part of them.
  animate() {
    this.#frame ??= requestAnimationFrame((now) => {
      this.#frame = undefined;
      const isSlow = byId('digits-slow').checked;
      this.#budget += (SLOW * Math.min(100, now - (this.#last ?? now - 16))) / 1000;
      const due = isSlow ? Math.min(this.#queue.length, Math.floor(this.#budget)) : this.#queue.length;
      this.#budget = isSlow ? this.#budget - due : 0;
      for (const [sample, at] of this.#queue.splice(0, due)) this.here[sample][at] = 1;
      this.draw();
      this.#last = this.#queue.length > 0 ? now : undefined;
      if (this.#queue.length > 0) this.animate();
    });
  }

  draw() {
    const { samples, hidden } = this.completion;
    const isDone = samples.every((s) => s.finish);
    const best = isDone && samples.length > 1 ? Math.min(...samples.map((s) => s.bits)) : NaN;
    samples.forEach((sample, i) => {
      const canvas = this.canvases[i];
      drawImage(canvas, this.shape, sample.pixels, hidden, this.here[i], byId('digits-tint').checked);
      if (sample.drawn === 0) return;
      const isBest = sample.bits === best;
      this.#captions[i].textContent = `${digits(sample.bits)} bits${isBest ? ' · likeliest' : ''}`;
      canvas.setAttribute(
        'aria-label',
        `Completion ${i + 1}: ${digits(sample.bits)} bits, ${digits(sample.bits / sample.drawn)} a pixel`,
      );
      canvas.parentNode.classList.toggle('best', isBest);
    });
    this.drawn();
  }
}
