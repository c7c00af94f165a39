// SPDX-License-Identifier: Apache-2.0
// Answer: what a model says in a turn, put together from the events of a response, or from a response that is over.
import { characters } from '../text/story.js';

export const emptyAnswer = () => ({ reasoning: '', content: '', calls: [], tokens: [] });

const log2 = ({ logprob }) => logprob / Math.LN2;

const tokensOf = (logprobs = []) =>
  logprobs.map((token) => ({
    bytes: token.bytes,
    log2: log2(token),
    top: token.top_logprobs.map((other) => ({ bytes: other.bytes, log2: log2(other) })),
  }));

// A response that was stopped has no counts.
function takeEnd(answer, { status, usage, error }) {
  if (usage?.input_tokens > 0) answer.usage = usage;
  answer.finish = status;
  if (error) answer.error = error.message;
}

// One event of /v1/responses onto `answer`.
export function takeEvent(answer, event) {
  const { type, delta } = event;
  if (type === 'response.reasoning.delta') answer.reasoning += delta;
  if (type === 'response.output_text.delta') {
    answer.content += delta;
    answer.tokens.push(...tokensOf(event.logprobs));
  }
  if (type === 'response.output_item.added' && event.item.type === 'function_call') {
    answer.calls.push({ id: event.item.call_id, name: event.item.name, arguments: '' });
  }
  if (type === 'response.function_call_arguments.delta') answer.calls.at(-1).arguments += delta;
  if (['response.completed', 'response.incomplete', 'response.failed'].includes(type)) takeEnd(answer, event.response);
}

// The answer in a response as the server keeps it.
export function answerOf(response) {
  const answer = emptyAnswer();
  for (const item of response.output) {
    if (item.type === 'function_call') {
      answer.calls.push({ id: item.call_id, name: item.name, arguments: item.arguments });
    }
    for (const { type, text, logprobs } of item.content ?? []) {
      if (type === 'reasoning_text') answer.reasoning += text;
      if (type === 'output_text') {
        answer.content += text;
        answer.tokens.push(...tokensOf(logprobs));
      }
    }
  }
  takeEnd(answer, response);
  return answer;
}

// The content as characters, each with its token's probability, without the white space around it: [{text, log2, top}].
// Where the tokens are another text there are no probabilities.
export function coloured({ content, tokens }) {
  const shown = content.trim();
  const all = characters(tokens);
  const text = all.map((c) => c.text).join('');
  const begin = text.indexOf(shown);
  if (shown === '') return [];
  if (begin < 0) return [{ text: shown, log2: NaN, top: [] }];
  const out = [];
  let at = 0;
  for (const character of all) {
    const from = Math.max(at, begin);
    const to = Math.min(at + character.text.length, begin + shown.length);
    at += character.text.length;
    if (from < to) out.push({ text: text.slice(from, to), log2: character.log2, top: tokens[character.start].top });
  }
  return out;
}

// Turns as items of a request, for a server that has not their responses. next: what is asked after them. Calls without a
// result are left out: no template has a place for them.
export function itemsOf(turns, next) {
  return turns.flatMap(({ asked, answer }, i) => {
    const results = new Set((turns[i + 1]?.asked ?? next).map(({ call_id }) => call_id));
    const items = askedItems(asked);
    const { reasoning, content, calls } = answer;
    if (reasoning) {
      items.push({ type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: reasoning }] });
    }
    if (content) items.push({ role: 'assistant', content });
    for (const { id, name, arguments: text } of calls) {
      if (results.has(id)) items.push({ type: 'function_call', call_id: id, name, arguments: text });
    }
    return items;
  });
}

export function askedItems(asked) {
  return asked.map(({ role, content, call_id }) =>
    role === 'tool' ? { type: 'function_call_output', call_id, output: content } : { role, content },
  );
}

// Arguments as people read them; what is no JSON stays as it is.
export function argumentsText(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
