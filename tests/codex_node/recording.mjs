// SPDX-License-Identifier: Apache-2.0
// Requests without their texts, which may be others' work: names, types and shapes stay, and each text becomes as many
// letters: "x*N" stands for N of them.

// Members whose texts are short words of the API or of a tool's form.
const WORDS = new Set(['type', 'role', 'name', 'status', 'model', 'tool_choice', 'include', 'syntax', 'effort', 'summary',
  'context', 'verbosity', 'execution', 'required', 'enum', 'accept', 'content-type', 'accept-encoding', 'originator',
  'x-codex-beta-features', 'search_content_types']);
// Ids: their letters and digits become others, and their form stays.
const IDS = /(^|_|-)id$|^prompt_cache_key$/;

const LONG = 24; // bytes from which on letters are counted
const letters = (bytes) => (bytes < LONG ? 'x'.repeat(bytes) : `x*${bytes}`);
const filler = (text) => letters(Buffer.byteLength(text));

// Removes only the texts in the arguments of a call, so that these stay JSON.
function withoutArguments(text) {
  try {
    return JSON.stringify(withoutTexts(JSON.parse(text)));
  } catch {
    return filler(text);
  }
}

export function withoutTexts(value, member = '') {
  if (typeof value === 'string') {
    if (WORDS.has(member)) return value;
    if (member === 'arguments') return withoutArguments(value);
    // An id has a place of its own for each length: calls and their results stay joined.
    return IDS.test(member) ? value.replace(/[0-9a-zA-Z]/g, '0') : filler(value);
  }
  if (Array.isArray(value)) return value.map((each) => withoutTexts(each, member));
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, withoutTexts(each, name)]));
}

// A request with its letters again.
export function withLetters(value) {
  if (typeof value === 'string') return value.replace(/^x\*(\d+)$/, (_, bytes) => 'x'.repeat(Number(bytes)));
  if (Array.isArray(value)) return value.map(withLetters);
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, withLetters(each)]));
}
