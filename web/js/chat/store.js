// SPDX-License-Identifier: Apache-2.0
// ConversationStore: the conversations that this browser keeps, in IndexedDB. Every turn is a record of its own and every
// change a transaction, so that several tabs do not overwrite each other.

const DATABASE = 'lintel';
const CHANNEL = 'lintel-conversations';

const result = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

// 128 random bits: crypto.randomUUID is missing where the page comes from another machine without TLS.
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

// A table of a transaction of IndexedDB.
class Table {
  constructor(table) {
    this.table = table;
  }
  get(id) {
    return result(this.table.get(id));
  }
  all(conversation) {
    return result(conversation === undefined ? this.table.getAll() : this.table.index('conversation').getAll(conversation));
  }
  put(record) {
    return result(this.table.put(record));
  }
  delete(id) {
    return result(this.table.delete(id));
  }
}

// The same in memory, where the browser keeps nothing.
class MemoryTable {
  #records = new Map();
  async get(id) {
    return structuredClone(this.#records.get(id));
  }
  async all(conversation) {
    const records = [...this.#records.values()].filter((r) => conversation === undefined || r.conversation === conversation);
    return structuredClone(records);
  }
  async put(record) {
    this.#records.set(record.id, structuredClone(record));
  }
  async delete(id) {
    this.#records.delete(id);
  }
}

async function openDatabase() {
  const opening = indexedDB.open(DATABASE, 1);
  opening.onupgradeneeded = () => {
    opening.result.createObjectStore('conversations', { keyPath: 'id' });
    opening.result.createObjectStore('turns', { keyPath: 'id' }).createIndex('conversation', 'conversation');
  };
  const database = await result(opening);
  return async (work) => {
    const transaction = database.transaction(['conversations', 'turns'], 'readwrite');
    const ended = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
    const [conversations, turns] = ['conversations', 'turns'].map((name) => new Table(transaction.objectStore(name)));
    const found = await work(conversations, turns);
    await ended;
    return found;
  };
}

function openMemory() {
  const [conversations, turns] = [new MemoryTable(), new MemoryTable()];
  return (work) => work(conversations, turns);
}

const byTime = (a, b) => a.created - b.created;

// A conversation is {id, title, model, system, current, created, used}, where `current` is the turn that was shown last,
// and the times are in ms since 1970. Its turns are those of ChatTree, without the tokens of their answers.
export class ConversationStore {
  #transact; // work(conversations, turns): its tables, all or nothing
  #channel;
  isLasting; // the browser keeps it

  static async open() {
    try {
      return new ConversationStore(await openDatabase(), true);
    } catch {
      return new ConversationStore(openMemory(), false); // a browser that keeps nothing
    }
  }

  constructor(transact = openMemory(), isLasting = false) {
    this.#transact = transact;
    this.isLasting = isLasting;
    if (isLasting && globalThis.BroadcastChannel) this.#channel = new BroadcastChannel(CHANNEL);
  }

  // listener(id): another tab has changed that conversation.
  onChange(listener) {
    this.#channel?.addEventListener('message', ({ data }) => listener(data));
  }

  // The one that was used last first.
  list() {
    return this.#transact(async (conversations) => (await conversations.all()).sort((a, b) => b.used - a.used));
  }

  // The oldest first.
  turns(conversation) {
    return this.#transact(async (_, turns) => (await turns.all(conversation)).sort(byTime));
  }

  async add(conversation) {
    await this.#transact((conversations) => conversations.put(conversation));
    this.#changed(conversation.id);
  }

  // Changes some members. One that was deleted stays so.
  update(id, members) {
    return this.#change(id, async (conversations, turns, conversation) => {
      await conversations.put({ ...conversation, ...members });
    });
  }

  // Saves a turn, and with it members of its conversation.
  saveTurn({ answer: { tokens, ...answer }, ...turn }, members = {}) {
    return this.#change(turn.conversation, async (conversations, turns, conversation) => {
      await turns.put({ ...turn, answer });
      await conversations.put({ ...conversation, ...members, used: Date.now() });
    });
  }

  removeTurns(conversation, ids) {
    return this.#change(conversation, async (_, turns) => {
      for (const id of ids) await turns.delete(id);
    });
  }

  // Gives its turns.
  async remove(id) {
    const removed = await this.#transact(async (conversations, turns) => {
      const all = await turns.all(id);
      for (const turn of all) await turns.delete(turn.id);
      await conversations.delete(id);
      return all;
    });
    this.#changed(id);
    return removed;
  }

  // The ids of the conversations that have each of the words in their title or texts.
  async search(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const texts = new Map();
    await this.#transact(async (conversations, turns) => {
      for (const { id, title } of await conversations.all()) texts.set(id, [title]);
      for (const { conversation, asked, answer } of await turns.all()) {
        texts.get(conversation)?.push(...asked.map(({ content }) => content), answer.content);
      }
    });
    const has = (parts) => {
      const all = parts.join('\n').toLowerCase();
      return words.every((word) => all.includes(word));
    };
    return new Set([...texts].filter(([, parts]) => has(parts)).map(([id]) => id));
  }

  async #change(id, work) {
    await this.#transact(async (conversations, turns) => {
      const conversation = await conversations.get(id);
      if (conversation) await work(conversations, turns, conversation);
    });
    this.#changed(id);
  }

  #changed(id) {
    this.#channel?.postMessage(id);
  }
}

// The list that earlier versions kept in a tab, in ids and questions alone: a conversation for each of its beginnings,
// [{conversation, turns}], whose answers are still to be got from the server.
export function earlierConversations(text) {
  let kept;
  try {
    kept = JSON.parse(text ?? 'null');
  } catch {
    return [];
  }
  const turns = Array.isArray(kept?.turns) ? kept.turns : [];
  const ids = new Map(turns.map((turn) => [turn.id, newId()]));
  const known = (parent) => turns.find((turn) => turn.id === parent);
  const rootOf = (turn) => (known(turn.parent) ? rootOf(known(turn.parent)) : turn);
  const now = Date.now();
  return turns
    .filter((turn) => rootOf(turn) === turn)
    .map((root, i) => {
      const id = newId();
      const own = turns.filter((turn) => rootOf(turn) === root);
      const current = own.some((turn) => turn.id === kept.current) ? ids.get(kept.current) : undefined;
      return {
        conversation: { id, title: titleOf(root.asked), current, created: now + i, used: now + i },
        turns: own.map(({ id: old, parent, asked, response }, n) => ({
          id: ids.get(old),
          parent: ids.get(parent),
          conversation: id,
          asked,
          response,
          created: now + n,
        })),
      };
    });
}

// The first line of what was asked first.
export function titleOf(asked) {
  const line = asked[0].content.trim().split('\n')[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}
