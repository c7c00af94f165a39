// SPDX-License-Identifier: Apache-2.0
// The tab Chat, with a model whose template shows tools and thinks where it is asked to.
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, it } from 'node:test';
import { answerNext } from './answers.mjs';
import { watchedPages } from './watched_pages.mjs';

const directory = mkdtempSync(join(tmpdir(), 'lintel-page-'));
const template = join(directory, 'chat.jinja');
writeFileSync(
  template,
  `{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content or '' }}{% for call in m.tool_calls or [] %}
<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>{% endfor %}

{% endfor %}{% if add_generation_prompt %}assistant:{% if enable_thinking %}<think>
{% endif %}{% endif %}`,
);

describe('Chat', () => {
  after(() => rmSync(directory, { recursive: true }));
  const model = 'text-rwkv7-small';
  const weights = join(directory, model);
  cpSync(new URL(`../../weights/${model}`, import.meta.url).pathname, weights, { recursive: true });
  rmSync(join(weights, 'generation_config.json')); // its stop_strings end answers early
  const at = watchedPages('--model', weights, '--chat-template', `${model}=${template}`);
  const turn = (n) => `.turn:nth-child(${n})`;
  const setting = (name, value) => at.set(`#chat-settings [name=${name}]`, value);
  const said = (n) => at.text(`${turn(n)} .said`);
  const press = (n, label) =>
    at.page.evaluate(
      `[...document.querySelectorAll('${turn(n)} button')].find((b) => b.textContent === '${label}').click()`,
    );
  const answered = async (n) => {
    await at.says(`${turn(n)} > .hint`, /tokens? read/);
    await at.page.until('document.querySelector("#chat-stop").hidden', 'the answer to end');
  };
  const tree = () =>
    at.page.evaluate(`[...document.querySelectorAll('#chat-tree li')].map((row) =>
      row.style.getPropertyValue('--depth') + ' ' + row.textContent + (row.querySelector('[aria-current]') ? ' *' : ''))`);

  async function open(options) {
    await at.open(options, '#/chat');
    await at.page.until('!document.querySelector("#chat-send").disabled', 'the models');
    await setting('tokens', '24');
    await setting('seed', '3');
  }
  async function ask(text, n) {
    await at.page.evaluate('document.querySelector("#chat-text").focus()');
    await at.page.type(text);
    await at.page.key('Enter');
    await answered(n);
  }
  const colours = () => at.page.evaluate('document.querySelector("#chat-settings [name=colours]").click()');
  // The bodies of all requests from now on.
  const watchRequests = () =>
    at.page.evaluate(`(() => {
      const send = globalThis.fetch;
      globalThis.bodies = [];
      globalThis.fetch = (url, options) => {
        if (url === '/v1/responses') bodies.push(JSON.parse(options.body));
        return send(url, options);
      };
    })()`);

  it('lists models with a template, and answers', async () => {
    await open();
    assert.deepEqual(await at.page.evaluate('[...document.querySelector("#chat-model").options].map((o) => o.value)'), [model]);
    await ask('What news?', 1);
    assert.ok((await said(1)).length > 10);
    assert.equal(await at.text(`${turn(1)} .asked`), 'What news?');
    assert.match(await at.text(`${turn(1)} > .hint`), /^\d+ tokens? read, 0 from the cache · 24 written · (\S+ tokens\/s · )?cut by a limit$/);
    assert.match(await at.text('#chat-context-text'), /^\d+ tokens of context$/);
  });

  it('has no limit of an answer but that of the server', async () => {
    await at.open({}, '#/chat');
    await at.ready('chat');
    await watchRequests();
    await at.page.evaluate('document.querySelector("#chat-text").focus()');
    await at.page.type('What news?');
    await at.page.key('Enter');
    await at.page.until('document.querySelector(".said")?.textContent.length > 20', 'a beginning');
    await at.page.key('Escape');
    await at.says(`${turn(1)} > .hint`, /stopped/);
    assert.deepEqual(await at.page.evaluate('Object.keys(bodies[0])'), ['model', 'input', 'stream']);
  });

  it('is coloured by probability where that is asked for, with the likeliest tokens by keyboard', async () => {
    await open();
    await colours();
    await ask('What news?', 1);
    assert.match(await at.text(`${turn(1)} > .hint`), /· 24 written · \S+ bits a token · /);
    const surprises = await at.page.evaluate(
      `[...document.querySelectorAll('.coloured span')].map((s) => Number(s.style.getPropertyValue('--surprise')))`,
    );
    assert.ok(Math.max(...surprises) > 0.3);
    await at.page.evaluate('document.querySelector(".coloured").focus()');
    await at.page.key('Home');
    await at.says('.coloured + .hint', /^\S+ \S+ %, of: \S+ \S+ %, /);
    const first = await at.text('.coloured + .hint');
    await at.page.key('End');
    assert.notEqual(await at.text('.coloured + .hint'), first);
    await colours();
    assert.equal(await at.page.evaluate('document.querySelector(".said").hidden'), false);
  });

  it('reads its last turn alone from the second on', async () => {
    await open();
    await ask('What news? '.repeat(20), 1);
    await ask('And then?', 2);
    const [, read, cached] = /^([\d,]+) tokens? read, ([\d,]+) from/.exec(await at.text(`${turn(2)} > .hint`));
    assert.ok(Number(cached) > Number(read), `${read} were read, ${cached} cached`);
  });

  it('branches where something else is asked, and is there again after a reload', async () => {
    await open();
    await ask('One', 1);
    await ask('Two', 2);
    await press(1, 'Branch here');
    assert.equal(await at.count('.turn'), 1);
    await ask('Three', 2);
    await press(2, 'Edit');
    assert.equal(await at.page.evaluate('document.querySelector("#chat-text").value'), 'Three');
    await ask(' and four', 2);
    await setting('seed', '4');
    await press(1, 'Regenerate');
    await answered(1);
    const drawn = ['0 One (answer 1)', '1 Two', '1 Three', '1 Three and four', '0 One (answer 2) *'];
    assert.deepEqual(await tree(), drawn);
    assert.equal(await at.count('.turn'), 1);

    const words = await said(1);
    await at.page.until(
      `import('/js/chat/store.js').then(async ({ ConversationStore }) => {
        const turns = await (await ConversationStore.open()).turns();
        return turns.length === 5 && turns.every(({ answer }) => answer.finish);
      })`,
      'the conversation to be kept',
    );
    await at.page.evaluate('globalThis.isOld = true');
    await at.page.send('Page.reload');
    await at.page.until('!globalThis.isOld && document.querySelectorAll(".turn").length === 1', 'the conversation');
    assert.deepEqual(await tree(), drawn);
    await at.page.until(`document.querySelector('.said').textContent === ${JSON.stringify(words)}`, 'the answer');
    assert.match(await at.text(`${turn(1)} > .hint`), /tokens? read/);
    await at.page.evaluate('document.querySelectorAll("#chat-tree button")[2].click()');
    assert.equal(await at.count('.turn'), 2);
    assert.equal(await at.text(`${turn(2)} .asked`), 'Three');
    const kept = () =>
      at.page.evaluate(`(async () => {
        const { ConversationStore } = await import('/js/chat/store.js');
        const store = await ConversationStore.open();
        const turns = await store.turns();
        globalThis.second = turns[1]?.response;
        return (await Promise.all(turns.map(async ({ response }) => (await fetch('/v1/responses/' + response)).status))).join(' ');
      })()`);
    assert.equal(await kept(), '200 200 200 200 200');
    await at.page.evaluate('globalThis.gone = second');
    await press(1, 'Delete');
    assert.equal(await at.text('#question-text'), 'Delete this turn and the 3 after it?');
    await at.page.click('#question-yes');
    await at.page.until('document.querySelectorAll("#chat-tree li").length === 1', 'the branch to go');
    assert.deepEqual(await tree(), ['0 One']);
    while ((await kept()) !== '200') await new Promise((resolve) => setTimeout(resolve, 50));
    await at.page.until(`fetch('/v1/responses/' + gone).then(({ status }) => status === 404)`, 'the response to go');
    at.page.complaints.length = 0; // Chromium's of the status 404
  });

  it('folds reasoning, which ends where it is asked to', async () => {
    await open();
    await setting('effort', 'high');
    await setting('budget', '6');
    await ask('Think.', 1);
    assert.equal(await at.page.evaluate(`document.querySelector('${turn(1)} details').open`), false);
    assert.match(await at.text(`${turn(1)} summary`), /^Reasoning, [67] tokens$/);
    assert.ok((await at.text(`${turn(1)} details p`)).length > 0);
    assert.ok((await said(1)).length > 0);
  });

  it('shows calls as code, asks for their results, and continues with them', async () => {
    await open();
    await setting('tools', '[{"name": "get_time", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}]');
    const call = { call_id: 'abc123DEF', name: 'get_time', arguments: '{"place":"Verona"}' };
    const answer = { content: 'Let me look.', calls: [call] };
    await answerNext(at.page, answer);
    await ask('What time is it in Verona?', 1);
    assert.equal(await at.page.evaluate('asked.tools[0].name'), 'get_time');
    assert.equal(await at.text('.call code'), '{\n  "place": "Verona"\n}');
    await at.set('.call textarea', 'noon');
    await at.shot('chat-call');
    await answerNext(at.page, answer);
    await press(1, 'Send results');
    await answered(2);
    assert.deepEqual(await at.page.evaluate('[asked.previous_response_id, asked.input]'), [
      'resp_made',
      [{ type: 'function_call_output', call_id: 'abc123DEF', output: 'noon' }],
    ]);
    assert.equal(await at.text(`${turn(2)} .result`), 'Result of get_timenoon');
    assert.equal(await at.count(`${turn(1)} textarea`), 0);
    assert.deepEqual(await tree(), ['0 What time is it in Verona?', '0 get_time: noon *']);
  });

  it('says what is wrong, and keeps what was asked', async () => {
    await open();
    await setting('tools', '[{');
    await at.page.evaluate('document.querySelector("#chat-text").focus()');
    await at.page.type('Hello');
    await at.page.key('Enter');
    await at.says('#chat-status', /Tools are not JSON/);
    assert.equal(await at.count('.turn'), 0);
    await setting('tools', '');
    await setting('temperature', '-1');
    await at.page.key('Enter');
    await at.says('#chat-status', /^Temperature/);
    await at.page.until('document.querySelector("#chat-text").value === "Hello"', 'the message');
    assert.equal(await at.count('.turn'), 0);
    at.page.complaints.length = 0; // Chromium's of the status 400
  });

  it('is stopped, and keeps what there is', async () => {
    await open();
    await setting('tokens', '500000');
    await at.page.evaluate('document.querySelector("#chat-text").focus()');
    await at.page.type('Hello');
    await at.page.key('Enter');
    await at.page.until('document.querySelector(".said")?.textContent.length > 20', 'a beginning');
    await at.page.evaluate('document.querySelector("#chat-stop").click()');
    await at.says(`${turn(1)} > .hint`, /stopped/);
    assert.ok((await said(1)).length > 20);
  });

  it('asks for no result of a call that was cut', async () => {
    await open();
    const call = { call_id: 'a', name: 'get_time', arguments: '{"place":"Ver' };
    await answerNext(at.page, { calls: [call], finish: 'incomplete' });
    await ask('What time is it?', 1);
    assert.equal(await at.count('.call'), 1);
    assert.equal(await at.count('.call textarea'), 0);
  });

  it('says in words of the page what the server refuses', async () => {
    await open();
    for (const [name, value, what] of [
      ['tokens', '0', /^Answer limit/],
      ['budget', '-2', /^Thinking limit/],
      ['temperature', '-1', /^Temperature/],
    ]) {
      await setting(name, value);
      await at.set('#chat-text', 'Hello');
      await at.page.evaluate('document.querySelector("#chat-form").requestSubmit()');
      await at.says('#chat-status', what);
      assert.equal(await at.page.evaluate('document.querySelector("#chat-status").dataset.state'), 'bad');
      await setting(name, '');
    }
    at.page.complaints.length = 0; // Chromium's of the status 400
  });

  for (const [width, height] of [
    [1280, 800],
    [1366, 768],
    [360, 740],
  ]) {
    it(`follows the answer as it comes, unless its reader has scrolled up: ${width}x${height}`, async () => {
      await open({ width, height, mobile: width < 500 });
      await setting('tokens', '100000');
      const end = () =>
        at.page.evaluate(`(() => { const board = document.querySelector('#chat-turns');
          return [board.scrollHeight - board.scrollTop - board.clientHeight, board.scrollHeight / board.clientHeight, scrollY]; })()`);
      await at.set('#chat-text', 'Tell me all.');
      await at.page.evaluate('document.querySelector("#chat-form").requestSubmit()');
      await at.page.until(
        `(() => { const board = document.querySelector('#chat-turns'); return board.scrollHeight > 3 * board.clientHeight; })()`,
        'a long answer',
      );
      const [left, , y] = await end();
      assert.ok(left < 60, `${left} pixels are out of view`);
      assert.equal(y, 0);
      const isShown = `(() => { const { top, bottom } = document.querySelector('#chat-stop').getBoundingClientRect();
        return top >= 0 && bottom <= innerHeight; })()`;
      assert.ok(await at.page.evaluate(isShown), 'what stops it is in view');
      await at.page.evaluate(`document.querySelector('#chat-turns').scrollTop = 0`);
      const before = await at.text('.said');
      await at.page.until(`document.querySelector('.said').textContent.length > ${before.length} + 500`, 'more of it');
      assert.equal(await at.page.evaluate(`document.querySelector('#chat-turns').scrollTop`), 0);
      await at.page.evaluate('document.querySelector("#chat-stop").click()');
      await at.says(`${turn(1)} > .hint`, /stopped/);
    });
  }

  it('takes messages of several lines, and leaves an edit by escape', async () => {
    await open();
    await at.page.evaluate('document.querySelector("#chat-text").focus()');
    await at.page.type('One');
    await at.page.key('Enter', 8);
    await at.page.type('Two\nThree');
    assert.equal(await at.page.evaluate('document.querySelector("#chat-text").rows'), 3);
    await at.page.key('Enter');
    await answered(1);
    assert.equal(await at.text('.asked'), 'One\nTwo\nThree');
    assert.equal(await at.page.evaluate('document.querySelector("#chat-text").rows'), 1);
    await press(1, 'Edit');
    assert.equal(await at.count('.turn'), 0);
    assert.equal(await at.page.evaluate('document.querySelector("#chat-text").value'), 'One\nTwo\nThree');
    await at.page.key('Escape');
    assert.equal(await at.count('.turn'), 1);
    assert.equal(await at.page.evaluate('document.querySelector("#chat-text").value'), '');
  });

  it('copies answers as they were written, and code', async () => {
    await open();
    await at.page.evaluate(`Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => { globalThis.copied = text; } } })`);
    const content = '**Some** code:\n\n```js\nlet a = 1 < 2;\n```';
    await answerNext(at.page, { content });
    await ask('Code, please', 1);
    await press(1, 'Copy');
    await at.page.until(`globalThis.copied === 'let a = 1 < 2;'`, 'the code');
    await at.page.evaluate(`document.querySelector('[aria-label="Copy the answer"]').click()`);
    await at.page.until(`globalThis.copied === ${JSON.stringify(content)}`, 'the answer');
    assert.equal(await at.text('[aria-label="Copy the answer"]'), 'Copied');
  });

  for (const scheme of ['light', 'dark']) {
    it(`is kept as a picture: ${scheme}`, async () => {
      await open({ scheme });
      await setting('tokens', '60');
      await setting('effort', 'high');
      await setting('budget', '12');
      await ask('Good morrow, what news?', 1);
      await ask('And what of the king?', 2);
      await press(1, 'Branch here');
      await ask('Tell me of the queen.', 2);
      await at.page.evaluate('document.querySelector(".turn details").open = true');
      await at.shot(`chat-${scheme}`);
    });
  }
});
