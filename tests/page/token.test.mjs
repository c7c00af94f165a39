// SPDX-License-Identifier: Apache-2.0
// A server that wants a token: the page asks for one, and keeps it for its tab alone.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, it } from 'node:test';
import { Chromium } from './chromium.mjs';
import { serve } from './serving.mjs';

const TOKEN = 'token-alice';
let folder;
let server;
let browser;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), 'lintel-token-'));
  const hash = createHash('sha256').update(TOKEN).digest('hex');
  writeFileSync(join(folder, 'tokens'), `alice generate sha256:${hash}\n`, { mode: 0o600 });
  server = await serve(['mnist-linear-small'], '--auth-tokens', join(folder, 'tokens'));
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

it('asks for a token until it has one that is known', async () => {
  const page = await browser.page();
  await page.go(server.url);
  const isOpen = 'document.querySelector("#token").open';
  await page.until(isOpen, 'the question');
  const why = () => page.evaluate('document.querySelector("#token-why").textContent');
  assert.equal(await why(), 'Who runs the server gives out tokens. Paste yours here.');
  await page.type('token-unknown');
  await page.key('Enter');
  // The question comes again, empty.
  await page.until(`${isOpen} && document.querySelector('#token-value').value === ''`, 'the question, once more');
  await page.until('document.activeElement.id === "token-value"', 'the field to be ready');
  assert.equal(await why(), 'The server does not know this token.');
  await page.type(TOKEN);
  await page.key('Enter');
  await page.until('document.querySelector("#connection").dataset.state === "good"', 'the connection');
  assert.equal(await page.evaluate(isOpen), false);

  await page.until('!document.querySelector("#digits .primary").disabled', 'the digits');
  await page.click('#digits .primary');
  await page.until('/ pixels in /.test(document.querySelector("#digits .status").textContent)', 'the completion');

  // The same tab knows it, another one does not.
  await page.go(`${server.url}?again`);
  await page.until('document.querySelector("#connection").dataset.state === "good"', 'the connection');
  assert.equal(await page.evaluate('localStorage.length + document.cookie.length'), 0);
  assert.deepEqual(
    page.complaints.filter((c) => !/status of 401/.test(c)),
    [],
  );
  const other = await browser.page();
  await other.go(server.url);
  await other.until(isOpen, 'the question of another tab');
  await other.key('Escape');
  await other.until('document.querySelector("#connection").dataset.state === "bad"', 'the refusal');
});
