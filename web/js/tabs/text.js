// SPDX-License-Identifier: Apache-2.0
// Text: a prompt, sampling, and what comes of it, coloured by probability. Every text is a session of the server, so
// that it can be continued, taken back, and forked at any character.
import { byId, h, options, say, tell, tellError, tellFailure } from '../dom.js';
import { requestFields } from '../fields.js';
import { BranchCard } from '../text/branch.js';
import { inputName, withFields } from '../text/fields.js';
import { Inspector } from '../text/inspector.js';
import { branchName, common } from '../text/story.js';
import { toBase64 } from '../wire/base64.js';
import { attentionName, isLoaded, models, stateName, textModels } from '../wire/models.js';
import { whenReached } from '../wire/reach.js';
import { stream, unary } from '../wire/rpc.js';
import { deleteSession } from '../wire/sessions.js';

const TOP = 8; // alternatives of a token
const FIRST = { 'sampling.temperature': 0.8 }; // first values of fields; others have the server's default

// The input of a field. Whether its value is allowed is the server's to say.
function inputOf(field) {
  const { type, low, high } = field;
  const name = inputName(field);
  if (type === 'flag') return h('input', { name, type: 'checkbox', checked: FIRST[name] });
  const shown = { name, placeholder: field.default, value: FIRST[name] ?? '' };
  if (type === 'text') return h('input', shown);
  const step = type === 'number' ? 0.01 : 1;
  return h('input', { type: 'number', min: field.isAboveLow ? low + step : low, max: high, step, ...shown });
}

const labelled = (field) =>
  h('label', { class: 'field', title: field.help }, h('span', {}, field.label), inputOf(field));

export function start() {
  const form = byId('text-form');
  const model = byId('text-model');
  const write = byId('text-write');
  const status = byId('text-status');
  const board = byId('branches');
  const branches = [];
  const served = new Map(); // models of text, by name
  const inspector = new Inspector(fork, rewind);
  byId('text-seed').closest('label').before(...requestFields.map(labelled));
  let made = 0; // branches so far

  form.addEventListener('submit', (event) => (event.preventDefault(), begin()));
  // Sessions that no page can reach any more are deleted.
  addEventListener('pagehide', () => {
    for (const { sessionId } of branches) deleteSession(sessionId, { keepalive: true }).catch(() => {});
  });

  whenReached(
    async () => {
      const found = await textModels();
      for (const each of found) served.set(each.name, each);
      options(
        model,
        found.map((m) => [m.name, `${m.name} (${isLoaded(m) ? attentionName(m) : stateName(m)})`]),
        model.value,
      );
      if (found.length === 0) throw new Error('this server has no model of text');
      write.disabled = false;
    },
    (text) => tellFailure(status, text),
  );

  async function guarded(what) {
    tell(status, '');
    try {
      await what();
    } catch (error) {
      tellError(status, error);
    }
  }

  // from: {card, position} of the branch it forked from.
  function add(sessionId, model, tokens, from) {
    const card = new BranchCard({
      name: branchName(made++),
      sessionId,
      model,
      tokens,
      from,
      onContinue: () => go(card),
      onDelete: () => remove(card),
      onLook: (character) => inspector.look(card, character),
      onChoose: (character) => inspector.choose(card, character),
    });
    branches.push(card);
    board.append(card.element);
    return card;
  }

  function begin() {
    return guarded(async () => {
      const text = new TextEncoder().encode(byId('text-prompt').value);
      if (text.length === 0) throw new Error('a text begins with a prompt of a character or more');
      const isKnown = isLoaded(served.get(model.value));
      if (!isKnown) tell(status, `${model.value} is being loaded`);
      const session = await unary('SessionService/Create', { model: model.value, durability: 'DURABILITY_NONE' });
      if (!isKnown) for (const each of await models(true)) served.set(each.name, each);
      tell(status, '');
      await go(add(session.id, served.get(session.model), []), { text: toBase64(text) });
    });
  }

  // Feeds the prompt, if there is one, and has the model write on, up to the end of a text.
  function go(card, prompt) {
    return guarded(async () => {
      if (card.running) return;
      const seed = byId('text-seed').value.trim();
      const asked = {
        sessionId: card.sessionId,
        ...(prompt && { prompt, echoPrompt: true }),
        stop: { tokenIds: card.model.eosTokens ?? [], includeInOutput: true },
        tokenBytes: true,
        maxNewTokens: Math.max(1, Number(byId('text-count').value)),
        sampling: seed ? { seed } : {},
        log2Probs: true,
        topLog2Probs: TOP,
      };
      const request = withFields(asked, requestFields, form.elements);
      const signal = card.begin();
      try {
        for await (const messages of stream('GenerationService/Generate', request, { signal })) {
          for (const message of messages) card.take(message);
        }
        say(`Branch ${card.name}: ${card.text()}`);
      } finally {
        card.end();
        mark();
      }
    });
  }

  // A new branch with the tokens before `position`, which continues with `token`, or by itself.
  function fork(card, position, token) {
    return guarded(async () => {
      inspector.close();
      const { sessions } = await unary('SessionService/Fork', { id: card.sessionId, position });
      const other = add(sessions[0].id, card.model, card.tokens.slice(0, position), { card, position });
      mark();
      await go(other, token === undefined ? undefined : { tokens: { ids: [token] } });
    });
  }

  function rewind(card, position) {
    return guarded(async () => {
      inspector.close();
      await unary('SessionService/Rewind', { id: card.sessionId, position });
      card.rewind(position);
      mark();
    });
  }

  async function remove(card) {
    inspector.close();
    branches.splice(branches.indexOf(card), 1);
    card.element.remove();
    mark();
    await card.stopped();
    await guarded(() => deleteSession(card.sessionId));
  }

  // Fades the beginning that a branch shares with its parent.
  function mark() {
    for (const card of branches) {
      card.shared = branches.includes(card.from?.card) ? common(card.tokens, card.from.card.tokens) : 0;
      card.draw();
    }
  }

  return {};
}
