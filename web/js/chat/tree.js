// SPDX-License-Identifier: Apache-2.0
// ChatTree: the turns of a conversation, each after the one that it continues.

// A turn is {id, parent, asked, response, model, answer, created}. `asked`: messages of a user, {role, content}, or
// results of calls, {role, call_id, name, content}. `response`: the id under which the server keeps it, once that is
// known. `parent`: an id of a turn, or nothing where the conversation begins. `created`: in ms since 1970.
export class ChatTree {
  #turns = new Map(); // by id, the oldest first
  current; // the id of the turn that is shown last; nothing: the beginning

  // turns: in the order of their creation.
  constructor(turns = [], current) {
    for (const turn of turns) this.#turns.set(turn.id, turn);
    this.current = this.#turns.has(current) ? current : turns.at(-1)?.id;
  }

  get(id) {
    return this.#turns.get(id);
  }

  add(turn) {
    this.#turns.set(turn.id, turn);
    this.current = turn.id;
    return turn;
  }

  // Removes a turn and all that follows it. Returns the turns.
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

  // Itself and the other answers in its place.
  siblings(id) {
    return this.children(this.get(id).parent);
  }

  // The end of the newest branch that goes through a turn.
  end(id) {
    const last = this.children(id).at(-1);
    return last ? this.end(last.id) : id;
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
}
