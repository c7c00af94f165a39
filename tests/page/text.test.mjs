// SPDX-License-Identifier: Apache-2.0
// The tab Text.
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { PATIENCE } from './chromium.mjs';
import { watchedPages } from './watched_pages.mjs';

const at = watchedPages();
const branch = (n) => `.branch:nth-child(${n})`;
const written = (n) => at.says(`${branch(n)} .hint:last-child`, /seed/);
const wordsOf = (n) => at.text(`${branch(n)} .text`);
const choose = (n, i) => at.page.evaluate(`document.querySelectorAll('${branch(n)} .text span')[${i}].click()`);
const alternatives = () => at.page.until('document.querySelectorAll(".alternatives li").length === 8', 'alternatives');
const continueBranch = (n) =>
  at.page.evaluate(
    `[...document.querySelectorAll('${branch(n)} button')].find((b) => b.textContent === 'Continue').click()`,
  );

async function write() {
  await at.open({}, '#/text');
  await at.ready('text');
  await at.set('#text-count', '60');
  await at.set('#text-seed', '3');
  await at.page.click('#text-write');
  await written(1);
  return wordsOf(1);
}

async function sessions() {
  const { idleSessions = 0, busySessions = 0 } = await at.call('ModelService/Statistics', {});
  return Number(idleSessions) + Number(busySessions);
}
async function untilSessionsAre(count) {
  for (const end = Date.now() + PATIENCE; (await sessions()) !== count;) assert.ok(Date.now() < end, 'sessions stay');
}

describe('Text', () => {
  it('is written, coloured by probability', async () => {
    const words = await write();
    assert.ok(words.startsWith('Once upon a time'));
    assert.equal(Buffer.byteLength(words), 76);
    assert.match(await at.text('.branch .hint:last-child'), /^76 bytes · \S+ bits a byte · \S+ tokens\/s · seed 3$/);
    const surprises = await at.page.evaluate(
      `[...document.querySelectorAll('.text span')].map((s) => Number(s.style.getPropertyValue('--surprise')))`,
    );
    assert.equal(surprises[0], 0, 'the first byte has no probability');
    assert.ok(Math.max(...surprises) > 0.3 && Math.min(...surprises.slice(16)) < 0.1);
    assert.equal(await at.count('.text .prompt'), 16);
  });

  it('shows alternatives to the pointer and the keyboard', async () => {
    await write();
    const { x, y } = await at.page.middle('.text span:nth-child(30)');
    await at.page.mouse('mouseMoved', x, y);
    await alternatives();
    await at.page.mouse('mouseMoved', 5, 5);
    await at.page.until('document.querySelectorAll(".alternatives li").length === 0', 'them to go');
    await at.page.evaluate('document.querySelector(".text").focus()');
    for (let i = 0; i < 21; ++i) await at.page.key('ArrowRight');
    await alternatives();
    await at.says('#news', / %$/);
    await at.page.key('Enter');
    await at.page.until('document.querySelector(".inspector.pinned")', 'the choice');
    assert.equal(await at.page.evaluate('document.activeElement.closest("#inspector") !== null'), true);
  });

  it('forks at any character: by itself, or with another byte', async () => {
    const words = await write();
    await choose(1, 39);
    await at.press('text', 'Fork after it');
    await written(2);
    assert.equal((await wordsOf(2)).slice(0, 76), words, 'with the same seed it continues as its source did');
    assert.equal(await at.count(`${branch(2)} .shared`), 76);

    await choose(1, 20);
    await at.page.evaluate('[...document.querySelectorAll(".alternatives button")].find((b) => !b.disabled).click()');
    await written(3);
    const other = await wordsOf(3);
    assert.equal(other.slice(0, 20), words.slice(0, 20));
    assert.notEqual(other[20], words[20]);
    assert.equal(await at.count(`${branch(3)} .shared`), 20);
    await at.shot('text-light');
  });

  it('is taken back, and drawn again', async () => {
    const words = await write();
    await choose(1, 29);
    await at.press('text', 'Rewind to it');
    await at.page.until(`document.querySelectorAll('.text span').length === 30`, 'the rewind');
    await continueBranch(1);
    await written(1);
    assert.equal((await wordsOf(1)).slice(0, 76), words);
  });

  it('leaves the window to the server, whose default is the trained length', async () => {
    await at.open({}, '#/text');
    await at.ready('text');
    await at.page.evaluate(`(() => {
      const send = globalThis.fetch;
      globalThis.asked = [];
      globalThis.fetch = (url, options) => {
        if (String(url).endsWith('SessionService/Create')) asked.push(options.body);
        return send(url, options);
      };
    })()`);
    await at.set('#text-count', '3');
    await at.page.click('#text-write');
    await written(1);
    const { sessions: all } = await at.call('SessionService/List', { model: 'text-linear-small' });
    assert.ok(all.some(({ window }) => window === '256'));
    const asked = await at.page.evaluate('asked.map((body) => JSON.parse(body))');
    assert.equal(asked.length, 1);
    assert.equal(asked[0].model, 'text-linear-small');
    assert.equal('window' in asked[0], false);
  });

  it('deletes its sessions', async () => {
    const before = await (async () => (await at.open(), sessions()))();
    await at.page.close();
    await write();
    assert.equal(await sessions(), before + 1);
    await at.page.evaluate(`document.querySelector('button[aria-label="Delete branch A"]').click()`);
    await at.page.until('document.querySelectorAll(".branch").length === 0', 'the branch to go');
    await untilSessionsAre(before);
    await at.page.click('#text-write');
    await written(1);
    await at.page.go(at.page.requests[0]);
    await untilSessionsAre(before);
  });
});
