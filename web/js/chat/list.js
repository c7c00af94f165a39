// SPDX-License-Identifier: Apache-2.0
// The list of conversations: searched, opened, renamed, deleted.
import { byId, h } from '../dom.js';

const PATIENCE = 150; // ms without a key before a search

export class ConversationList {
  #list = byId('chat-list');
  #search = byId('chat-search');
  #renaming; // the id of the one whose title is typed
  #drawing = 0;

  // on: {open(id), rename(id, title), remove(id)}.
  constructor(store, on) {
    Object.assign(this, { store, on });
    let timer;
    this.#search.addEventListener('input', () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.draw(), PATIENCE);
    });
  }

  // current: the id of the one that is shown; kept if it is not given.
  async draw(current = this.current) {
    this.current = current;
    if (this.#renaming && this.#list.querySelector('input')) return; // typed text stays
    const drawing = ++this.#drawing;
    const words = this.#search.value.trim();
    const [all, found] = await Promise.all([this.store.list(), words && this.store.search(words)]);
    if (drawing !== this.#drawing) return; // a later one is on its way
    const shown = found ? all.filter(({ id }) => found.has(id)) : all;
    this.#list.replaceChildren(...shown.map((conversation) => this.#row(conversation)));
    byId('chat-none').textContent =
      shown.length > 0 ? '' : found ? 'No conversation has these words.' : 'No conversations so far.';
    this.#list.querySelector('input')?.select();
  }

  #row({ id, title }) {
    if (id === this.#renaming) return h('li', {}, this.#field(id, title));
    const isCurrent = id === this.current;
    const small = (label, what, act) =>
      h('button', { type: 'button', class: 'small', 'aria-label': what, onclick: act }, label);
    return h(
      'li',
      {},
      h(
        'button',
        { type: 'button', class: 'title', 'aria-current': isCurrent ? 'true' : undefined, onclick: () => this.on.open(id) },
        h('span', {}, title),
      ),
      isCurrent &&
        h(
          'div',
          { class: 'row' },
          small('Rename', `Rename ${title}`, () => {
            this.#renaming = id;
            this.draw();
          }),
          small('Delete', `Delete ${title}`, () => this.on.remove(id)),
        ),
    );
  }

  #field(id, title) {
    const end = (name) => {
      if (this.#renaming !== id) return;
      this.#renaming = undefined;
      if (name.trim() && name !== title) this.on.rename(id, name.trim());
      else this.draw();
    };
    return h('input', {
      value: title,
      maxLength: 200,
      'aria-label': 'Name of the conversation',
      onkeydown: (event) => {
        if (event.key !== 'Enter' && event.key !== 'Escape') return;
        event.preventDefault();
        end(event.key === 'Enter' ? event.target.value : title);
      },
      onblur: (event) => end(event.target.value),
    });
  }
}
