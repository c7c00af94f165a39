// SPDX-License-Identifier: Apache-2.0
// ChatTree: turns of conversations, each after the one that it continues.

const KEY = 'lintel-chat';

// A turn is {id, parent, asked, response, answer}. `asked`: messages of a user, {role, content}, or results of calls,
// {role, call_id, name, content}. `response`: the id under which the server keeps it, once that is known. `parent`: an
// id of a turn, or nothing where a conversation begins. All but the answers is kept in this tab's session storage.
export class ChatTree {
  #storage;
  #turns = new Map();
  #next = 1;
  current; // the id of the turn that is shown last; nothing: a new conversation

  constructor(storage = globalThis.sessionStorage) {
    this.#storage = storage;
    let kept;
    try {
      kept = JSON.parse(storage?.getItem(KEY) ?? 'null');
    } catch {
      return;
    }
    for (const turn of kept?.turns ?? []) this.#turns.set(turn.id, turn);
    this.#next = Math.max(0, ...this.#turns.keys()) + 1;
    this.current = this.#turns.has(kept?.current) ? kept.current : undefined;
  }

  get(id) {
    return this.#turns.get(id);
  }

  add(parent, asked, answer) {
    const turn = { id: this.#next++, parent, asked, answer };
    this.#turns.set(turn.id, turn);
    this.current = turn.id;
    return turn;
  }

  // It and all that follows it. Gives the turns.
  remove(id) {
    const turn = this.get(id);
    const removed = this.children(id).flatMap((child) => this.remove(child.id));
    this.#turns.delete(id);
    if (!this.#turns.has(this.current)) this.current = turn.parent;
    return [...removed, turn];
  }

  children(id) {
    return [...this.#turns.values()].filter((turn) => turn.parent === id);
  }

  // From the first turn of the conversation to that one.
  path(id) {
    const out = [];
    for (let turn = this.get(id); turn; turn = this.get(turn.parent)) out.unshift(turn);
    return out;
  }

  // All turns in the order of a drawn tree: [{turn, depth}]. A turn is deeper than its parent where that has several.
  rows(id, depth = 0) {
    const children = this.children(id);
    const deeper = id !== undefined && children.length > 1 ? depth + 1 : depth;
    return children.flatMap((turn) => [{ turn, depth: deeper }, ...this.rows(turn.id, deeper)]);
  }

  // The turns that the server keeps.
  save() {
    const turns = [...this.#turns.values()].filter((turn) => turn.response).map(({ answer, ...kept }) => kept);
    try {
      this.#storage?.setItem(KEY, JSON.stringify({ turns, current: this.current }));
    } catch {
      // It is full: a reload finds what was there before.
    }
  }
}
