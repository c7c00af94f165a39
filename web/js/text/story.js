// SPDX-License-Identifier: Apache-2.0
// Text of a model with a tokenizer: tokens with their bytes and probabilities, as characters and branches.
import { fromBase64 } from '../wire/base64.js';

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

// The bytes of the character that begins with `lead`; 1 if `lead` begins none.
function lengthOf(lead) {
  if (lead >= 0xf0 && lead < 0xf8) return 4;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  return 1;
}

// True if `bytes` end within a character.
function isCut(bytes) {
  const lead = bytes.findLastIndex((byte) => (byte & 0xc0) !== 0x80);
  if (lead < 0) return false;
  return bytes.length - lead < lengthOf(bytes[lead]);
}

function textOf(bytes) {
  try {
    return utf8.decode(Uint8Array.from(bytes));
  } catch {
    return undefined;
  }
}

// tokens: [{token, bytes, log2, ...}] -> [{start, end, text, log2}]: the fewest tokens that make whole characters,
// start and end are of the tokens, log2 is their sum, NaN where one has none. A token whose bytes make no characters
// is one U+FFFD.
export function characters(tokens) {
  const out = [];
  for (let start = 0; start < tokens.length;) {
    let end = start + 1;
    const bytes = [...tokens[start].bytes];
    while (end < tokens.length && isCut(bytes)) bytes.push(...tokens[end++].bytes);
    let text = textOf(bytes);
    if (text === undefined) {
      end = start + 1;
      text = textOf(tokens[start].bytes) ?? '\ufffd';
    }
    const log2 = tokens.slice(start, end).reduce((sum, t) => sum + (t.log2 ?? NaN), 0);
    out.push({ start, end, text, log2 });
    start = end;
  }
  return out;
}

function numbers(bytes) {
  return [...bytes].map((byte) => `0x${byte.toString(16).padStart(2, '0')}`).join('');
}

// A text for people, its white space visible.
export function visible(text) {
  const names = { '\t': '⇥', '\n': '↵', ' ': '␣' };
  const isSeen = (c) => c.trim() && c >= ' ' && c !== '\x7f';
  return [...text].map((c) => names[c] ?? (isSeen(c) ? c : numbers(new TextEncoder().encode(c)))).join('');
}

// A token for people: its text where it has one, else its bytes, else its id.
export function tokenName({ token, bytes }) {
  if (bytes.length === 0) return `#${token}`;
  return visible(textOf(bytes) ?? '') || numbers(bytes);
}

// One GenerateResponse, with token_bytes, onto `sequence`, all of its tokens: [{token, bytes, source, log2, top}].
export function take(sequence, { chunks = [] }) {
  for (const { firstPosition = 0, source, tokens = [], tokenBytes = [], log2Probs = [], top = [] } of chunks) {
    tokens.forEach((token, i) => {
      const ranked = (top[i]?.tokens ?? []).map((other, n) => ({
        token: other,
        bytes: fromBase64(top[i].tokenBytes[n]),
        log2: Number(top[i].log2Probs[n]),
      }));
      sequence[Number(firstPosition) + i] = {
        token,
        bytes: fromBase64(tokenBytes[i]),
        source,
        log2: log2Probs[i] === undefined ? undefined : Number(log2Probs[i]),
        top: top[i] && ranked,
      };
    });
  }
}

// The number of tokens that both begin with.
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

// The surprise of a token of this probability, 0 (certain) to 1 (a thousandth or less).
export function surprise(log2) {
  return Number.isNaN(log2) ? 0 : Math.min(1, -log2 / 10);
}

// A, B, ..., Z, AA, ...
export function branchName(index) {
  return (index >= 26 ? branchName(Math.floor(index / 26) - 1) : '') + String.fromCharCode(65 + (index % 26));
}
