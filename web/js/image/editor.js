// SPDX-License-Identifier: Apache-2.0
// The image that is completed: levels and what of them is hidden, with a brush for both, by pointer or keyboard.
import { say } from '../dom.js';

const CELL = 14; // canvas pixels for each pixel of the image
const HISTORY = 30;

// The effect of a brush at (x, y): near is 1 at its middle, less around it.
const BRUSHES = {
  hide: (editor, i) => (editor.hidden[i] = 1),
  show: (editor, i) => (editor.hidden[i] = 0),
  draw(editor, i, near) {
    editor.image[i] = Math.max(editor.image[i], Math.round(255 * near));
    editor.hidden[i] = 0;
  },
  erase: (editor, i) => (editor.image[i] = 0),
};

export class Editor {
  mode = 'hide';
  radius = 2;
  #cursor = { x: 14, y: 20 };
  #past = [];
  #stroke; // the last point of the current one

  // changed(hidden): whenever image or mask are other ones.
  constructor(canvas, shape, changed) {
    this.canvas = canvas;
    this.changed = changed;
    canvas.addEventListener('pointerdown', (event) => this.#down(event));
    canvas.addEventListener('pointermove', (event) => this.#move(event));
    canvas.addEventListener('pointerup', () => (this.#stroke = undefined));
    canvas.addEventListener('pointercancel', () => (this.#stroke = undefined));
    canvas.addEventListener('keydown', (event) => this.#key(event));
    canvas.addEventListener('focus', () => this.draw());
    canvas.addEventListener('blur', () => this.draw());
    this.reset(shape);
  }

  clear() {
    this.remember();
    this.image = new Uint8Array(this.image.length);
    this.hidden = new Uint8Array(this.hidden.length);
    this.update();
  }

  reset({ width, height }) {
    Object.assign(this, { width, height });
    this.image = new Uint8Array(width * height);
    this.hidden = new Uint8Array(width * height);
    this.#cursor = { x: width >> 1, y: Math.floor(height * 0.7) };
    this.#past = [];
    this.canvas.width = width * CELL;
    this.canvas.height = height * CELL;
    this.update();
  }

  setImage(levels) {
    this.remember();
    this.image = Uint8Array.from(levels);
    this.update();
  }

  setHidden(mask) {
    this.remember();
    this.hidden = Uint8Array.from(mask);
    this.update();
  }

  remember() {
    this.#past.push([Uint8Array.from(this.image), Uint8Array.from(this.hidden)]);
    if (this.#past.length > HISTORY) this.#past.shift();
  }

  undo() {
    if (this.#past.length === 0) return;
    [this.image, this.hidden] = this.#past.pop();
    this.update();
  }

  update() {
    const share = Math.round((100 * this.hidden.reduce((a, b) => a + b, 0)) / this.hidden.length);
    this.canvas.setAttribute('aria-label', `Image of ${this.width} by ${this.height} pixels, ${share} % hidden`);
    this.draw();
    this.changed(this.hidden);
  }

  draw() {
    const context = this.canvas.getContext('2d');
    for (let i = 0; i < this.image.length; ++i) {
      const [x, y] = [(i % this.width) * CELL, Math.floor(i / this.width) * CELL];
      const v = this.image[i];
      context.fillStyle = this.hidden[i]
        ? (i + Math.floor(i / this.width)) % 2
          ? '#4a3b31'
          : '#3b2f28'
        : `rgb(${v},${v},${v})`;
      context.fillRect(x, y, CELL, CELL);
      if (!this.hidden[i] || v < 64) continue;
      // The pixel stays visible, faintly.
      context.fillStyle = `rgba(255,178,92,${(v / 255) * 0.22})`;
      context.fillRect(x + 5, y + 5, CELL - 10, CELL - 10);
    }
    if (document.activeElement !== this.canvas) return;
    const { x, y } = this.#cursor;
    const r = this.radius - 0.5;
    context.lineWidth = 3;
    for (const [style, dash] of [
      ['#000', []],
      ['#ffb25c', [6, 4]],
    ]) {
      context.strokeStyle = style;
      context.setLineDash(dash);
      context.strokeRect((x - r + 0.5) * CELL, (y - r + 0.5) * CELL, 2 * r * CELL, 2 * r * CELL);
    }
    context.setLineDash([]);
  }

  // The brush at (x, y), in pixels of the image.
  #stamp(x, y) {
    const r = this.mode === 'draw' ? this.radius * 0.5 + 0.5 : this.radius - 0.5;
    for (let row = Math.max(0, Math.floor(y - r)); row <= Math.min(this.height - 1, Math.ceil(y + r)); ++row) {
      for (
        let column = Math.max(0, Math.floor(x - r));
        column <= Math.min(this.width - 1, Math.ceil(x + r));
        ++column
      ) {
        const distance = Math.hypot(column - x, row - y);
        const near = Math.min(1, Math.max(0, r + 0.5 - distance));
        const inside = this.mode === 'draw' ? near > 0 : distance <= r + 0.25;
        if (inside) BRUSHES[this.mode](this, row * this.width + column, near);
      }
    }
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    return {
      x: ((event.clientX - box.left) / box.width) * this.width - 0.5,
      y: ((event.clientY - box.top) / box.height) * this.height - 0.5,
    };
  }

  #down(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.remember();
    this.#stroke = this.#point(event);
    this.#stamp(this.#stroke.x, this.#stroke.y);
    this.update();
  }

  #move(event) {
    if (!this.#stroke) return;
    const to = this.#point(event);
    const from = this.#stroke;
    const steps = Math.max(1, Math.ceil(2 * Math.hypot(to.x - from.x, to.y - from.y)));
    for (let i = 1; i <= steps; ++i) {
      this.#stamp(from.x + ((to.x - from.x) * i) / steps, from.y + ((to.y - from.y) * i) / steps);
    }
    this.#stroke = to;
    this.update();
  }

  #key(event) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key.toLowerCase() === 'z' && (event.ctrlKey || event.metaKey)) {
      this.undo();
    } else if (event.key === ' ' || event.key === 'Enter') {
      this.remember();
      this.#stamp(this.#cursor.x, this.#cursor.y);
      this.update();
      this.#tell();
    } else if (way && !event.altKey && !event.ctrlKey && !event.metaKey) {
      this.#cursor.x = Math.min(this.width - 1, Math.max(0, this.#cursor.x + way[0]));
      this.#cursor.y = Math.min(this.height - 1, Math.max(0, this.#cursor.y + way[1]));
      if (event.shiftKey) {
        this.remember();
        this.#stamp(this.#cursor.x, this.#cursor.y);
        this.update();
      } else {
        this.draw();
      }
      this.#tell();
    } else {
      return;
    }
    event.preventDefault();
  }

  #tell() {
    const { x, y } = this.#cursor;
    const i = y * this.width + x;
    say(`row ${y + 1}, column ${x + 1}, ${this.hidden[i] ? 'hidden' : `level ${this.image[i]}`}`);
  }
}
