// SPDX-License-Identifier: Apache-2.0
// Lines over an axis: drawn as SVG, coloured by style (.series-0, .series-1, ...).
import { h, svg } from '../dom.js';

const MARGIN = { left: 64, right: 12, top: 12, bottom: 40 };
const HEIGHT = 260;

// Round numbers from 0 to at least `most`, about `count` steps.
export function ticks(most, count) {
  if (!(most > 0)) return [0, 1];
  const raw = most / count;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * size).find((s) => s >= raw * 0.999);
  return Array.from({ length: Math.ceil((most / step) * 0.999) + 1 }, (_, i) => i * step);
}

export class Chart {
  // titles for people; format(y) for the axis.
  constructor({ title, xTitle, format }) {
    Object.assign(this, { xTitle, format });
    this.picture = svg('svg', { role: 'img', 'aria-label': title, class: 'chart' });
    this.element = h('figure', { class: 'card chart-card' }, h('figcaption', {}, h('h2', {}, title)), this.picture);
    this.series = [];
    this.xMost = 1;
    this.width = 0;
    new ResizeObserver(() => {
      if (this.picture.clientWidth === this.width) return;
      this.width = this.picture.clientWidth;
      this.draw();
    }).observe(this.picture);
  }

  // series: [{points: [[x, y], ...], index, faint}]; index is of its colour.
  set(series, xMost) {
    this.series = series;
    this.xMost = xMost;
    this.draw();
  }

  draw() {
    if (!this.width) return;
    const inner = {
      width: this.width - MARGIN.left - MARGIN.right,
      height: HEIGHT - MARGIN.top - MARGIN.bottom,
    };
    const highest = Math.max(0, ...this.series.flatMap((s) => s.points.map((p) => p[1])));
    const yTicks = ticks(highest, 4);
    const xTicks = ticks(this.xMost, this.width < 420 ? 3 : 6).filter((x) => x <= this.xMost);
    const x = (v) => MARGIN.left + (v / this.xMost) * inner.width;
    const y = (v) => MARGIN.top + inner.height - (v / yTicks.at(-1)) * inner.height;
    this.picture.setAttribute('viewBox', `0 0 ${this.width} ${HEIGHT}`);
    this.picture.setAttribute('height', HEIGHT);
    this.picture.replaceChildren(
      ...yTicks.flatMap((v) => [
        svg('line', { class: 'grid', x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y(v), y2: y(v) }),
        svg('text', { class: 'tick', x: MARGIN.left - 8, y: y(v) + 4, 'text-anchor': 'end' }, this.format(v)),
      ]),
      ...xTicks.map((v) => svg('text', { class: 'tick', x: x(v), y: HEIGHT - 20, 'text-anchor': 'middle' }, String(v))),
      svg(
        'text',
        { class: 'tick', x: MARGIN.left + inner.width / 2, y: HEIGHT - 3, 'text-anchor': 'middle' },
        this.xTitle,
      ),
      ...this.series
        .filter((s) => s.points.length > 0)
        .flatMap(({ points, index }) => {
          const line = points.map(([px, py], i) => `${i ? 'L' : 'M'}${x(px).toFixed(1)} ${y(py).toFixed(1)}`).join('');
          const [endX, endY] = points.at(-1);
          return [
            svg('path', { class: `line series-${index}`, d: line }),
            svg('circle', { class: `dot series-${index}`, cx: x(endX), cy: y(endY), r: 4 }),
          ];
        }),
    );
  }
}
