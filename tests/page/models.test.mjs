// SPDX-License-Identifier: Apache-2.0
// Models that requests load (--models): chosen, loaded by the first message, and listed with their state.
import assert from 'node:assert/strict';
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Chromium } from './chromium.mjs';
import { serve } from './serving.mjs';

const weights = (name) => fileURLToPath(new URL(`../../weights/${name}`, import.meta.url));
let folder;
let server;
let browser;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), 'lintel-models-'));
  symlinkSync(weights('text-rwkv7-small'), join(folder, 'talks'));
  symlinkSync(weights('text-linear-small'), join(folder, 'writes'));
  cpSync(weights('text-linear-small'), join(folder, 'broken'), { recursive: true });
  writeFileSync(join(folder, 'broken/model.safetensors'), 'version https://git-lfs.github.com/spec/v1\n');
  mkdirSync(join(folder, 'never'));
  writeFileSync(join(folder, 'never/config.json'), '{"model_type": "none_of_ours"}');
  server = await serve([], '--models', folder);
  browser = await Chromium.start();
});
after(async () => {
  try {
    await browser?.stop();
  } finally {
    await server?.stop(); // a server that stays keeps this process from ending
    rmSync(folder, { recursive: true });
  }
});

const labels = (page) => page.evaluate(`[...document.querySelector('#chat-model').options].map((o) => o.textContent)`);
const text = (page, selector) => page.evaluate(`document.querySelector('${selector}').textContent`);
const open = async () => {
  const page = await browser.page();
  await page.go(server.url);
  await page.until('!document.querySelector("#chat-send").disabled', 'the models');
  return page;
};
const choose = (page, name) =>
  page.evaluate(`(() => { const model = document.querySelector('#chat-model'); model.value = '${name}';
    model.dispatchEvent(new Event('change')); })()`);
const send = (page) =>
  page.evaluate(`document.querySelector('[name=tokens]').value = 16; document.querySelector('#chat-text').value = 'What news?';
    document.querySelector('#chat-form').requestSubmit()`);
const over = (page) => page.until('document.querySelector("#chat-stop").hidden', 'the answer');

describe('models that load on request', () => {
  it('are counted and can be chosen; the first message loads one, which its turn says', async () => {
    const page = await open();
    assert.match(await text(page, '#connection'), /^4 models, 0 loaded, at /);
    assert.equal(await page.evaluate('location.hash'), '#/chat');
    assert.deepEqual(await labels(page), ['broken (failed)', 'never (failed)', 'talks (loads on request)', 'writes (loads on request)']);
    assert.equal(await page.evaluate('document.querySelector("#chat-model").value'), 'talks');
    await choose(page, 'never');
    assert.match(await text(page, '#chat-model-state'), /^It could not be loaded: .*none_of_ours/);
    await choose(page, 'talks');
    assert.equal(await text(page, '#chat-model-state'), 'The first message loads it.');
    await page.evaluate(`(() => {
      globalThis.seen = new Set();
      const look = () => {
        const note = document.querySelector('.turn > .hint');
        if (note) seen.add(note.textContent);
      };
      new MutationObserver(look).observe(document.querySelector('#chat-turns'), { subtree: true, childList: true, characterData: true });
    })()`);
    await send(page);
    await over(page);
    assert.ok((await text(page, '.said')).length > 5);
    const seen = await page.evaluate('[...seen]');
    assert.ok(seen.some((note) => /^talks is being loaded/.test(note)), seen.join('; '));
    await page.until(`[...document.querySelector('#chat-model').options].some((o) => o.textContent === 'talks')`, 'the state');
    assert.equal(await text(page, '#chat-model-state'), '');
    assert.deepEqual(page.complaints, []);
    await page.close();
  });

  it('say why they could not be loaded', async () => {
    const page = await open();
    await choose(page, 'broken');
    await send(page);
    await over(page);
    assert.match(await text(page, '#chat-status'), /broken/);
    assert.equal(await page.evaluate('document.querySelector("#chat-text").value'), 'What news?');
    await page.until(`/failed/.test(document.querySelector('#chat-model').selectedOptions[0].textContent)`, 'the state');
    assert.match(await text(page, '#chat-model-state'), /^It could not be loaded: /);
    await page.close();
  });

  it('without a chat template are said to have none, and leave the list', async () => {
    const page = await open();
    await choose(page, 'writes');
    await send(page);
    await over(page);
    assert.match(await text(page, '#chat-status'), /^writes has no chat template: it continues texts/);
    await page.until(`![...document.querySelector('#chat-model').options].some((o) => o.value === 'writes')`, 'the list');
    await page.close();
  });

  it('can be chosen in Text, and are listed with their state in Server', async () => {
    const page = await open();
    await page.click('#tab-text');
    await page.until(`!document.querySelector('#text-write').disabled`, 'the models');
    await page.evaluate(`document.querySelector('#text-model').value = 'talks'; document.querySelector('#text-count').value = 5`);
    await page.click('#text-write');
    await page.until(`/tokens/.test(document.querySelector('.branch .hint:last-child')?.textContent)`, 'a text');
    await page.click('#tab-server');
    await page.until('document.querySelectorAll("#server-models tr").length >= 3', 'the models');
    const rows = await page.evaluate(`[...document.querySelectorAll('#server-models tr')].map((row) => row.textContent)`);
    assert.ok(rows.some((row) => /^broken ?failed: /.test(row)), rows.join('; '));
    await page.close();
  });
});
