// SPDX-License-Identifier: Apache-2.0
// Conversations of the tab Chat, which the browser keeps.
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { answerNext } from './answers.mjs';
import { PATIENCE } from './chromium.mjs';
import { watchedPages } from './watched_pages.mjs';

const at = watchedPages('--model', new URL('../../weights/text-rwkv7-small', import.meta.url).pathname);
const turn = (n) => `.turn:nth-child(${n})`;

async function open(options) {
  await at.open(options, '#/chat');
  await at.ready('chat');
  await at.set('#chat-settings [name=tokens]', '16');
}
async function ask(text, page = at.page) {
  await page.evaluate(`document.querySelector('#chat-text').value = ${JSON.stringify(text)};
    document.querySelector('#chat-form').requestSubmit()`);
  await page.until('document.querySelector("#chat-stop").hidden', 'the answer');
}
const press = (n, label) =>
  at.page.evaluate(`[...document.querySelectorAll('${turn(n)} button')].find((b) => b.textContent === '${label}').click()`);
const reload = async () => {
  await at.page.evaluate('globalThis.isOld = true');
  await at.page.send('Page.reload');
  await at.page.until('!globalThis.isOld && document.readyState === "complete"', 'the reload');
  await at.ready('chat');
  await at.set('#chat-settings [name=tokens]', '16');
};
const titles = (page = at.page) =>
  page.evaluate(`[...document.querySelectorAll('#chat-list .title')].map((t) => t.textContent + (t.ariaCurrent ? ' *' : ''))`);
const listed = (list, page = at.page) =>
  page.until(
    `[...document.querySelectorAll('#chat-list .title')].map((t) => t.textContent).join('|') === ${JSON.stringify(list.join('|'))}`,
    `the list ${list}`,
  );
const turns = (page = at.page) =>
  page.evaluate(`[...document.querySelectorAll('.turn')].map((t) => t.querySelector('.asked').textContent)`);
// All records of a table of the browser.
const kept = (table) =>
  at.page.evaluate(`new Promise((resolve, reject) => {
    const opening = indexedDB.open('lintel', 1);
    opening.onsuccess = () => {
      const all = opening.result.transaction('${table}').objectStore('${table}').getAll();
      all.onsuccess = () => (opening.result.close(), resolve(all.result));
      all.onerror = () => reject(all.error);
    };
  })`);
