// SPDX-License-Identifier: Apache-2.0
// Updates docs/images/page-chat.png, page-digits.png and page-race.png: LINTEL_SERVER=build/release/bin/lintel-server node
// tests/page/pictures.mjs [DIR], on a machine that has nothing else to do. DIR: where to, if not there.
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Chromium } from './chromium.mjs';
import { serve } from './serving.mjs';

const folder = process.argv[2] ?? fileURLToPath(new URL('../../docs/images', import.meta.url));
const picture = (name) => join(folder, `page-${name}.png`);
const models = ['mnist-linear-small', 'mnist-favor-small', 'mnist-softmax-small', 'mnist-lsh1-small', 'mnist-lsh4-small', 'text-rwkv7-small'];
// Draft tokens would make the time of a token depend on the image.
const server = await serve(models, '--speculation', 'off');
const browser = await Chromium.start();
try {
  const page = await browser.page({ width: 1280, height: 800 });
  const ready = (tab) =>
    page.until(`document.querySelector('#${tab} .primary') && !document.querySelector('#${tab} .primary').disabled`);
  const type = (tab, label, value) =>
    page.evaluate(
      `[...document.querySelectorAll('#${tab} .field')].find((f) => f.firstElementChild.textContent === '${label}').querySelector('input').value = '${value}'`,
    );
  await page.go(server.url);
  await page.until('!document.querySelector("#chat-send").disabled');
  for (const [seed, text] of [[4, 'Good morrow, what news?'], [8, 'And what of the duke?']]) {
    await page.evaluate(`(() => {
      const field = document.querySelector('#chat-settings [name=seed]');
      field.value = '${seed}';
      field.dispatchEvent(new Event('input', { bubbles: true }));
      field.dispatchEvent(new Event('change', { bubbles: true }));
      document.querySelector('#chat-text').focus();
    })()`);
    await page.type(text);
    await page.key('Enter');
    await page.until('document.querySelector("#chat-stop").hidden && document.querySelector(".turn:last-child > .hint")');
  }
  await page.screenshot(picture('chat'));
  await page.click('#tab-digits');
  await ready('digits');
  await type('digits', 'Completions', 8);
  await type('digits', 'Seed', 2026);
  await page.click('#digits .primary');
  await page.until('/ pixels in /.test(document.querySelector("#digits .status").textContent)');
  await page.screenshot(picture('digits'));
  await page.click('#tab-race');
  await ready('race');
  await type('race', 'Laps', 20); // the fastest is drawn
  await page.click('#race .primary');
  await page.until('/was first/.test(document.querySelector("#race .status").textContent)');
  await page.screenshot(picture('race'));
} finally {
  await server.stop();
  await browser.stop();
}
