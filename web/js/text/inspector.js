// SPDX-License-Identifier: Apache-2.0
// Shows what the model thought at a character, and what can be done there.
import { byId, h } from '../dom.js';
import { digits, percent } from '../format.js';
import { tokenName, visible } from './story.js';

const HINT =
  'Point at a character, or go through a branch with the arrow keys, to see what else the model thought of. ' +
  'Click it, or press enter, to fork or rewind there.';

export class Inspector {
  #element = byId('inspector');
  #isPinned = false;

  // fork(card, position, token), rewind(card, position): what the buttons do.
  constructor(fork, rewind) {
    Object.assign(this, { fork, rewind });
    this.close();
  }

  close() {
    this.#isPinned = false;
    this.#element.classList.remove('pinned');
    this.#element.replaceChildren(h('h2', {}, 'A character'), h('p', { class: 'hint' }, HINT));
  }

  // A character is pointed at; nothing: none is. One that was chosen stays.
  look(card, character) {
    if (this.#isPinned) return;
    if (character) this.#show(card, character);
    else this.close();
  }

  choose(card, character) {
    this.#isPinned = true;
    this.#element.classList.add('pinned');
    this.#show(card, character);
    this.#element.querySelector('button:not(:disabled)').focus();
  }

  #show(card, character) {
    const { source, top } = card.tokens[character.start];
    const from = source === 'VALUE_SOURCE_PROMPT' ? 'of the prompt' : 'drawn';
    const chance = Number.isNaN(character.log2)
      ? 'The first token of a sequence has no probability.'
      : `${percent(character.log2)} · ${digits(-character.log2)} bits`;
    const name = visible(character.text) || tokenName(card.tokens[character.start]);
    this.#element.replaceChildren(
      h('h2', {}, h('span', { class: 'glyph' }, name), ` in ${card.name}, ${from}`),
      h('p', {}, chance),
      h(
        'ul',
        { class: 'alternatives' },
        (top ?? []).map((other) => this.#alternative(card, character, other, top[0])),
      ),
      ...(this.#isPinned ? [this.#buttons(card, character)] : []),
    );
  }

  #alternative(card, { start }, other, likeliest) {
    const { token, log2 } = other;
    const bar = h('span', { class: 'bar' });
    bar.style.setProperty('--share', 2 ** (log2 - likeliest.log2));
    const isTaken = token === card.tokens[start].token;
    const instead = {
      type: 'button',
      'aria-label': `Fork with ${tokenName(other)} instead`,
      disabled: isTaken || start === 0,
      onclick: () => this.fork(card, start, token),
    };
    return h(
      'li',
      { class: isTaken ? 'taken' : '' },
      h('span', { class: 'glyph' }, tokenName(other)),
      bar,
      h('span', { class: 'number' }, percent(log2)),
      this.#isPinned && h('button', instead, 'Try'),
    );
  }

  #buttons(card, { end }) {
    const button = (label, properties) => h('button', { type: 'button', ...properties }, label);
    return h(
      'div',
      { class: 'row' },
      button('Fork after it', { class: 'primary', onclick: () => this.fork(card, end) }),
      button('Rewind to it', { disabled: Boolean(card.running), onclick: () => this.rewind(card, end) }),
      button('Close', { onclick: () => this.close() }),
    );
  }
}
