// Text: a prompt, sampling, and what comes of it, coloured by probability. Every text is a session of the server, so
// that it can go on, be taken back, and fork at any character.
import { toBase64 } from '../wire/base64.js';
import { BranchCard } from '../text/branch.js';
import { field, h, options, say } from '../dom.js';
import { byteName, branchName, common } from '../text/story.js';
import { digits, percent } from '../format.js';
import { attentionName, textModels } from '../wire/models.js';
import { stream, unary } from '../wire/rpc.js';

const TOP = 8; // alternatives of a value

export function start(panel) {
  let models = [];
  let made = 0; // branches so far
  const branches = [];
  let pinned; // {card, character}: what the inspector keeps

  const model = h('select');
  const prompt = h('textarea', { rows: 3, spellcheck: false, value: 'Once upon a time' });
  const number = (min, max, step, value, placeholder) => h('input', { type: 'number', min, max, step, value, placeholder });
  const controls = {
    maxNewTokens: number(1, 100000, 1, 200),
    temperature: number(0, 5, 0.05, 0.8),
    topK: number(0, 256, 1, '', 'all'),
    topP: number(0.01, 1, 0.01, '', '1'),
    minP: number(0, 1, 0.01, '', '0'),
    repetitionPenalty: number(0.1, 5, 0.05, '', '1'),
    seed: h('input', { inputMode: 'numeric', pattern: '[0-9]*', placeholder: 'at random' }),
  };
  const write = h('button', { class: 'primary', type: 'submit' }, 'Write');
  const status = h('p', { class: 'status', role: 'status' });
  const board = h('div', { class: 'branches' });
  const inspector = h('div', { class: 'card inspector', 'aria-live': 'polite' });

  panel.append(
    h('form', { class: 'card', onsubmit: (e) => (e.preventDefault(), begin()) },
      h('h2', {}, 'A text'),
      field('Prompt', prompt),
      h('div', { class: 'fields' },
        h('div', { class: 'wide' }, field('Model', model)), field('Bytes to write', controls.maxNewTokens), field('Temperature', controls.temperature), field('Top k', controls.topK),
        field('Top p', controls.topP), field('Min p', controls.minP), field('Repetition', controls.repetitionPenalty), field('Seed', controls.seed)),
      h('div', { class: 'row' }, write,
        h('p', { class: 'scale' }, h('span', {}, 'expected'), h('span', { class: 'surprise-scale' }), h('span', {}, 'surprising (1 in 1,000)'))),
      status),
    h('div', { class: 'story' }, board, inspector));
  inspect();

  const setUp = (async () => {
    models = await textModels();
    options(model, models.map((m) => [m.name, `${m.name} (${attentionName(m)})`]), model.value);
    if (models.length === 0) throw new Error('this server has no model of text');
  })().catch((error) => {
    write.disabled = true;
    status.textContent = error.message;
  });

  function sampling() {
    const out = {};
    for (const name of ['temperature', 'topK', 'topP', 'minP', 'repetitionPenalty']) {
      if (controls[name].value !== '') out[name] = Number(controls[name].value);
    }
    if (controls.seed.value.trim()) out.seed = controls.seed.value.trim();
    return out;
  }

  // The largest window within what the model was trained on: beyond it text gets worse.
  function windowOf(chosen) {
    const trained = Number(chosen.trainedLength ?? 0);
    return trained - (trained % 2);
  }

  function add(sessionId, values, from) {
    const card = new BranchCard({
      name: branchName(made++), sessionId, values, from,
      onContinue: () => go(card, new Uint8Array(0)),
      onStop: () => card.running?.abort(),
      onDelete: () => remove(card),
      onLook: (character) => pinned ?? inspect(card, character),
      onPin: (character) => inspect(card, character, true),
    });
    branches.push(card);
    board.append(card.element);
    return card;
  }

  async function begin() {
    await setUp;
    const chosen = models.find((m) => m.name === model.value);
    if (!chosen) return;
    const text = new TextEncoder().encode(prompt.value);
    if (text.length === 0) {
      status.textContent = 'a text begins with a prompt of a character or more';
      return;
    }
    await guarded(async () => {
      const window = windowOf(chosen);
      const session = await unary('SessionService/Create', { model: chosen.name, durability: 'DURABILITY_NONE', ...(window >= 2 && { window }) });
      await go(add(session.id, []), text);
    });
  }

  async function guarded(what) {
    status.textContent = '';
    try {
      await what();
    } catch (error) {
      status.textContent = error.code === 'canceled' ? 'stopped' : error.message;
    }
  }

  function go(card, text) {
    return guarded(async () => {
      if (card.running) return;
      card.running = new AbortController();
      card.begin();
      const request = {
        sessionId: card.sessionId,
        ...(text.length > 0 && { prompt: { text: toBase64(text) }, echoPrompt: true }),
        maxNewTokens: Math.max(1, Number(controls.maxNewTokens.value) || 1),
        sampling: sampling(),
        log2Probs: true,
        topLog2Probs: TOP,
      };
      try {
        for await (const messages of stream('GenerationService/Generate', request, { signal: card.running.signal })) {
          for (const message of messages) card.take(message);
        }
        say(`Branch ${card.name}: ${card.text()}`);
      } finally {
        card.running = undefined;
        card.end();
        mark();
      }
    });
  }

  // A new branch with the values before `position`, which goes on with `text`, by itself.
  function fork(card, position, text = new Uint8Array(0)) {
    return guarded(async () => {
      unpin();
      const { sessions } = await unary('SessionService/Fork', { id: card.sessionId, position });
      const other = add(sessions[0].id, card.values.slice(0, position), { card, position });
      mark();
      await go(other, text);
    });
  }

  function rewind(card, position) {
    return guarded(async () => {
      unpin();
      await unary('SessionService/Rewind', { id: card.sessionId, position });
      card.rewind(position);
      mark();
    });
  }

  async function remove(card) {
    card.running?.abort();
    unpin();
    branches.splice(branches.indexOf(card), 1);
    card.element.remove();
    mark();
    // It may be in use for a moment longer.
    for (let tries = 0; tries < 20; ++tries) {
      try {
        await unary('SessionService/Delete', { id: card.sessionId });
        return;
      } catch (error) {
        if (error.code !== 'aborted') return;
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }
  }

  // What a branch shares with the one that it came from is faint.
  function mark() {
    for (const card of branches) {
      const from = card.from && branches.includes(card.from.card) ? card.from.card : undefined;
      card.shared = from ? common(card.values, from.values) : 0;
      card.draw();
    }
  }

  function unpin() {
    pinned = undefined;
    inspect();
  }

  function inspect(card, character, pin = false) {
    if (pin) pinned = { card, character };
    inspector.classList.toggle('pinned', pin);
    if (!character) {
      inspector.replaceChildren(h('h2', {}, 'A character'), h('p', { class: 'hint' },
        'Point at a character, or go through a branch with the arrow keys, to see what else the model thought of. Click it, or press enter, to fork or rewind there.'));
      return;
    }
    const value = card.values[character.start];
    const likely = Math.max(...(value.top ?? []).map((t) => t.log2), value.log2 ?? -Infinity);
    const from = value.source === 'VALUE_SOURCE_PROMPT' ? 'of the prompt' : 'drawn';
    inspector.replaceChildren(
      h('h2', {}, h('span', { class: 'glyph' }, [...character.text].map((c) => (c.trim() ? c : byteName(c.charCodeAt(0)))).join('')), ` in ${card.name}, ${from}`),
      h('p', {}, Number.isNaN(character.log2) ? 'The first value of a sequence has no probability.' : `${percent(character.log2)} · ${digits(-character.log2)} bits`),
      value.top && h('ul', { class: 'alternatives' }, value.top.map(({ token, log2 }) => {
        const bar = h('span', { class: 'bar' });
        bar.style.setProperty('--share', 2 ** (log2 - likely));
        return h('li', { class: token === value.token ? 'taken' : '' },
          h('span', { class: 'glyph' }, byteName(token)), bar, h('span', { class: 'number' }, percent(log2)),
          pin && h('button', {
            type: 'button', 'aria-label': `Fork with ${byteName(token)} instead`, disabled: token === value.token || character.start === 0,
            onclick: () => fork(card, character.start, Uint8Array.of(token)),
          }, 'Try'));
      })),
      pin && h('div', { class: 'row' },
        h('button', { type: 'button', class: 'primary', onclick: () => fork(card, character.end) }, 'Fork behind it'),
        h('button', { type: 'button', disabled: Boolean(card.running), onclick: () => rewind(card, character.end) }, 'Rewind to it'),
        h('button', { type: 'button', onclick: unpin }, 'Close')));
    if (pin) inspector.querySelector('button:not(:disabled)')?.focus();
  }

  // What nobody can come back to takes no memory of the server.
  addEventListener('pagehide', () => branches.forEach((card) => unary('SessionService/Delete', { id: card.sessionId }, { keepalive: true }).catch(() => {})));

  return {};
}
