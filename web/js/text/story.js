// SPDX-License-Identifier: Apache-2.0
// Text of a model of bytes: tokens with their probabilities, as characters and branches.

const utf8 = new TextDecoder('utf-8', { fatal: true });

// How many bytes the character has that begins with `lead`; 1 for what begins none.
function lengthOf(lead) {
  if (lead >= 0xf0 && lead < 0xf8) return 4;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  return 1;
}

// tokens: [{token, log2, ...}] -> [{start, end, text, log2}], in characters: start and end are of the tokens, log2 is
// their sum, NaN where one has none. Bytes that make no character are one each, as U+FFFD.
export function characters(tokens) {
  const out = [];
  for (let start = 0; start < tokens.length;) {
    let end = Math.min(tokens.length, start + lengthOf(tokens[start].token));
    let text;
    try {
      text = utf8.decode(Uint8Array.from(tokens.slice(start, end), (t) => t.token));
    } catch {
      end = start + 1;
      text = '\ufffd';
    }
    const log2 = tokens.slice(start, end).reduce((sum, t) => sum + (t.log2 ?? NaN), 0);
    out.push({ start, end, text, log2 });
    start = end;
  }
  return out;
}

// A byte for people: its character where it is one, else its number.
export function byteName(token) {
  const names = { 9: '⇥', 10: '↵', 32: '␣' };
  if (names[token]) return names[token];
  return token > 32 && token < 127 ? String.fromCharCode(token) : `0x${token.toString(16).padStart(2, '0')}`;
}

// One GenerateResponse onto `sequence`, all of its tokens: [{token, source, log2, top}].
export function take(sequence, { chunks = [] }) {
  for (const { firstPosition = 0, source, tokens = [], log2Probs = [], top = [] } of chunks) {
    tokens.forEach((token, i) => {
      const ranked = top[i] && (top[i].tokens ?? []).map((t, n) => ({ token: t, log2: Number(top[i].log2Probs[n]) }));
      sequence[Number(firstPosition) + i] = {
        token,
        source,
        log2: log2Probs[i] === undefined ? undefined : Number(log2Probs[i]),
        top: ranked,
      };
    });
  }
}

// How many tokens both begin with.
export function common(a, b) {
  let n = 0;
  while (n < a.length && n < b.length && a[n].token === b[n].token) ++n;
  return n;
}

// Bits a token of those that were sampled; NaN where none was.
export function bitsPerToken(tokens) {
  const sampled = tokens.filter((t) => t.source === 'VALUE_SOURCE_SAMPLED' && t.log2 !== undefined);
  return sampled.length > 0 ? -sampled.reduce((sum, t) => sum + t.log2, 0) / sampled.length : NaN;
}

// How surprising a token of this probability is, 0 (certain) to 1 (a thousandth or less).
export function surprise(log2) {
  return Number.isNaN(log2) ? 0 : Math.min(1, -log2 / 10);
}

// A, B, ..., Z, AA, ...
export function branchName(index) {
  return (index >= 26 ? branchName(Math.floor(index / 26) - 1) : '') + String.fromCharCode(65 + (index % 26));
}
