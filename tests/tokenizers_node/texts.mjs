// SPDX-License-Identifier: Apache-2.0
// Random texts of many kinds, the same for a seed.

// Numbers below 2^32 by splitmix32.
export class Random {
  constructor(seed) {
    this.state = seed >>> 0;
  }
  next() {
    this.state = (this.state + 0x9e3779b9) >>> 0;
    let z = this.state;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return (z ^ (z >>> 15)) >>> 0;
  }
  below(count) {
    return this.next() % count;
  }
  between(least, most) {
    return least + this.below(most - least + 1);
  }
  of(list) {
    return list[this.below(list.length)];
  }
}

// [first, last] of code points.
const kScripts = [
  [0x61, 0x7a], [0x41, 0x5a], [0xc0, 0x24f], [0x370, 0x3ff], [0x400, 0x52f], [0x530, 0x58f], [0x590, 0x5ff],
  [0x600, 0x6ff], [0x700, 0x74f], [0x900, 0x97f], [0x980, 0x9ff], [0xb80, 0xbff], [0xd00, 0xd7f], [0xe00, 0xe7f],
  [0xf00, 0xfff], [0x1000, 0x109f], [0x10a0, 0x10ff], [0x1100, 0x11ff], [0x1200, 0x137f], [0x13a0, 0x13ff],
  [0x1780, 0x17ff], [0x1800, 0x18af], [0x1b00, 0x1b7f], [0x1e00, 0x1fff], [0x2c00, 0x2c5f], [0x3040, 0x30ff],
  [0x3130, 0x318f], [0x4e00, 0x9fff], [0xa000, 0xa48f], [0xac00, 0xd7ff], [0xf900, 0xfaff], [0xfb00, 0xfdff],
  [0xfe70, 0xfeff], [0xff00, 0xffef], [0x10330, 0x1034f], [0x10400, 0x1044f], [0x11080, 0x110cf], [0x1d400, 0x1d7ff],
  [0x20000, 0x2a6df], [0x2f800, 0x2fa1f],
];
const kMarks = [
  [0x300, 0x36f], [0x483, 0x489], [0x591, 0x5c7], [0x64b, 0x65f], [0x93c, 0x94d], [0x9bc, 0x9d7], [0xbbe, 0xbd7],
  [0xcbf, 0xcd6], [0xd3e, 0xd57], [0xdca, 0xddf], [0xe31, 0xe4e], [0xf71, 0xf84], [0x102e, 0x1039], [0x1ab0, 0x1ace],
  [0x1b34, 0x1b44], [0x1dc0, 0x1dff], [0x20d0, 0x20f0], [0x302a, 0x302f], [0x3099, 0x309a], [0xfe20, 0xfe2f],
  [0x11099, 0x110ba], [0x1d165, 0x1d172], [0x1e8d0, 0x1e8d6],
];
// Code points that NFC changes, moves or joins in ways of their own.
const kUnstable = [
  0x340, 0x341, 0x343, 0x344, 0x374, 0x37e, 0x387, 0x958, 0x95f, 0x9dc, 0xa33, 0xb5c, 0xf43, 0xf73, 0x1f71, 0x1fbe,
  0x1fef, 0x2000, 0x2126, 0x212a, 0x212b, 0x2329, 0x2adc, 0xf900, 0xfa10, 0xfb1d, 0xfb2a, 0xfb4e, 0x1d15e, 0x1d1c0,
  0x2f800, 0x2fa1d, 0x1100, 0x1112, 0x1161, 0x1175, 0x11a7, 0x11a8, 0x11c2, 0xac00, 0xac01, 0xd788, 0x9c7, 0x9be,
  0xdd9, 0xdcf, 0xdca, 0x1025, 0x102e, 0x1b05, 0x1b35, 0x11099, 0x110ba, 0x1133e, 0x11347, 0x115b8, 0x115af, 0x3046,
  0x3099, 0x41, 0x61, 0x65, 0x301, 0x302, 0x303, 0x307, 0x308, 0x30a, 0x323, 0x327, 0x338, 0x345,
];
const kSpaces = [
  0x20, 0x20, 0x20, 0x20, 0x09, 0x0a, 0x0a, 0x0b, 0x0c, 0x0d, 0x85, 0xa0, 0x1680, 0x180e, 0x2000, 0x2003, 0x200a, 0x200b,
  0x2028, 0x2029, 0x202f, 0x205f, 0x2060, 0x3000, 0xfeff,
];
const kDigits = [
  [0x30, 0x39], [0x30, 0x39], [0x660, 0x669], [0x6f0, 0x6f9], [0x966, 0x96f], [0xe50, 0xe59], [0xff10, 0xff19],
  [0x1d7ce, 0x1d7ff], [0xb2, 0xb3], [0xbc, 0xbe], [0x2070, 0x2079], [0x2150, 0x218b], [0x2460, 0x249b], [0x3007, 0x3029],
];
const kEmoji = [
  '😀', '👍🏽', '👩‍👩‍👧‍👦', '🏳️‍🌈', '🇩🇪', '🇨', '1️⃣', '#️⃣', '❤️', '☃', '🫠', '👩🏿‍🚀', '🏴󠁧󠁢󠁥󠁮󠁧󠁿', '\u200d', '\ufe0f', '🏽', '©', '™',
];
const kWords = [
  'the', 'The', ' of', ' and', 'to', 'KING', ' Richard', "don't", "I'll", "WE'RE", 'naïve', 'Straße', 'Ελλάδα', 'привет',
  'שלום', 'مرحبا', 'नमस्ते', 'สวัสดี', '你好世界', 'こんにちは', 'カタカナ', '안녕하세요', 'ﬁnally', 'ſ', 'İstanbul', 'Việt',
  'e\u0301', 'A\u030a', '<0x41>', '<0x0A>', '▁', '▁the', 'Ġ', 'Ġthe', 'Ċ', '##ing', '<unk>', '</w>',
];
const kCode = [
  'if (x == 0) {\n', '    return 1;\n', '\t\tfor i in range(10):\n', '}\n\n', '// TODO: fix\n', 'a->b()', 'x+=1', '"\\n"',
  "'\\''", 'std::vector<int>', 'foo_bar', 'camelCase', '#include <x>', '</div>', '&nbsp;', '$HOME', '@user', '=>', '!==',
  '0x1F', '1e-9', '127.0.0.1', 'https://a.b/c?d=e&f=%20', '\r\n', '{{}}', '\\u00e9', '--flag=1', '/* */', '...', '___',
];
const kContractions = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'"];