const keptTurns = async (count) => {
  for (const end = Date.now() + PATIENCE; ;) {
    const all = await kept('turns');
    assert.ok(Date.now() < end, `${count} turns are kept: ${JSON.stringify(all)}`);
    if (all.length === count && all.every(({ answer }) => answer.finish)) return all.sort((a, b) => a.created - b.created);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};
const yes = async (page = at.page) => {
  await page.until('document.querySelector("#question").open', 'the question');
  await page.evaluate('document.querySelector("#question-yes").click()');
};
const statusOf = (response) => at.page.evaluate(`fetch('/v1/responses/${response}').then(({ status }) => status)`);
const watchRequests = (page = at.page) =>
  page.evaluate(`(() => {
    const send = globalThis.fetch;
    globalThis.bodies = [];
    globalThis.fetch = (url, options) => {
      if (url === '/v1/responses') bodies.push(JSON.parse(options.body));
      return send(url, options);
    };
  })()`);

describe('Conversations', () => {
  it('are there after a reload, with texts, reasoning, calls and branches, but no token', async () => {
    await open();
    await at.page.evaluate(`sessionStorage.setItem('lintel-token', 'secret-of-alice')`);
    const call = { call_id: 'abc', name: 'get_time', arguments: '{"place":"Verona"}' };
    await answerNext(at.page, { reasoning: 'It wants the time.', content: 'Let me look.', calls: [call] });
    await ask('What time is it?');
    await answerNext(at.page, { content: 'Another answer.' });
    await press(1, 'Regenerate');
    await at.page.until('document.querySelector("#chat-stop").hidden', 'the answer');
    await at.page.evaluate('document.querySelector("#chat-settings [name=colours]").click()');
    await at.set('#chat-settings [name=system]', 'Speak as a king.');
    await ask('With colours');
    const all = await keptTurns(3);
    assert.deepEqual(
      all.map(({ asked, parent }) => [asked[0].content, parent]),
      [
        ['What time is it?', undefined],
        ['What time is it?', undefined],
        ['With colours', all[1].id],
      ],
    );
    assert.equal(all[0].answer.reasoning, 'It wants the time.');
    assert.deepEqual(all[0].answer.calls, [{ id: 'abc', name: 'get_time', arguments: '{"place":"Verona"}' }]);
    assert.ok(all.every(({ answer }) => !('tokens' in answer)));
    assert.ok(!JSON.stringify([all, await kept('conversations')]).includes('secret'));
    assert.equal(await at.page.evaluate('localStorage.length + document.cookie.length'), 0);

    await reload();
    await at.page.until('document.querySelectorAll(".turn").length === 2', 'the conversation');
    assert.equal(await at.text('.said'), 'Another answer.');
    assert.equal(await at.page.evaluate('document.querySelector("#chat-settings [name=system]").value'), 'Speak as a king.');
    await at.page.evaluate(`document.querySelector('.siblings button').click()`);
    assert.equal(await at.text('.said'), 'Let me look.');
    assert.equal(await at.text('.thought p'), 'It wants the time.');
    assert.equal(await at.count('.call'), 1);
    at.page.complaints.length = 0; // Chromium's of the status 400: the server does not know the answers made here
  });

  it('continue by the response before, and by their texts to the same branch where it is gone', async () => {
    await open();
    await ask('One');
    await watchRequests();
    await ask('Two');
    const [first, second] = await keptTurns(2);
    assert.equal(await at.page.evaluate('bodies[0].previous_response_id'), first.response);
    assert.deepEqual(await at.page.evaluate('bodies[0].input'), [{ role: 'user', content: 'Two' }]);

    await at.page.evaluate(`fetch('/v1/responses/${second.response}', { method: 'DELETE' })`);
    await ask('Three');
    const third = (await keptTurns(3))[2];
    assert.equal(third.parent, second.id);
    assert.equal(third.answer.finish, 'incomplete'); // by the limit of 16
    const bodies = await at.page.evaluate('bodies');
    assert.equal(bodies.length, 3);
    assert.equal(bodies[1].previous_response_id, second.response);
    assert.equal('previous_response_id' in bodies[2], false);
    assert.deepEqual(
      bodies[2].input.map(({ role, content }) => [role, content]),
      [
        ['user', 'One'],
        ['assistant', first.answer.content],
        ['user', 'Two'],
        ['assistant', second.answer.content],
        ['user', 'Three'],
      ],
    );
    // The next one continues what the server has again.
    await ask('Four');
    assert.equal(await at.page.evaluate('bodies[3].previous_response_id'), third.response);
    assert.equal(await at.page.evaluate('bodies.length'), 4);
    assert.deepEqual(await turns(), ['One', 'Two', 'Three', 'Four']);
    at.page.complaints.length = 0; // Chromium's of the status 400
  });

  it('continue by texts with reasoning and calls, too', async () => {
    await open();
    const call = { call_id: 'abc', name: 'get_time', arguments: '{"place":"Verona"}' };
    await at.set('#chat-settings [name=tools]', '[{"name": "get_time", "parameters": {"type": "object"}}]');
    await answerNext(at.page, { reasoning: 'It wants the time.', content: 'Let me look.', calls: [call] });
    await ask('What time is it?');
    await at.set('.call textarea', 'noon');
    await watchRequests();
    await press(1, 'Send results');
    await at.page.until('document.querySelector("#chat-stop").hidden', 'the answer');
    const body = await at.page.evaluate('bodies[1]');
    assert.deepEqual(body.input, [
      { role: 'user', content: 'What time is it?' },
      { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: 'It wants the time.' }] },
      { role: 'assistant', content: 'Let me look.' },
      { type: 'function_call', ...call },
      { type: 'function_call_output', call_id: 'abc', output: 'noon' },
    ]);
    at.page.complaints.length = 0; // Chromium's of the status 400
  });

  it('are named, searched, and deleted after a question, with their responses', async () => {
    await open();
    await ask('What of the king?\nA second line');
    await at.page.click('#chat-new');
    await ask('What of the queen?');
    await listed(['What of the queen?', 'What of the king?']);
    assert.deepEqual(await titles(), ['What of the queen? *', 'What of the king?']);
    await at.page.evaluate(`document.querySelector('[aria-label="Rename What of the queen?"]').click()`);
    await at.page.until('document.querySelector("#chat-list input")', 'the field');
    await at.page.type('Her majesty');
    await at.page.key('Enter');
    await listed(['Her majesty', 'What of the king?']);

    const search = async (words) => {
      await at.page.evaluate(`(() => { const field = document.querySelector('#chat-search'); field.value = '${words}';
        field.dispatchEvent(new Event('input')); })()`);
    };
    await search('KING second');
    await listed(['What of the king?']);
    await search('majesty');
    await listed(['Her majesty']);
    await search('not said by anyone');
    await listed([]);
    assert.equal(await at.text('#chat-none'), 'No conversation has these words.');
    await search('');
    await listed(['Her majesty', 'What of the king?']);

    const [king, queen] = await keptTurns(2);
    assert.equal(await statusOf(queen.response), 200);
    const press = () => at.page.evaluate(`document.querySelector('[aria-label="Delete Her majesty"]').click()`);
    await press();
    await at.page.until('document.querySelector("#question").open', 'the question');
    await at.page.key('Escape');
    assert.equal(await statusOf(queen.response), 200);
    await press();
    await yes();
    await listed(['What of the king?']);
    await at.page.until(`fetch('/v1/responses/${queen.response}').then(({ status }) => status === 404)`, 'the response to go');
    assert.equal(await statusOf(king.response), 200);
    assert.deepEqual(await turns(), []);
    assert.equal((await kept('turns')).length, 1);
    at.page.complaints.length = 0; // Chromium's of the status 404
  });

  it('of two tabs do not overwrite each other', async () => {
    await open();
    await ask('Opened in the first');
    const other = await at.browser.page({ beside: at.page });
    await other.go(at.page.requests[0]);
    await other.until(`!document.querySelector('#chat-send').disabled`, 'the models');
    await listed(['Opened in the first'], other);
    await other.evaluate(`document.querySelector('#chat-list .title').click()`);
    await other.until('document.querySelectorAll(".turn").length === 1', 'the conversation');
    for (const page of [at.page, other]) {
      await page.evaluate(`document.querySelector('#chat-settings [name=tokens]').value = 200`);
      await page.evaluate(`document.querySelector('#chat-text').value = 'At once';
        document.querySelector('#chat-form').requestSubmit()`);
    }
    for (const page of [at.page, other]) await page.until('document.querySelector("#chat-stop").hidden', 'the answer');
    const all = await keptTurns(3);
    assert.deepEqual(all.map(({ parent }) => parent), [undefined, all[0].id, all[0].id]);
    // Each tab shows both branches.
    for (const page of [at.page, other]) {
      await page.until('document.querySelectorAll("#chat-tree li").length === 3', 'the other branch');
    }
    await other.evaluate(`document.querySelector('#chat-new').click()`);
    await ask('Opened in the second', other);
    await listed(['Opened in the second', 'Opened in the first']);
    // One that is deleted in a tab comes back from none.
    await other.evaluate(`[...document.querySelectorAll('#chat-list .title')][1].click()`);
    await other.until(`document.querySelector('[aria-label="Delete Opened in the first"]')`, 'the button');
    await other.evaluate(`document.querySelector('[aria-label="Delete Opened in the first"]').click()`);
    await yes(other);
    await listed(['Opened in the second']);
    await at.page.until('document.querySelectorAll(".turn").length === 0', 'the conversation to go');
    assert.equal((await kept('turns')).length, 1);
    assert.deepEqual(other.complaints, []);
  });

  it('of earlier versions are taken over', async () => {
    await open();
    const [a, b] = await at.page.evaluate(`(async () => {
      const ask = async (input, previous_response_id) => (await (await fetch('/v1/responses', { method: 'POST',
        headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ model: 'text-rwkv7-small', input,
        previous_response_id, max_output_tokens: 16 }) })).json()).id;
      const a = await ask('An old question');
      return [a, await ask('A second one', a)];
    })()`);
    const asked = (content) => [{ role: 'user', content }];
    const earlier = {
      turns: [
        { id: 1, asked: asked('An old question'), response: a },
        { id: 2, parent: 1, asked: asked('A second one'), response: b },
        { id: 5, asked: asked('One that is gone'), response: 'resp_gone' },
      ],
      current: 2,
    };
    await at.page.evaluate(`sessionStorage.setItem('lintel-chat', ${JSON.stringify(JSON.stringify(earlier))})`);
    await reload();
    await at.page.until('document.querySelectorAll(".turn").length === 2', 'the conversation');
    await listed(['One that is gone', 'An old question']);
    assert.deepEqual(await turns(), ['An old question', 'A second one']);
    await at.says(`${turn(2)} > .hint`, /written/);
    assert.ok((await at.text(`${turn(2)} .said`)).length > 5);
    assert.equal(await at.page.evaluate(`sessionStorage.getItem('lintel-chat')`), null);
    await ask('And a third');
    assert.equal(await at.count('.turn'), 3);
    await at.page.evaluate(`[...document.querySelectorAll('#chat-list .title')].find((t) => t.textContent === 'One that is gone').click()`);
    await at.says(`${turn(1)} .status`, /no longer has this answer/);
    at.page.complaints.length = 0; // Chromium's of the status 404
  });

  it('end with the tab where the browser keeps nothing, which it says', async () => {
    await at.open({}, '#/server');
    await at.page.send('Page.addScriptToEvaluateOnNewDocument', {
      source: `Object.defineProperty(globalThis, 'indexedDB', { get() { throw new Error('denied'); } })`,
    });
    await at.page.evaluate(`location.hash = '#/chat'`);
    await reload();
    await at.says('#chat-kept', /keeps nothing/);
    await ask('One');
    await at.page.click('#chat-new');
    await ask('Two');
    await listed(['Two', 'One']);
    await at.page.evaluate(`[...document.querySelectorAll('#chat-list .title')][1].click()`);
    assert.deepEqual(await turns(), ['One']);
  });
});
