// SPDX-License-Identifier: Apache-2.0
// One turn of the tab Chat: what was asked, the answer, and what can be done with it.
import { h } from '../dom.js';
import { digits, whole } from '../format.js';
import { argumentsText } from './answer.js';
import { ColouredText } from './coloured.js';
import { copyButton } from './copy.js';
import { MarkdownView } from './markdown.js';

const FINISHES = { incomplete: 'cut by a limit', cancelled: 'stopped', failed: 'broke off' };
const REST = 3; // a drawing that took a time is followed by this many times as long without one

export class TurnCard {
  #said = h('div', { class: 'said' });
  #markdown = new MarkdownView(this.#said);
  #coloured = new ColouredText();
  #thought = new Text();
  #thinking = h('summary');
  #reasoning = h('details', { class: 'thought', hidden: true }, this.#thinking, h('p', {}, this.#thought));
  #calls = h('div', { class: 'column' });
  #drawnCalls; // the calls as drawn
  #note = h('p', { class: 'hint' });
  #error = h('p', { class: 'status', 'data-state': 'bad' });
  #siblings = h('div', { class: 'row siblings', hidden: true });
  #copy = copyButton('Copy the answer', () => this.turn.answer.content);
  #pending; // a drawing that is to come, or the time after one
  #isLate = false; // something came in that time
  isRunning = false;
  hasColours = false; // of probability
  progress = ''; // events before the first token

  // on: {again, edit, branch, remove}, each called with the turn; {results(turn, contents)}: of its calls; {go(turn)}: to
  // another answer; {drawn()}: the card has changed.
  constructor(turn, on) {
    Object.assign(this, { turn, on });
    const button = (label, act, what) =>
      h('button', { type: 'button', class: 'small', 'aria-label': what, onclick: () => act(turn) }, label);
    const isUsers = turn.asked.every(({ role }) => role === 'user');
    this.element = h(
      'article',
      { class: 'turn' },
      turn.asked.map((message) => this.#askedView(message)),
      this.#reasoning,
      this.#said,
      this.#coloured.element,
      this.#calls,
      this.#note,
      this.#error,
      h(
        'footer',
        { class: 'row' },
        this.#siblings,
        this.#copy,
        button('Regenerate', on.again, 'Regenerate: another answer, as another branch'),
        isUsers && button('Edit', on.edit, 'Edit the message, as another branch'),
        button('Branch here', on.branch, 'Branch here: continue from this answer, as another branch'),
        button('Delete', on.remove, 'Delete this turn and what follows it'),
      ),
    );
  }

  #askedView({ role, content, name }) {
    if (role === 'user') return h('div', { class: 'asked' }, content);
    return h('figure', { class: 'asked result' }, h('figcaption', {}, `Result of ${name}`), h('pre', {}, content));
  }

  // turns: all answers in this place.
  showSiblings(turns) {
    const at = turns.indexOf(this.turn);
    this.#siblings.hidden = turns.length < 2;
    const step = (label, what, to) =>
      h('button', { type: 'button', class: 'small', 'aria-label': what, disabled: !to, onclick: () => this.on.go(to) }, label);
    this.#siblings.replaceChildren(
      step('‹', 'The branch before', turns[at - 1]),
      h('span', {}, `${at + 1} of ${turns.length}`),
      step('›', 'The next branch', turns[at + 1]),
    );
  }

  // Draws a change, after which more come, with the next frame, or later where drawing takes long.
  changed() {
    if (this.#pending) {
      this.#isLate = true;
      return;
    }
    this.#pending = true;
    requestAnimationFrame(() => {
      const start = performance.now();
      this.#isLate = false;
      if (this.isRunning) {
        this.draw(true);
        this.on.drawn();
      }
      setTimeout(
        () => {
          this.#pending = false;
          if (this.#isLate) this.changed();
        },
        REST * (performance.now() - start),
      );
    });
  }

  // isLast: nothing follows it on the path that is shown, so that results can be given.
  draw(running, isLast = false) {
    this.isRunning = running;
    const { answer } = this.turn;
    const isColoured = this.hasColours && answer.tokens?.length > 0;
    const isCall = answer.calls.length > 0;
    this.#drawThought(running && answer.content === '' && !isCall);
    this.#said.hidden = answer.content === '' || isColoured;
    this.#coloured.element.hidden = !isColoured;
    if (isColoured) this.#coloured.update(answer);
    else this.#markdown.update(answer.content.trim(), !running);
    // A call that was cut is none that could be answered.
    this.#drawCalls(!running && isLast && answer.finish === 'completed');
    this.#copy.hidden = answer.content === '';
    const hasBegun = answer.content !== '' || answer.reasoning !== '' || isCall;
    this.#note.textContent = running ? (hasBegun ? '…' : this.progress || '…') : summary(answer);
    this.#error.textContent = (!running && answer.error) || '';
  }

  #drawThought(isThinking) {
    const { reasoning, usage } = this.turn.answer;
    const count = usage?.output_tokens_details.reasoning_tokens;
    this.#reasoning.hidden = reasoning === '';
    this.#thinking.textContent = isThinking ? 'Thinking …' : count ? `Reasoning, ${whole(count)} tokens` : 'Reasoning';
    if (reasoning.startsWith(this.#thought.data)) this.#thought.appendData(reasoning.slice(this.#thought.length));
    else this.#thought.data = reasoning;
  }

  #drawCalls(asks) {
    const { calls } = this.turn.answer;
    const state = JSON.stringify([calls, asks]);
    if (state === this.#drawnCalls) return; // results that are typed stay
    this.#drawnCalls = state;
    this.#calls.hidden = calls.length === 0;
    const fields = calls.map(({ name }) => asks && h('textarea', { rows: 2, spellcheck: false, 'aria-label': `Result of ${name}` }));
    this.#calls.replaceChildren(
      ...calls.map((call, i) =>
        h(
          'figure',
          { class: 'call' },
          h('figcaption', {}, call.name),
          h('pre', {}, h('code', {}, argumentsText(call.arguments))),
          asks && h('label', { class: 'field' }, h('span', {}, 'Result'), fields[i]),
        ),
      ),
    );
    if (!asks || calls.length === 0) return;
    const send = () => this.on.results(this.turn, fields.map((field) => field.value));
    this.#calls.append(
      h('div', { class: 'row' }, h('button', { type: 'button', class: 'primary', onclick: send }, 'Send results')),
    );
  }
}

// "120 tokens read, 96 from the cache · 40 written · 2.1 bits a token · 35 tokens/s"
function summary({ usage, tokens = [], finish, seconds }) {
  const parts = [];
  if (usage) {
    const cached = usage.input_tokens_details.cached_tokens;
    const read = usage.input_tokens - cached;
    parts.push(`${whole(read)} token${read === 1 ? '' : 's'} read, ${whole(cached)} from the cache`);
    parts.push(`${whole(usage.output_tokens)} written`);
    if (tokens.length > 0) {
      parts.push(`${digits(-tokens.reduce((sum, { log2 }) => sum + log2, 0) / tokens.length)} bits a token`);
    }
    if (seconds > 0.05) parts.push(`${whole(usage.output_tokens / seconds)} tokens/s`);
  }
  if (FINISHES[finish]) parts.push(FINISHES[finish]);
  return parts.join(' · ');
}
