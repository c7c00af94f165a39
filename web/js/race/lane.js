// SPDX-License-Identifier: Apache-2.0
// One model in a race: what it draws, its clock and its card.
import { h } from '../dom.js';
import { bytes, digits, duration, whole } from '../format.js';
import { Completion, firstKnown, segmentRequest } from '../image/completion.js';
import { drawImage } from '../image/paint.js';
import { attentionName, stateBytes } from '../wire/models.js';
import { stream, unary } from '../wire/rpc.js';
import { deleteSession } from '../wire/sessions.js';
import { LapClock, SEGMENT } from './laps.js';

export class Lane {
  laps = 0;
  position = 0; // after the last token of this lap
  drawn = 0; // tokens, in all laps
  accepted = 0; // of them, that were draft tokens

  // index: of its colour. changed(): its box was ticked.
  constructor(model, index, changed) {
    Object.assign(this, { model, index });
    this.enters = h('input', { type: 'checkbox', checked: true, onchange: changed });
    this.canvas = h('canvas', { class: 'pixels', role: 'img', 'aria-label': `${model.name} draws` });
    this.progress = h('progress', { max: 1, value: 0, 'aria-label': `${model.name}: progress` });
    this.micros = h('strong', {}, '-');
    this.state = h('strong', {}, '-');
    const figure = (name, value) => h('div', {}, h('dt', {}, name), h('dd', {}, value));
    this.element = h(
      'article',
      { class: `card lane series-${index}` },
      h('h3', { title: model.name }, model.name),
      h('p', { class: 'hint' }, `${attentionName(model)}, ${model.weightType}`),
      this.canvas,
      this.progress,
      h('dl', {}, figure('µs a token', this.micros), figure('state', this.state)),
    );
  }

  // At the start, with this image.
  prepare(image, hidden) {
    Object.assign(this, { image, hidden, laps: 0, drawn: 0, accepted: 0, clock: new LapClock() });
    this.#begin();
  }

  #begin() {
    const { hidden, model } = this;
    const startToken = model.image.startToken ?? 0;
    this.completion = new Completion(firstKnown(this.image, hidden, startToken), hidden, 1, model.vocabSize);
    this.position = 0;
  }

  // One lap: a session, continued segment by segment. moved(): after every message with tokens.
  async run(seed, signal, moved) {
    this.#begin();
    const session = await unary(
      'SessionService/Create',
      { model: this.model.name, durability: 'DURABILITY_NONE' },
      { signal },
    );
    try {
      for (let first = 1, end; first < this.image.length; first = end) {
        end = Math.min(this.image.length, first - (first % SEGMENT) + SEGMENT);
        const request = {
          sessionId: session.id,
          ...segmentRequest(this.completion.samples[0].pixels, this.hidden, first, end),
          sampling: { seed: String(seed) },
        };
        for await (const messages of stream('GenerationService/Generate', request, { signal })) {
          for (const message of messages) this.#take(message, first, end);
          moved();
        }
      }
      ++this.laps;
      moved();
    } finally {
      await deleteSession(session.id);
    }
  }

  #take(message, first, end) {
    this.completion.take(message);
    for (const { firstPosition = 0, tokens = [] } of message.chunks ?? []) {
      this.position = Math.max(this.position, Number(firstPosition) + tokens.length);
    }
    for (const { generatedTokens = 0, givenTokens = 0, acceptedTokens = 0 } of message.finished ?? []) {
      this.drawn += generatedTokens - givenTokens;
      this.accepted += acceptedTokens;
    }
    // Known tokens are read many at once, and are no measure of a step.
    const perToken = duration(message.finished?.[0]?.timings?.perToken);
    if (perToken > 0 && this.hidden.subarray(first, end).includes(1)) this.clock.took(first, end, 1e6 * perToken);
  }

  stateAt(position) {
    return stateBytes(this.model, position);
  }

  // [[position, bytes], ...], as far as it has ever come.
  stateCurve() {
    const reached = this.laps > 0 ? this.image.length : this.position;
    const points = [];
    for (let at = 0; at < reached; at += 8) points.push([at, this.stateAt(at)]);
    if (reached > 0) points.push([reached, this.stateAt(reached)]);
    return points;
  }

  draw() {
    const [{ pixels, here }] = this.completion.samples;
    drawImage(this.canvas, this.model.image, pixels, this.hidden, here);
    this.progress.value = this.position / this.image.length;
    const micros = this.clock.overall();
    this.micros.textContent = Number.isNaN(micros) ? '-' : digits(micros);
    this.state.textContent = bytes(this.stateAt(this.position));
  }

  tableRow() {
    const curve = this.clock.curve();
    const cells = [
      attentionName(this.model),
      digits(this.clock.overall()),
      curve.length > 0 ? digits(curve[0][1]) : '-',
      curve.length > 0 ? digits(curve.at(-1)[1]) : '-',
      bytes(this.stateAt(1)),
      bytes(this.stateAt(this.image.length)),
      this.laps,
      this.accepted > 0 ? `${whole(this.accepted)} of ${whole(this.drawn)}` : 'none',
    ];
    const name = h('th', { scope: 'row' }, h('span', { class: `swatch series-${this.index}` }), this.model.name);
    return h(
      'tr',
      {},
      name,
      cells.map((cell) => h('td', {}, String(cell))),
    );
  }
}
