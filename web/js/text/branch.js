// One text of the tab Text: a session, its values, and its card.
import { h, say } from '../dom.js';
import { bitsPerValue, byteName, characters, surprise, take } from './story.js';
import { digits, duration, percent, whole } from '../format.js';

export class BranchCard {
  running; // an AbortController, while it is written
  shared = 0; // values that are the same in the branch it came from
  #spans = []; // a character each
  #at = -1; // the character that the keyboard is at
  #frame;

  // from: {card, position} of the branch it forked from. onLook(character) when one is pointed at, with nothing when
  // none is; onPin(character) when one is chosen.
  constructor({ name, sessionId, values, from, onContinue, onStop, onDelete, onLook, onPin }) {
    Object.assign(this, { name, sessionId, values, from, onLook, onPin });
    this.shared = values.length;
    this.go = h('button', { type: 'button', onclick: onContinue }, 'Continue');
    this.stop = h('button', { type: 'button', onclick: onStop, hidden: true }, 'Stop');
    this.note = h('p', { class: 'hint' }, '');
    this.view = h('div', {
      class: 'text', tabIndex: 0, role: 'group', 'aria-label': `Branch ${name}. Arrow keys go from character to character, enter chooses one.`,
      onkeydown: (e) => this.#key(e), onpointerover: (e) => this.#look(e.target), onpointerleave: () => this.onLook(),
      onclick: (e) => this.#pin(this.#spans.indexOf(e.target)), onblur: () => this.#move(-1),
    });
    this.element = h('article', { class: 'card branch' },
      h('header', { class: 'row' }, h('h3', {}, name), h('p', { class: 'hint' }, from ? `from ${from.card.name} at ${from.position}` : ''),
        this.go, this.stop, h('button', { type: 'button', 'aria-label': `Delete branch ${name}`, onclick: onDelete }, 'Delete')),
      this.view, this.note);
    this.draw();
  }

  text() {
    return characters(this.values).map((c) => c.text).join('');
  }

  begin() {
    [this.go.hidden, this.stop.hidden] = [true, false];
    this.began = performance.now();
    this.count = 0;
    this.first = undefined;
    this.finish = undefined;
  }

  take(message) {
    for (const chunk of message.chunks ?? []) {
      if (chunk.source === 'VALUE_SOURCE_PROMPT') continue;
      this.first ??= performance.now();
      this.count += chunk.tokens?.length ?? 0;
    }
    this.finish = message.finished?.[0] ?? this.finish;
    take(this.values, message);
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = undefined;
      this.draw();
      this.view.scrollTop = this.view.scrollHeight;
    });
  }

  end() {
    [this.go.hidden, this.stop.hidden] = [false, true];
    this.draw();
  }

  rewind(position) {
    this.values.length = position;
    this.finish = undefined;
    this.count = 0;
    this.draw();
  }

  draw() {
    this.characters = characters(this.values);
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
        this.values[character.start].source === 'VALUE_SOURCE_PROMPT' ? 'prompt' : '',
        character.end <= this.shared ? 'shared' : '',
        i === this.#at ? 'at' : '',
      ].filter(Boolean).join(' ');
    });
    this.note.textContent = this.#summary();
  }

  #summary() {
    const parts = [`${whole(this.values.length)} bytes`];
    const bits = bitsPerValue(this.values);
    if (!Number.isNaN(bits)) parts.push(`${digits(bits)} bits a byte`);
    const perToken = duration(this.finish?.timings?.perToken);
    if (perToken > 0) parts.push(`${whole(1 / perToken)} tokens/s`);
    else if (this.running && this.count > 1) parts.push(`${whole((1000 * (this.count - 1)) / (performance.now() - this.first))} tokens/s`);
    if (this.finish?.seed !== undefined) parts.push(`seed ${this.finish.seed}`);
    return parts.join(' · ');
  }

  #look(target) {
    const i = this.#spans.indexOf(target);
    if (i >= 0) this.onLook(this.characters[i]);
  }

  #pin(i) {
    if (i >= 0) this.onPin(this.characters[i]);
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
    say(`${[...text].map((c) => (c.trim() ? c : byteName(c.charCodeAt(0)))).join('')}, ${Number.isNaN(log2) ? 'no probability' : percent(log2)}`);
  }

  #key(event) {
    const last = this.#spans.length - 1;
    const to = { ArrowRight: this.#at + 1, ArrowLeft: this.#at < 0 ? last : this.#at - 1, Home: 0, End: last }[event.key];
    if (event.key === 'Enter' && this.#at >= 0) this.#pin(this.#at);
    else if (to !== undefined && last >= 0) this.#move(Math.max(0, Math.min(last, to)));
    else return;
    event.preventDefault();
  }
}
