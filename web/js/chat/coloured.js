// SPDX-License-Identifier: Apache-2.0
// An answer as its tokens, coloured by probability. Pointer and arrow keys show the likeliest tokens at a character.
import { h, say } from '../dom.js';
import { percent } from '../format.js';
import { surprise, tokenName, visible } from '../text/story.js';
import { coloured } from './answer.js';

const SHOWN = 4; // likeliest tokens

export class ColouredText {
  #spans = []; // a character each
  #characters = [];
  #at = -1; // the character that the keyboard is at
  #text = h('div', {
    class: 'coloured',
    tabIndex: 0,
    role: 'group',
    'aria-label': 'Answer by probability. Arrow keys go from character to character.',
    onkeydown: (event) => this.#key(event),
    onpointerover: (event) => this.#tell(this.#spans.indexOf(event.target)),
    onblur: () => this.#move(-1),
  });
  #note = h('p', { class: 'hint' });
  element = h('div', {}, this.#text, this.#note);

  // Unchanged spans stay: most characters do not change.
  update(answer) {
    const now = (this.#characters = coloured(answer));
    while (this.#spans.length > now.length) this.#spans.pop().remove();
    now.forEach(({ text, log2 }, i) => {
      let span = this.#spans[i];
      if (span?.textContent === text && span.log2 === log2) return;
      if (!span) {
        span = h('span');
        this.#spans.push(span);
        this.#text.append(span);
      }
      [span.textContent, span.log2] = [text, log2];
      span.style.setProperty('--surprise', surprise(log2).toFixed(3));
    });
    this.#tell(this.#at);
  }

  #tell(i) {
    const character = this.#characters[i];
    this.#note.textContent = character
      ? chances(character)
      : 'Point at a character, or go through the answer with the arrow keys, to see the likeliest tokens.';
  }

  #move(to) {
    this.#spans[this.#at]?.classList.remove('at');
    this.#at = to;
    this.#tell(to);
    const span = this.#spans[to];
    if (!span) return;
    span.classList.add('at');
    span.scrollIntoView({ block: 'nearest' });
    say(chances(this.#characters[to]));
  }

  #key(event) {
    const last = this.#spans.length - 1;
    const to = { ArrowRight: this.#at + 1, ArrowLeft: this.#at < 0 ? last : this.#at - 1, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.#move(Math.max(0, Math.min(last, to)));
  }
}

function chances({ text, log2, top }) {
  if (Number.isNaN(log2)) return `${visible(text)}: no probability`;
  const others = top.slice(0, SHOWN).map((other) => `${tokenName(other)} ${percent(other.log2)}`);
  return `${visible(text)} ${percent(log2)}${others.length > 0 ? `, of: ${others.join(', ')}` : ''}`;
}
