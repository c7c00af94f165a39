// SPDX-License-Identifier: Apache-2.0
// Chat: conversations with a model, which branch wherever something else is asked. Every answer is a response of the
// server, after the one that it continues; the texts stay in this browser, for a server that has lost the response.
import { answerOf, askedItems, emptyAnswer, itemsOf, takeEvent } from '../chat/answer.js';
import { ConversationList } from '../chat/list.js';
import { ConversationStore, earlierConversations, newId, titleOf } from '../chat/store.js';
import { ChatTree } from '../chat/tree.js';
import { TurnCard } from '../chat/turn.js';
import { watchWaiting } from '../chat/waiting.js';
import { errorText } from '../chat/words.js';
import { byId, h, options, say, tell, tellFailure } from '../dom.js';
import { whole } from '../format.js';
import { confirm } from '../question.js';
import { chatModels, isLoaded, stateName } from '../wire/models.js';
import { whenReached } from '../wire/reach.js';
import { create, get, remove } from '../wire/responses.js';

const TOP = 5; // alternatives of a token
const SAVED_EVERY = 2000; // ms, while an answer comes
const NEAR = 40; // pixels from its end: the view follows
const ROWS = 12; // of a message at most
const LAST = 'lintel-conversation'; // of the tab's session storage: the id of the conversation that is shown
const EARLIER = 'lintel-chat'; // of the tab's session storage: the list of earlier versions

