// SPDX-License-Identifier: Apache-2.0
// Chat: conversations with a model, which branch wherever something else is asked. Every answer is a response of the
// server, after the one that it continues.
import { answerOf, emptyAnswer, takeEvent } from '../chat/answer.js';
import { ChatTree } from '../chat/tree.js';
import { TurnCard } from '../chat/turn.js';
import { byId, h, options, say } from '../dom.js';
import { chatModels } from '../wire/models.js';
import { whenReached } from '../wire/reach.js';
import { create, get, remove } from '../wire/responses.js';

const TOP = 5; // alternatives of a token

export function start() {
  const form = byId('chat-form');
  const settings = byId('chat-settings');
  const model = byId('chat-model');
  const text = byId('chat-text');
  const send = byId('chat-send');
  const stop = byId('chat-stop');
  const status = byId('chat-status');
  const board = byId('chat-turns');
  const tree = new ChatTree();
  const cards = new Map(); // by the ids of their turns
  const served = new Map(); // models, by name
  let running; // {id, abort}, while an answer comes

  const on = {
    again: ({ parent, asked }) => running || ask(parent, asked),
    edit({ parent, asked }) {
      show(parent);
      text.value = asked.map(({ content }) => content).join('\n');
      text.focus();
    },
    branch({ id }) {
      show(id);
      text.focus();
    },
    remove({ id }) {
      if (running && tree.path(running.id).some((turn) => turn.id === id)) running.abort.abort();
      for (const { response } of tree.remove(id)) if (response) remove(response).catch(() => {}); // it may be gone
      show(tree.current);
    },
    results({ id, answer }, contents) {
      if (running) return;
      const result = ({ id: call, name }, i) => ({ role: 'tool', call_id: call, name, content: contents[i] });
      ask(id, answer.calls.map(result));
    },
  };

  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const content = text.value.trim();
    if (running || send.disabled || content === '') return;
    if (ask(tree.current, [{ role: 'user', content }])) text.value = '';
  });
  text.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  stop.addEventListener('click', () => running?.abort.abort());
  byId('chat-new').addEventListener('click', () => (show(undefined), text.focus()));
  settings.addEventListener('submit', (event) => event.preventDefault());
  settings.elements.colours.addEventListener('change', drawColours);
  model.addEventListener('change', drawDefaults);
  drawColours();
  show(tree.current);

  whenReached(
    async () => {
      const models = await chatModels();
      for (const each of models) served.set(each.name, each);
      options(
        model,
        models.map(({ name }) => [name, name]),
        model.value,
      );
      if (models.length === 0) throw new Error('this server has no model with a chat template');
      drawDefaults();
      send.disabled = false;
    },
    (why) => (status.textContent = why),
  );

  function drawColours() {
    board.classList.toggle('colours', settings.elements.colours.checked);
  }

  function drawDefaults() {
    const { temperature = 1 } = served.get(model.value)?.samplingDefaults ?? {};
    settings.elements.temperature.placeholder = temperature;
  }

  // Throws where a setting is no value.
  function request(parent, asked) {
    const { system, temperature, tokens, seed, effort, budget, tools } = settings.elements;
    const out = {
      model: model.value,
      previous_response_id: tree.get(parent)?.response,
      input: asked.map(({ role, content, call_id }) =>
        role === 'tool' ? { type: 'function_call_output', call_id, output: content } : { role, content },
      ),
      include: ['message.output_text.logprobs'],
      top_logprobs: TOP,
    };
    const members = { temperature, max_output_tokens: tokens, seed, thinking_token_budget: budget };
    for (const [name, { value }] of Object.entries(members)) if (value.trim() !== '') out[name] = Number(value);
    if (system.value.trim()) out.instructions = system.value.trim();
    if (effort.value) out.reasoning = { effort: effort.value };
    if (tools.value.trim()) out.tools = readTools(tools.value);
    return out;
  }

  // A turn after `parent`. False: a setting is no value.
  function ask(parent, asked) {
    status.textContent = '';
    try {
      run(request(parent, asked), tree.add(parent, asked, emptyAnswer()));
      return true;
    } catch (error) {
      status.textContent = error.message;
      return false;
    }
  }

  async function run(body, turn) {
    const { answer } = turn;
    running = { id: turn.id, abort: new AbortController() };
    [stop.hidden, send.disabled] = [false, true];
    show(turn.id);
    const card = cards.get(turn.id);
    card.element.scrollIntoView({ block: 'nearest' });
    let first; // when the first piece came
    try {
      for await (const events of create(body, { signal: running.abort.signal })) {
        turn.response ??= events[0].response.id;
        for (const event of events) takeEvent(answer, event);
        if (answer.content || answer.reasoning || answer.calls.length > 0) first ??= performance.now();
        card.changed(true);
      }
      answer.seconds = (performance.now() - first) / 1000;
      say(answer.content || `${answer.calls.length} calls of tools`);
    } catch (error) {
      answer.finish = error.code === 'canceled' ? 'cancelled' : 'failed';
      if (error.code !== 'canceled') status.textContent = answer.error = error.message;
      if (!turn.response && tree.get(turn.id)) forget(turn);
    }
    running = undefined;
    [stop.hidden, send.disabled] = [true, false];
    show(tree.current);
  }

  // There is no answer: what was asked can be sent again.
  function forget({ id, asked }) {
    const [{ role, content }] = asked;
    tree.remove(id);
    if (role === 'user' && text.value === '') text.value = content;
  }

  // The answer of a turn that was there before the page was loaded.
  async function load(turn) {
    turn.answer = emptyAnswer();
    try {
      let response;
      while ((response = await get(turn.response)).status === 'in_progress') await new Promise((go) => setTimeout(go, 500));
      turn.answer = answerOf(response);
    } catch (error) {
      turn.answer.error = error.message;
    }
    cards.get(turn.id).draw(false, turn.id === tree.current);
  }

  // The conversation up to that turn.
  function show(id) {
    tree.current = id;
    tree.save();
    const path = tree.path(id);
    for (const turn of path) {
      if (!turn.answer) load(turn);
      if (!cards.has(turn.id)) cards.set(turn.id, new TurnCard(turn, on));
      cards.get(turn.id).draw(turn.id === running?.id, turn.id === id);
    }
    board.replaceChildren(...path.map((turn) => cards.get(turn.id).element));
    drawTree(path);
  }

  function drawTree(path) {
    const onPath = new Set(path.map((turn) => turn.id));
    byId('chat-tree').replaceChildren(
      ...tree.rows().map(({ turn, depth }) => {
        const words = turn.asked.map(({ role, name, content }) => (role === 'tool' ? `${name}: ${content}` : content));
        const button = h(
          'button',
          {
            type: 'button',
            class: onPath.has(turn.id) ? 'path' : '',
            'aria-current': turn.id === tree.current ? 'true' : undefined,
            onclick: () => show(turn.id),
          },
          h('span', {}, words.join(', ') || '(empty)'),
        );
        const row = h('li', {}, button);
        row.style.setProperty('--depth', depth);
        return row;
      }),
    );
  }

  return {};
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
