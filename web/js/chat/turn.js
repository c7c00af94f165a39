// SPDX-License-Identifier: Apache-2.0
// One turn of the tab Chat: what was asked, the answer, and what can be done with it.
import { h } from '../dom.js';
import { digits, percent, whole } from '../format.js';
import { surprise, tokenName } from '../text/story.js';
import { argumentsText, coloured } from './answer.js';

const FINISHES = { incomplete: 'cut by a limit', cancelled: 'stopped', failed: 'broke off' };

export class TurnCard {
  #said = h('div', { class: 'said' });
  #spans = []; // of #said, a character each
  #thought = h('p');
  #thinking = h('summary');
  #reasoning = h('details', { class: 'thought', hidden: true }, this.#thinking, this.#thought);
  #calls = h('div', { class: 'column' });
  #note = h('p', { class: 'hint' });
  #frame;

  // on: {again, edit, branch, remove}, each called with the turn; {results(turn, contents)}: of its calls.
  constructor(turn, on) {
    Object.assign(this, { turn, on });
    const button = (label, act, what) =>
      h('button', { type: 'button', 'aria-label': what, onclick: () => act(turn) }, label);
    const isUsers = turn.asked.every(({ role }) => role === 'user');
    this.element = h(
      'article',
      { class: 'card turn' },
      turn.asked.map((message) => this.#askedView(message)),
      this.#reasoning,
      this.#said,
      this.#calls,
      this.#note,
      h(
        'footer',
        { class: 'row' },
        button('Ask again', on.again, 'Ask again, as another branch'),
        isUsers && button('Edit', on.edit, 'Edit the message, as another branch'),
        button('Branch here', on.branch, 'Continue from this answer, as another branch'),
        button('Delete', on.remove, 'Delete this turn and what follows it'),
      ),
    );
    this.draw(false);
  }

  #askedView({ role, content, name }) {
    if (role === 'user') return h('div', { class: 'asked' }, content);
    return h('figure', { class: 'asked result' }, h('figcaption', {}, `Result of ${name}`), h('pre', {}, content));
  }

  // It has changed: drawn with the next frame. running: more comes.
  changed(running) {
    this.#frame ??= requestAnimationFrame(() => {
      const page = document.documentElement;
      const isAtEnd = scrollY + innerHeight > page.scrollHeight - 40;
      this.draw(running);
      if (isAtEnd) scrollTo(0, page.scrollHeight);
    });
  }

  // isLast: nothing follows it on the path that is shown, so that results can be given.
  draw(running, isLast = false) {
    cancelAnimationFrame(this.#frame);
    this.#frame = undefined;
    const { answer } = this.turn;
    this.#reasoning.hidden = answer.reasoning === '';
    const isThinking = running && answer.content === '' && answer.calls.length === 0;
    const thought = answer.usage?.output_tokens_details.reasoning_tokens;
    this.#thinking.textContent = isThinking ? 'Thinking ...' : thought ? `Reasoning, ${whole(thought)} tokens` : 'Reasoning';
    this.#thought.textContent = answer.reasoning;
    this.#drawContent();
    this.#said.hidden = answer.content === '';
    this.#drawCalls(!running && isLast);
    this.#note.textContent = running && !answer.usage ? '...' : summary(answer);
  }

  // What is there already stays: most characters do not change.
  #drawContent() {
    const now = coloured(this.turn.answer);
    while (this.#spans.length > now.length) this.#spans.pop().remove();
    now.forEach(({ text, log2, top }, i) => {
      let span = this.#spans[i];
      if (span?.textContent === text && span.log2 === log2) return;
      if (!span) {
        span = h('span');
        this.#spans.push(span);
        this.#said.append(span);
      }
      [span.textContent, span.log2] = [text, log2];
      span.title = Number.isNaN(log2) ? '' : chances(log2, top);
      span.style.setProperty('--surprise', surprise(log2).toFixed(3));
    });
  }

  #drawCalls(asks) {
    const { calls } = this.turn.answer;
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

function chances(log2, top) {
  const others = top.slice(0, 4).map((other) => `${tokenName(other)} ${percent(other.log2)}`);
  return `${percent(log2)}${others.length > 0 ? `, of: ${others.join('   ')}` : ''}`;
}

// "120 tokens read, 96 from the cache · 40 written · 2.1 bits a token · 35 tokens/s"
function summary({ usage, tokens, finish, seconds, error }) {
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
  if (error) parts.push(error);
  return parts.join(' · ');
}