const valid = (c) => (c >= 0xd800 && c < 0xe000 ? 0xfffd : c);
const character = (c) => String.fromCodePoint(valid(c));
const inside = (random, range) => character(random.between(range[0], range[1]));

function repeated(random, most, make) {
  let text = '';
  for (let i = random.between(1, most); i > 0; --i) text += make();
  return text;
}

function anyCase(random, text) {
  return [...text].map((c) => (random.below(2) ? c.toUpperCase() : c)).join('');
}

// An added token or an entry of the vocabulary: whole, cut, or with one character changed.
function spelt(random, names) {
  const name = random.of(random.of(names));
  const at = random.below(name.length);
  switch (random.below(6)) {
    case 0:
      return name.slice(0, at);
    case 1:
      return name.slice(at);
    case 2:
      return name.slice(0, at) + inside(random, random.of(kScripts)) + name.slice(at + 1);
    case 3:
      return name + name;
    default:
      return name;
  }
}

const kKinds = [
  (random) => repeated(random, 4, () => random.of(kWords) + (random.below(3) ? ' ' : '')),
  (random) => {
    const script = random.of(kScripts);
    return repeated(random, 10, () => inside(random, script));
  },
  (random) => repeated(random, 8, () => inside(random, random.of(kScripts))),
  (random) => inside(random, random.of(kScripts)) + repeated(random, 5, () => inside(random, random.of(kMarks))),
  (random) => repeated(random, 6, () => character(random.of(kUnstable))),
  (random) => repeated(random, 3, () => random.of(kCode)),
  (random) => repeated(random, 9, () => inside(random, random.of(kDigits))),
  (random) => {
    const space = random.of(kSpaces);
    return repeated(random, 9, () => character(random.below(3) ? space : random.of(kSpaces)));
  },
  (random) => (random.below(2) ? ' ' : '').repeat(random.below(40)),
  (random) => random.of(kWords) + anyCase(random, random.of(kContractions)) + random.of(['', ' ', 'x', 'ſ', '1']),
  (random) => repeated(random, 3, () => random.of(kEmoji)),
  (random) => repeated(random, 4, () => character(random.below(2) ? random.below(0x20) : random.between(0x7f, 0x9f))),
  (random) => repeated(random, 3, () => character(random.below(0x110000))),
  (random) => repeated(random, 3, () => character(random.of([0xfffd, 0xfffe, 0xffff, 0xfdd0, 0xe000, 0x1fffe, 0x10ffff]))),
  (random) => repeated(random, 6, () => inside(random, [0x21, 0x7e])),
  (random) => random.of(['a', 'ab', '=', '-', ' ', '\n', '你', 'é', '0', '!', "'", '\u0301']).repeat(random.between(1, 70)),
];

// `names`: lists of texts that the tokenizer knows.
export function randomText(random, names) {
  let text = '';
  for (let parts = random.between(1, 5); parts > 0; --parts) {
    text += random.below(6) === 0 ? spelt(random, names) : random.of(kKinds)(random);
    if (random.below(6) === 0) text += ' ';
  }
  return text.toWellFormed();
}
