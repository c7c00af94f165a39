// SPDX-License-Identifier: Apache-2.0
// The tab Chat, with a model whose template shows tools and thinks where it is asked to.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, it } from 'node:test';
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
  const weights = new URL(`../../weights/${model}`, import.meta.url).pathname;
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
    await at.open(options, '#chat');
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

  it('lists models with a template, and answers, coloured by probability', async () => {
    await open();
    assert.deepEqual(await at.page.evaluate('[...document.querySelector("#chat-model").options].map((o) => o.value)'), [model]);
    await ask('What news?', 1);
    assert.ok((await said(1)).length > 10);
    assert.equal(await at.text(`${turn(1)} .asked`), 'What news?');
    assert.match(await at.text(`${turn(1)} > .hint`), /^\d+ tokens? read, 0 from the cache · 24 written · \S+ bits a token · (\S+ tokens\/s · )?cut by a limit$/);
    const surprises = await at.page.evaluate(
      `[...document.querySelectorAll('.said span')].map((s) => Number(s.style.getPropertyValue('--surprise')))`,
    );
    assert.ok(Math.max(...surprises) > 0.3);
    assert.match(await at.page.evaluate('document.querySelector(".said span").title'), /^\S+ % ?/);
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
    await press(1, 'Ask again');
    await answered(1);
    const drawn = ['0 One', '1 Two', '1 Three', '1 Three and four', '0 One *'];
    assert.deepEqual(await tree(), drawn);
    assert.equal(await at.count('.turn'), 1);

    const words = await said(1);
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
      at.page.evaluate(`Promise.all(JSON.parse(sessionStorage.getItem('lintel-chat')).turns.map(async ({ response }) =>
        (await fetch('/v1/responses/' + response)).status)).then((all) => all.join(' '))`);
    assert.equal(await kept(), '200 200 200 200 200');
    await at.page.evaluate(`globalThis.gone = JSON.parse(sessionStorage.getItem('lintel-chat')).turns[1].response`);
    await press(1, 'Delete');
    assert.deepEqual(await tree(), ['0 One']);
    assert.equal(await kept(), '200');
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

  // The next answer is this item.
  const answerNext = (item) =>
    at.page.evaluate(`(() => {
      const send = globalThis.fetch;
      globalThis.fetch = (url, options) => {
        if (url !== '/v1/responses') return send(url, options);
        globalThis.fetch = send;
        globalThis.asked = JSON.parse(options.body);
        const usage = { input_tokens: 9, output_tokens: 5, input_tokens_details: { cached_tokens: 4 },
          output_tokens_details: { reasoning_tokens: 0 } };
        const item = ${JSON.stringify(item)};
        const events = [
          { type: 'response.created', response: { id: 'resp_call' } },
          { type: 'response.output_text.delta', delta: 'Let me look.' },
          { type: 'response.output_item.added', item },
          { type: 'response.function_call_arguments.delta', delta: item.arguments },
          { type: 'response.completed', response: { status: 'completed', usage } },
        ].map((event) => JSON.stringify(event));
        return Promise.resolve(new Response([...events, '[DONE]'].map((event) => 'data: ' + event + '\\n\\n').join('')));
      };
    })()`);

  it('shows calls as code, asks for their results, and continues with them', async () => {
    await open();
    await setting('tools', '[{"name": "get_time", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}]');
    const call = { type: 'function_call', call_id: 'abc123DEF', name: 'get_time', arguments: '{"place":"Verona"}' };
    await answerNext(call);
    await ask('What time is it in Verona?', 1);
    assert.equal(await at.page.evaluate('asked.tools[0].name'), 'get_time');
    assert.equal(await at.text('.call code'), '{\n  "place": "Verona"\n}');
    await at.set('.call textarea', 'noon');
    await at.shot('chat-call');
    await answerNext(call);
    await press(1, 'Send results');
    await answered(2);
    assert.deepEqual(await at.page.evaluate('[asked.previous_response_id, asked.input]'), [
      'resp_call',
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
    await at.says('#chat-status', /temperature/);
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
