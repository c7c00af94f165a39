// SPDX-License-Identifier: Apache-2.0
// A server that dies and comes back under an open page.
import assert from 'node:assert/strict';
import { after, before, it } from 'node:test';
import { Chromium } from './chromium.mjs';
import { serve } from './serving.mjs';

let server;
let browser;

const MODELS = ['mnist-linear-small', 'text-linear-small'];

before(async () => {
  server = await serve(MODELS);
  browser = await Chromium.start();
});
after(async () => {
  try {
    await browser?.stop();
  } finally {
    await server?.stop(); // a server that stays keeps this process from ending
  }
});

it('server killed and restarted: the dot and every tab say so, and recover', async () => {
  const page = await browser.page();
  const state = (which) => page.until(`document.querySelector('#connection').dataset.state === '${which}'`, which);
  const text = (selector) => page.evaluate(`document.querySelector('${selector}').textContent`);
  const says = (selector, what) =>
    page.until(`${what}.test(document.querySelector('${selector}').textContent)`, `${selector} to say ${what}`);
  const ready = (tab) => page.until(`!document.querySelector('#${tab} .primary').disabled`, `${tab} to be ready`);

  await page.go(server.url);
  await state('good');
  await ready('digits');
  const { host } = new URL(server.url);
  await server.stop('SIGKILL');

  // Without a call: the page notices by itself.
  await state('bad');
  assert.equal(await text('#connection'), `the server at ${host} does not answer`);
  await page.click('#digits .primary');
  await says('#digits .status', /^the server does not answer$/);
  for (const tab of ['server', 'text', 'race']) {
    await page.click(`#tab-${tab}`);
    await says(`#${tab} .status`, /^the server does not answer$/);
  }

  server = await serve(MODELS, '--http-listen', host);
  await state('good');
  assert.equal(await text('#connection'), `2 models at ${host}`);
  for (const tab of ['race', 'text']) {
    await ready(tab);
    await says(`#${tab} .status`, /^$/);
  }
  await page.click('#tab-server');
  await says('#server .status', /^$/);
  await page.click('#tab-digits');
  await page.click('#digits .primary');
  await says('#digits .status', /pixels in/);

  // The server goes away in the middle of an answer.
  await page.click('#tab-race');
  await page.evaluate("document.querySelector('#race-laps').value = 100");
  await page.click('#race .primary');
  await says('#race .status', /^lap [2-9]/);
  await server.stop('SIGKILL');
  await says('#race .status', /^(the connection to the server was lost|the server does not answer)$/);
  await state('bad');

  // Errors of the browser itself about failed calls are no complaints of the page.
  const complaints = page.complaints.filter((complaint) => !/Failed to load resource/.test(complaint));
  assert.deepEqual(complaints, []);
});
