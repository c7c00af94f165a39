// SPDX-License-Identifier: Apache-2.0
// One text of the tab Text: a session, its tokens, and its card.
import { h, say } from '../dom.js';
import { digits, duration, percent, whole } from '../format.js';
import { bitsPerToken, characters, surprise, take, visible } from './story.js';

export class BranchCard {
  shared = 0; // tokens that are the same in the branch it came from
  #writing; // {abort: an AbortController, over: a promise, end: resolves it}, while it is written
  #spans = []; // a character each
  #at = -1; // the character that the keyboard is at
  #frame;

  // from: {card, position} of the branch it forked from. onLook(character) when one is pointed at, with nothing when
  // none is; onChoose(character) when one is chosen.
  constructor({ name, sessionId, model, tokens, from, onContinue, onDelete, onLook, onChoose }) {
    Object.assign(this, { name, sessionId, model, tokens, from, onLook, onChoose });
    this.unit = model.modality === 'bytes' ? 'byte' : 'token';
    this.go = h('button', { type: 'button', onclick: onContinue }, 'Continue');
    this.stop = h('button', { type: 'button', onclick: () => this.#writing?.abort.abort(), hidden: true }, 'Stop');
    const remove = h('button', { type: 'button', 'aria-label': `Delete branch ${name}`, onclick: onDelete }, 'Delete');
    this.note = h('p', { class: 'hint' }, '');
    this.view = h('div', {
      class: 'text',
      tabIndex: 0,
      role: 'group',
      'aria-label': `Branch ${name}. Arrow keys go from character to character, enter chooses one.`,
      onkeydown: (event) => this.#key(event),
      onpointerover: (event) => this.#look(event.target),
      onpointerleave: () => this.onLook(),
      onclick: (event) => this.#choose(this.#spans.indexOf(event.target)),
      onblur: () => this.#move(-1),
    });
    const origin = from ? `from ${from.card.name} at ${from.position}` : '';
    this.element = h(
      'article',
      { class: 'card branch' },
      h('header', { class: 'row' }, h('h3', {}, name), h('p', { class: 'hint' }, origin), this.go, this.stop, remove),
      this.view,
      this.note,
    );
    this.draw();
  }

  text() {
    return characters(this.tokens)
      .map((c) => c.text)
      .join('');
  }

  get running() {
    return this.#writing !== undefined;
  }

  // Begins writing; returns the signal that stops it.
  begin() {
    this.#writing = { abort: new AbortController() };
    this.#writing.over = new Promise((resolve) => (this.#writing.end = resolve));
    [this.go.hidden, this.stop.hidden] = [true, false];
    this.count = 0;
    this.first = undefined; // when the first new token came
    this.finish = undefined;
    return this.#writing.abort.signal;
  }

  end() {
    this.#writing.end();
    this.#writing = undefined;
    [this.go.hidden, this.stop.hidden] = [false, true];
    this.draw();
  }

  // Stops it, and waits until it has.
  async stopped() {
    this.#writing?.abort.abort();
    await this.#writing?.over;
  }

  take(message) {
    for (const chunk of message.chunks ?? []) {
      if (chunk.source === 'VALUE_SOURCE_PROMPT') continue;
      this.first ??= performance.now();
      this.count += chunk.tokens?.length ?? 0;
    }
    this.finish = message.finished?.[0] ?? this.finish;
    take(this.tokens, message);
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = undefined;
      this.draw();
      this.view.scrollTop = this.view.scrollHeight;
    });
  }

  rewind(position) {
    this.tokens.length = position;
    this.finish = undefined;
    this.count = 0;
    this.draw();
  }

  draw() {
    this.characters = characters(this.tokens);
    const now = this.characters;
    while (this.#spans.length > now.length) this.#spans.pop().remove();
    now.forEach((character, i) => {
      let span = this.#spans[i];
      if (!span) {
        span = h('span');
        this.#spans.push(span);
        this.view.append(span);
      }
      if (span.textContent !== character.text) span.textContent = character.text;
      span.style.setProperty('--surprise', surprise(character.log2).toFixed(3));
      span.className = [
        this.tokens[character.start].source === 'VALUE_SOURCE_PROMPT' ? 'prompt' : '',
        character.end <= this.shared ? 'shared' : '',
        i === this.#at ? 'at' : '',
      ]
        .filter(Boolean)
        .join(' ');
    });
    this.note.textContent = this.#summary();
  }

  #summary() {
    const parts = [`${whole(this.tokens.length)} ${this.unit}s`];
    const bits = bitsPerToken(this.tokens);
    if (!Number.isNaN(bits)) parts.push(`${digits(bits)} bits a ${this.unit}`);
    const perToken = duration(this.finish?.timings?.perToken);
    if (perToken > 0) parts.push(`${whole(1 / perToken)} tokens/s`);
    else if (this.running && this.count > 1)
      parts.push(`${whole((1000 * (this.count - 1)) / (performance.now() - this.first))} tokens/s`);
    if (this.finish?.seed !== undefined) parts.push(`seed ${this.finish.seed}`);
    return parts.join(' · ');
  }

  #look(target) {
    const i = this.#spans.indexOf(target);
    if (i >= 0) this.onLook(this.characters[i]);
  }

  #choose(i) {
    if (i >= 0) this.onChoose(this.characters[i]);
  }

  #move(to) {
    this.#spans[this.#at]?.classList.remove('at');
    this.#at = to;
    const span = this.#spans[to];
    if (!span) return;
    span.classList.add('at');
    span.scrollIntoView({ block: 'nearest' });
    const { text, log2 } = this.characters[to];
    this.onLook(this.characters[to]);
    say(`${visible(text)}, ${Number.isNaN(log2) ? 'no probability' : percent(log2)}`);
  }

  #key(event) {
    const last = this.#spans.length - 1;
    const to = {
      ArrowRight: this.#at + 1,
      ArrowLeft: this.#at < 0 ? last : this.#at - 1,
      Home: 0,
      End: last,
    }[event.key];
    if (event.key === 'Enter' && this.#at >= 0) this.#choose(this.#at);
    else if (to !== undefined && last >= 0) this.#move(Math.max(0, Math.min(last, to)));
    else return;
    event.preventDefault();
  }
}
