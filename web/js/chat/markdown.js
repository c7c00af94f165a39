// SPDX-License-Identifier: Apache-2.0
// Markdown of a model as elements. The model's text is hostile: raw HTML is text, and what marked makes of the rest goes
// through DOMPurify, which knows the few elements and attributes below alone. Both are classic scripts of lib/.
import { h } from '../dom.js';
import { copyButton } from './copy.js';

const ELEMENTS =
  'a blockquote br code del em h3 hr li ol p pre strong table tbody td th thead tr ul'.split(' ');
const ATTRIBUTES = ['align', 'class', 'href', 'start'];
const CLASSES = /^(language-[\w+#.-]{1,30}|depth-[1-6])$/;
const ADDRESSES = /^(?:https?:\/\/|mailto:)/i;

function isAddress(text) {
  try {
    return ADDRESSES.test(text) && new URL(text).href !== '';
  } catch {
    return false; // no browser could go there
  }
}

// Lines as marked reads them: what it makes of them is then a part of the text.
const plainLines = (text) =>
  text.replace(/\r\n?/g, '\n').replace(/^( *)(\t+)/gm, (_, spaces, tabs) => spaces + ' '.repeat(4 * tabs.length));

const escaped = (text) =>
  text.replace(/[&<>"']/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' })[c]);

function setUp({ marked }, { DOMPurify }) {
  marked.use({
    gfm: true,
    breaks: true, // lines of a poem stay lines
    headerIds: false,
    mangle: false,
    tokenizer: {
      html: () => undefined, // text, as any other
      tag: () => undefined,
    },
    renderer: {
      heading: (text, depth) => `<h3 class="depth-${depth}">${text}</h3>\n`,
      // A picture would tell its server who reads this.
      image: (address, title, text) => `<a href="${escaped(address ?? '')}">${text || escaped(address ?? '')}</a>`,
      code: (text, language = '') => `<pre><code class="language-${escaped(language)}">${escaped(text)}</code></pre>`,
      checkbox: (checked) => (checked ? '☑ ' : '☐ '),
    },
  });
  const purify = DOMPurify(window);
  purify.addHook('uponSanitizeAttribute', (element, data) => {
    if (data.attrName === 'class' && !CLASSES.test(data.attrValue)) data.keepAttr = false;
  });
  return purify;
}

let purify;
const isAvailable = () => globalThis.marked !== undefined && globalThis.DOMPurify?.isSupported === true;

function fragmentOf(html) {
  purify ??= setUp(globalThis, globalThis);
  const fragment = purify.sanitize(html, {
    ALLOWED_TAGS: ELEMENTS,
    ALLOWED_ATTR: ATTRIBUTES,
    ALLOWED_URI_REGEXP: ADDRESSES,
    ADD_URI_SAFE_ATTR: ['align', 'start'], // which are no addresses
    ALLOW_ARIA_ATTR: false,
    ALLOW_DATA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
  for (const link of fragment.querySelectorAll('a')) {
    if (!isAddress(link.getAttribute('href') ?? '')) {
      link.replaceWith(...link.childNodes);
      continue;
    }
    [link.target, link.rel, link.title] = ['_blank', 'noopener noreferrer', link.href];
  }
  for (const table of fragment.querySelectorAll('table')) {
    const frame = h('div', { class: 'scroll', tabIndex: 0, role: 'region', 'aria-label': 'Table' });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const pre of fragment.querySelectorAll('pre')) {
    const code = pre.querySelector('code');
    const language = /^language-(.*)$/.exec(code?.className)?.[1] ?? '';
    pre.replaceWith(codeFigure(language, (code ?? pre).textContent));
  }
  return fragment;
}

function codeFigure(language, text) {
  const code = h('code', {}, text);
  const label = language ? `Code, ${language}` : 'Code';
  return h(
    'figure',
    { class: 'code' },
    h('figcaption', { class: 'row' }, h('span', {}, language || 'code'), copyButton('Copy the code', () => code.textContent)),
    h('pre', { tabIndex: 0, role: 'region', 'aria-label': label }, code),
  );
}

// An element whose text grows. What is written of it is rendered once: while it grows, only its last block is rendered
// again.
export class MarkdownView {
  #element;
  #text = ''; // all that is drawn
  #isWhole = false;
  #settled = 0; // characters of #text in blocks that no further text changes
  #links = {}; // definitions of links, of whole lines
  #tail = []; // the nodes of what is not settled
  #code; // the text node of a block of code that grows, as all of #tail
  #language; // of that block

  constructor(element) {
    this.#element = element;
  }

  // isWhole: nothing follows.
  update(written, isWhole) {
    const text = isAvailable() ? plainLines(written) : written;
    if (text === this.#text && isWhole === this.#isWhole) return;
    this.#isWhole = isWhole;
    if (!isAvailable()) {
      this.#text = text;
      this.#element.replaceChildren(h('p', { class: 'plain' }, text));
      return;
    }
    purify ??= setUp(globalThis, globalThis);
    const isLonger = text.startsWith(this.#text.slice(0, this.#settled)) && text.length >= this.#text.length;
    if (!isLonger) this.#clear();
    this.#text = text;
    if (!isWhole) this.#settle();
    let tokens = this.#lex(text.slice(this.#settled));
    // Definitions change what is before them.
    if (isWhole && this.#settled > 0 && Object.keys(tokens.links).length > 0) {
      this.#clear();
      tokens = this.#lex(text);
    }
    this.#replaceTail(tokens);
  }

  #clear() {
    this.#element.replaceChildren();
    this.#tail = [];
    this.#code = undefined;
    this.#settled = 0;
    this.#links = {};
  }

  #lex(text) {
    const lexer = new globalThis.marked.Lexer();
    Object.assign(lexer.tokens.links, this.#links);
    return lexer.lex(text.endsWith('\n') ? text : `${text}\n`); // without it an open block of code is none
  }

  // Settles whole lines: all their blocks but the last stay as they are.
  #settle() {
    const end = this.#text.lastIndexOf('\n') + 1;
    if (end <= this.#settled) return;
    const tokens = this.#lex(this.#text.slice(this.#settled, end));
    const last = tokens.findLastIndex((token) => token.type !== 'space');
    if (last < 1) return;
    const done = tokens.slice(0, last);
    const length = done.reduce((sum, token) => sum + token.raw.length, 0);
    // Tokens that differ from the text are rendered with the text after them.
    if (this.#text.slice(this.#settled, this.#settled + length) !== done.map((token) => token.raw).join('')) return;
    this.#links = tokens.links;
    this.#replaceTail(done);
    this.#tail = [];
    this.#code = undefined;
    this.#settled += length;
  }

  #replaceTail(tokens) {
    const blocks = tokens.filter((token) => token.type !== 'space');
    const only = blocks.length === 1 && blocks[0].type === 'code' ? blocks[0] : undefined;
    const language = /^[\w+#.-]{1,30}/.exec(only?.lang ?? '')?.[0] ?? '';
    if (only && this.#code && language === this.#language && only.text.startsWith(this.#code.data)) {
      this.#code.appendData(only.text.slice(this.#code.data.length));
      return;
    }
    this.#language = language;
    let nodes;
    if (only) {
      nodes = [codeFigure(language, only.text)];
    } else {
      const made = fragmentOf(globalThis.marked.parser(blocks));
      nodes = [...made.childNodes].filter((node) => node.nodeType !== Node.TEXT_NODE || node.data.trim());
    }
    for (const node of this.#tail) node.remove();
    this.#element.append(...nodes);
    this.#tail = nodes;
    this.#code = only ? (nodes[0].querySelector('code').firstChild ?? undefined) : undefined;
  }
}