export function start() {
  const form = byId('chat-form');
  const settings = byId('chat-settings');
  const model = byId('chat-model');
  const text = byId('chat-text');
  const send = byId('chat-send');
  const stop = byId('chat-stop');
  const status = byId('chat-status');
  const board = byId('chat-turns');
  const served = new Map(); // models, by name
  const opened = new Map(); // conversations that were shown, by id
  const loading = new Set(); // ids of turns whose answers are asked for
  let store; // a ConversationStore
  let list; // a ConversationList
  let shown = newConversation();
  let running; // {conversation, turn, abort}, while an answer comes
  let edited; // the turn whose message is edited
  let isFollowing = true; // the view stays at the end
  let saving = Promise.resolve(); // of changes, one after the other

  const on = {
    again: ({ parent, asked }) => running || ask(parent, asked),
    edit(turn) {
      edited = turn;
      showTurn(turn.parent);
      setText(turn.asked.map(({ content }) => content).join('\n'));
      tell(status, 'Edited: sent as another branch. Escape leaves it as it was.');
      text.focus();
    },
    branch({ id }) {
      showTurn(id);
      text.focus();
    },
    go: ({ id }) => showTurn(shown.tree.end(id)),
    async remove({ id }) {
      const { tree } = shown;
      const after = tree.rows(id).length;
      const what = after > 0 ? `Delete this turn and the ${after} after it?` : 'Delete this turn?';
      if (!(await confirm(what, 'Delete'))) return;
      if (running && tree.path(running.turn.id).some((turn) => turn.id === id)) running.abort.abort();
      const removed = tree.remove(id);
      if (tree.rows().length === 0) return removeConversation(shown.id);
      removeResponses(removed);
      keep(() => store.removeTurns(shown.id, removed.map((turn) => turn.id)));
      showTurn(tree.current);
    },
    results({ id, answer }, contents) {
      if (running) return;
      const result = ({ id: call, name }, i) => ({ role: 'tool', call_id: call, name, content: contents[i] });
      ask(id, answer.calls.map(result));
    },
    drawn: follow,
  };

  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const content = text.value.trim();
    if (running || send.disabled || content === '') return;
    if (ask(shown.tree.current, [{ role: 'user', content }])) setText('');
  });
  text.addEventListener('keydown', (event) => {
    // On a phone the key is the only one for a further line.
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing || matchMedia('(pointer: coarse)').matches) return;
    event.preventDefault();
    form.requestSubmit();
  });
  text.addEventListener('input', fitText);
  byId('chat').addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || event.defaultPrevented) return;
    if (edited) leaveEdit();
    else if (running) running.abort.abort();
  });
  stop.addEventListener('click', () => running?.abort.abort());
  byId('chat-new').addEventListener('click', () => {
    openConversation(newConversation());
    text.focus();
  });
  settings.addEventListener('submit', (event) => event.preventDefault());
  settings.elements.colours.addEventListener('change', drawTurns);
  settings.elements.system.addEventListener('change', () => {
    shown.system = settings.elements.system.value;
    keep(() => store.update(shown.id, { system: shown.system }));
  });
  model.addEventListener('change', () => {
    shown.model = model.value;
    drawModel();
  });
  board.addEventListener('scroll', () => {
    isFollowing = board.scrollTop + board.clientHeight > board.scrollHeight - NEAR;
  });
  new ResizeObserver(follow).observe(board);
  const closeLists = ['list', 'settings'].map((name) => startPanel(name));
  showTurn(undefined);

  whenReached(
    async () => {
      await findModels(true);
      if (served.size === 0) {
        throw new Error('This server has no model that chats. Start it with one: lintel-server --model DIR.');
      }
      send.disabled = running !== undefined;
    },
    (why) => tellFailure(status, why),
  );
  startStore();

  async function startStore() {
    store = await ConversationStore.open();
    list = new ConversationList(store, {
      open: (id) => openKept(id),
      rename(id, title) {
        if (opened.has(id)) opened.get(id).title = title;
        keep(() => store.update(id, { title }));
        saving.then(() => list.draw());
      },
      async remove(id) {
        const { title } = (await store.list()).find((each) => each.id === id);
        if (await confirm(`Delete “${title}”? The server deletes its answers, too.`, 'Delete')) removeConversation(id);
      },
    });
    if (!store.isLasting) byId('chat-kept').textContent = 'This browser keeps nothing: conversations end with this tab.';
    await takeOver();
    store.onChange(changedElsewhere);
    const last = sessionStorage.getItem(LAST);
    if (last && shown.tree.rows().length === 0) await openKept(last);
    list.draw(shown.id);
  }

  // Imports conversations that earlier versions kept in this tab.
  async function takeOver() {
    const earlier = earlierConversations(sessionStorage.getItem(EARLIER));
    for (const { conversation, turns } of earlier) {
      await store.add(conversation);
      for (const turn of turns) await store.saveTurn({ ...turn, answer: { ...emptyAnswer() } });
      if (conversation.current) sessionStorage.setItem(LAST, conversation.id);
    }
    sessionStorage.removeItem(EARLIER);
  }

  // Changes of the store, in their order.
  function keep(change) {
    saving = saving
      .then(() => store && change())
      .catch((error) => tellFailure(status, `This browser cannot keep the conversation: ${error.message}`));
  }

  function newConversation() {
    const now = Date.now();
    const system = settings.elements.system.value;
    return { id: newId(), title: '', system, created: now, used: now, tree: new ChatTree(), cards: new Map(), isKept: false };
  }

  async function openKept(id) {
    if (!opened.has(id)) await readConversation(id);
    if (opened.has(id)) openConversation(opened.get(id));
  }

  async function readConversation(id) {
    const record = (await store.list()).find((each) => each.id === id);
    const turns = record ? await store.turns(id) : [];
    if (turns.length === 0) return opened.delete(id);
    for (const turn of turns) turn.answer.tokens = [];
    const current = opened.get(id)?.tree.current ?? record.current;
    opened.set(id, { ...record, tree: new ChatTree(turns, current), cards: new Map(), isKept: true });
  }

  function openConversation(conversation) {
    if (shown.id !== conversation.id) tell(status, '');
    shown = conversation;
    edited = undefined;
    settings.elements.system.value = shown.system ?? '';
    if (served.has(shown.model)) model.value = shown.model;
    drawModel();
    if (shown.isKept) sessionStorage.setItem(LAST, shown.id);
    else sessionStorage.removeItem(LAST);
    list?.draw(shown.id);
    if (isNarrow()) for (const close of closeLists) close();
    isFollowing = true;
    drawTurns();
  }

  // Another tab has changed that conversation.
  async function changedElsewhere(id) {
    list.draw();
    if (!opened.has(id) || running?.conversation.id === id) return;
    await readConversation(id);
    if (shown.id !== id) return;
    if (opened.has(id)) {
      shown = opened.get(id);
      drawTurns();
    } else {
      openConversation(newConversation());
    }
  }

  async function removeConversation(id) {
    if (running?.conversation.id === id) running.abort.abort();
    keep(async () => removeResponses(await store.remove(id)));
    opened.delete(id);
    if (shown.id === id) openConversation(newConversation());
    await saving;
    list.draw();
  }

  // Removes responses, which may be gone.
  function removeResponses(turns) {
    for (const { response } of turns) if (response) remove(response).catch(() => {});
  }

  // Models

  async function findModels(again) {
    const found = await chatModels(again);
    const chosen = model.value || shown.model;
    served.clear();
    for (const each of found) served.set(each.name, each);
    const label = (each) => (isLoaded(each) ? each.name : `${each.name} (${stateName(each)})`);
    const first = (found.find(isLoaded) ?? found.find((each) => !each.loadFailed))?.name;
    options(model, found.map((each) => [each.name, label(each)]), served.has(chosen) ? chosen : first);
    drawModel();
  }

  function drawModel() {
    const chosen = served.get(model.value);
    const { temperature = 1 } = chosen?.samplingDefaults ?? {};
    settings.elements.temperature.placeholder = temperature;
    const hint = byId('chat-model-state');
    if (!chosen || isLoaded(chosen)) tell(hint, '');
    else if (chosen.loadFailed) tellFailure(hint, `It could not be loaded: ${chosen.reason}`);
    else tell(hint, stateName(chosen) === 'loading' ? 'It is being loaded.' : 'The first message loads it.');
    drawContext();
  }

  // Draws the part of the model's context that the conversation takes.
  function drawContext() {
    const { usage } = shown.tree.get(shown.tree.current)?.answer ?? {};
    const used = usage ? usage.input_tokens + usage.output_tokens : 0;
    const most = Number(served.get(model.value)?.maxLength ?? 0);
    const meter = byId('chat-context');
    meter.hidden = most === 0;
    [meter.max, meter.value] = [most || 1, used];
    const isBounded = most > 0;
    byId('chat-context-text').textContent =
      used === 0 && !isBounded ? '' : `${whole(used)}${isBounded ? ` of ${whole(most)}` : ''} tokens of context`;
  }

  // Questions and answers

  // Throws where a setting is no value.
  function request(parent, asked) {
    const { system, temperature, tokens, seed, effort, budget, tools, colours } = settings.elements;
    const out = { model: model.value, input: askedItems(asked) };
    if (colours.checked) Object.assign(out, { include: ['message.output_text.logprobs'], top_logprobs: TOP });
    const members = { temperature, max_output_tokens: tokens, seed, thinking_token_budget: budget };
    for (const [name, { value }] of Object.entries(members)) if (value.trim() !== '') out[name] = Number(value);
    if (system.value.trim()) out.instructions = system.value.trim();
    if (effort.value) out.reasoning = { effort: effort.value };
    if (tools.value.trim()) out.tools = readTools(tools.value);
    return out;
  }

  // A turn after `parent`. False: a setting is no value.
  function ask(parent, asked) {
    tell(status, '');
    try {
      const body = request(parent, asked);
      const turn = { id: newId(), conversation: shown.id, parent, asked, model: model.value, answer: emptyAnswer() };
      shown.title ||= titleOf(asked);
      shown.model = model.value;
      opened.set(shown.id, shown);
      edited = undefined;
      run(shown, body, shown.tree.add({ ...turn, created: Date.now() }));
      return true;
    } catch (error) {
      tellFailure(status, error.message);
      return false;
    }
  }

  // The events of an answer after that of its parent; where the server has lost that one, after the texts of this browser.
  async function* eventsAfter({ tree }, { parent, asked }, body, signal) {
    const before = tree.path(parent);
    const previous = before.at(-1)?.response;
    if (previous) {
      try {
        yield* create({ ...body, previous_response_id: previous }, { signal });
        return;
      } catch (error) {
        if (error.param !== 'previous_response_id') throw error;
      }
    }
    yield* create({ ...body, input: [...itemsOf(before, asked), ...body.input] }, { signal });
  }

  async function run(conversation, body, turn) {
    const { answer } = turn;
    const abort = new AbortController();
    running = { conversation, turn, abort };
    [stop.hidden, send.hidden] = [false, true];
    isFollowing = true;
    drawTurns();
    const card = conversation.cards.get(turn.id);
    const arrived = watchWaiting(served.get(turn.model), (what) => {
      card.progress = what;
      card.changed();
    });
    let first; // the time of the first piece
    let saved = performance.now();
    try {
      for await (const events of eventsAfter(conversation, turn, body, abort.signal)) {
        if (!turn.response) {
          turn.response = events[0].response.id;
          keepTurn(conversation, turn);
        }
        for (const event of events) takeEvent(answer, event);
        if (answer.content || answer.reasoning || answer.calls.length > 0) {
          first ??= performance.now();
          arrived();
        }
        card.changed();
        if (performance.now() - saved > SAVED_EVERY) {
          saved = performance.now();
          keepTurn(conversation, turn);
        }
      }
      answer.seconds = (performance.now() - first) / 1000;
      if (answer.error) answer.error = errorText({ message: answer.error }, turn.model);
      say(answer.content || `${answer.calls.length} calls of tools`);
    } catch (error) {
      const isStopped = error.code === 'canceled';
      answer.finish = isStopped ? 'cancelled' : 'failed';
      if (!isStopped) {
        answer.error = errorText(error, turn.model);
        say(answer.error);
      }
      if (!turn.response && conversation.tree.get(turn.id)) forget(conversation, turn);
    }
    arrived();
    running = undefined;
    [stop.hidden, send.hidden] = [true, false];
    if (turn.response && conversation.tree.get(turn.id)) keepTurn(conversation, turn);
    if (shown.id === conversation.id) drawTurns();
    findModels(!isLoaded(served.get(turn.model) ?? {})).catch(() => {});
  }

  function keepTurn(conversation, turn) {
    const { id, title, model: asked, system, created, tree } = conversation;
    const { current } = tree;
    if (!conversation.isKept) {
      conversation.isKept = true;
      keep(() => store.add({ id, title, model: asked, system, current, created, used: created }));
      if (shown.id === id) sessionStorage.setItem(LAST, id);
    }
    const copy = structuredClone(turn);
    keep(() => store.saveTurn(copy, { current, model: asked }));
    if (!turn.answer.content || turn.answer.finish) saving.then(() => list?.draw(shown.id));
  }

  // Forgets a turn without an answer: its question can be sent again.
  function forget(conversation, { id, asked, answer }) {
    conversation.tree.remove(id);
    if (answer.error) tellFailure(status, answer.error);
    const [{ role, content }] = asked;
    if (role === 'user' && text.value === '' && shown.id === conversation.id) setText(content);
  }

  // The answer of a turn whose end this browser has not seen.
  async function load(conversation, { id, response }) {
    if (loading.has(id)) return;
    loading.add(id);
    let answer;
    try {
      let found;
      while ((found = await get(response)).status === 'in_progress') await new Promise((go) => setTimeout(go, 500));
      answer = answerOf(found);
    } catch {
      // The response is gone, or the server is.
    }
    loading.delete(id);
    const turn = opened.get(conversation.id)?.tree.get(id); // another tab may have changed it
    if (!turn || turn.answer.finish) return;
    if (answer) {
      turn.answer = answer;
      keep(() => store.saveTurn(structuredClone(turn)));
    } else {
      turn.answer.finish = 'failed';
      if (turn.answer.content === '') turn.answer.error = 'The server no longer has this answer.';
    }
    if (shown.id === conversation.id) drawTurns();
  }

  // The view

  // The conversation up to that turn.
  function showTurn(id) {
    shown.tree.current = id;
    if (shown.isKept) keep(() => store.update(shown.id, { current: id }));
    isFollowing = true;
    drawTurns();
  }

  function drawTurns() {
    const { tree, cards } = shown;
    const path = tree.path(tree.current);
    for (const turn of path) {
      const isRunning = turn.id === running?.turn.id;
      if (!turn.answer.finish && !isRunning) load(shown, turn);
      if (!cards.has(turn.id)) cards.set(turn.id, new TurnCard(turn, on));
      const card = cards.get(turn.id);
      card.hasColours = settings.elements.colours.checked;
      card.showSiblings(tree.siblings(turn.id));
      card.draw(isRunning, turn.id === tree.current);
    }
    const elements = path.map((turn) => cards.get(turn.id).element);
    if (elements.length !== board.children.length || elements.some((element, i) => element !== board.children[i])) {
      board.replaceChildren(...elements);
    }
    drawTree(path);
    drawContext();
    follow();
  }

  function follow() {
    if (isFollowing) board.scrollTop = board.scrollHeight;
  }

  function drawTree(path) {
    const onPath = new Set(path.map((turn) => turn.id));
    const { tree } = shown;
    byId('chat-tree').replaceChildren(
      ...tree.rows().map(({ turn, depth }) => {
        const words = turn.asked.map(({ role, name, content }) => (role === 'tool' ? `${name}: ${content}` : content));
        // The same question again: its answers have numbers.
        const asked = JSON.stringify(turn.asked);
        const same = tree.siblings(turn.id).filter((other) => JSON.stringify(other.asked) === asked);
        const number = same.length > 1 ? ` (answer ${same.indexOf(turn) + 1})` : '';
        const button = h(
          'button',
          {
            type: 'button',
            class: onPath.has(turn.id) ? 'path' : '',
            'aria-current': turn.id === tree.current ? 'true' : undefined,
            onclick: () => showTurn(turn.id),
          },
          h('span', {}, (words.join(', ') || '(empty)') + number),
        );
        const row = h('li', {}, button);
        row.style.setProperty('--depth', depth);
        return row;
      }),
    );
  }

  function leaveEdit() {
    const { id } = edited;
    edited = undefined;
    setText('');
    tell(status, '');
    showTurn(shown.tree.end(id));
  }

  function setText(value) {
    text.value = value;
    fitText();
  }

  function fitText() {
    text.rows = Math.min(ROWS, Math.max(1, text.value.split('\n').length));
    while (text.rows < ROWS && text.scrollHeight > text.clientHeight + 2) ++text.rows;
  }

  // The list or the settings beside the conversation, which they cover where there is no room. Gives what closes them.
  function startPanel(name) {
    const button = byId(`chat-show-${name}`);
    const panel = byId(`chat-${name}-panel`);
    const set = (isOpen) => {
      panel.hidden = !isOpen;
      button.setAttribute('aria-expanded', isOpen);
    };
    set(!isNarrow());
    button.addEventListener('click', () => {
      const opens = panel.hidden;
      if (opens && isNarrow()) for (const close of closeLists) close();
      set(opens);
    });
    panel.querySelector('.close').addEventListener('click', () => {
      set(false);
      button.focus();
    });
    return () => set(false);
  }

  function isNarrow() {
    return matchMedia('(max-width: 60rem)').matches;
  }

  return {
    open() {
      follow();
      if (served.size > 0) findModels(true).catch(() => {});
    },
  };
}

// Functions, bare or as tools of either API.
function readTools(text) {
  let list;
  try {
    list = JSON.parse(text);
  } catch (error) {
    throw new Error(`Tools are not JSON: ${error.message}`);
  }
  if (!Array.isArray(list)) throw new Error('Tools are not a list of functions');
  return list.map((tool) => ({ ...(tool.function ?? tool), type: 'function' }));
}
