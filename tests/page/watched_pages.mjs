// SPDX-License-Identifier: Apache-2.0
// What tests of the page in a browser share: a server, a browser, and a page that is watched.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { after, afterEach, before } from 'node:test';
import { Chromium } from './chromium.mjs';
import { serve } from './serving.mjs';

const { LINTEL_SCREENSHOTS } = process.env;
const MODELS = ['mnist-linear-small', 'mnist-softmax-small', 'mnist-lsh1-small', 'text-linear-small'];

// flags: the server's, beside those that it needs. Call it once a file, or once a suite. Gives functions for its tests: open() makes a page, and all others are about that one. After every
// test its page had no errors and had called the server alone.
export function watchedPages(...flags) {
  let server;
  let browser;
  let page;

  before(async () => {
    mkdirSync(LINTEL_SCREENSHOTS, { recursive: true });
    server = await serve(MODELS, ...flags);
    browser = await Chromium.start();
  });
  after(async () => {
    try {
      await browser?.stop();
    } finally {
      await server?.stop(); // a server that stays keeps this process from ending
    }
  });
  afterEach(async () => {
    if (!page) return;
    const { complaints, requests } = page;
    await page.close();
    page = undefined;
    assert.deepEqual(complaints, []);
    const own = new URL(server.url).origin;
    const others = requests.filter((url) => !/^(data|blob|about):/.test(url) && new URL(url).origin !== own);
    assert.deepEqual(others, []);
    assert.ok(requests.length > 10, 'requests are seen');
  });

  const quote = JSON.stringify;
  const element = (selector) => `document.querySelector(${quote(selector)})`;
  const fixture = {
    get page() {
      return page;
    },
    get browser() {
      return browser;
    },

    // options: as Chromium.page takes them. tab: '#/text', for example.
    async open(options = {}, tab = '') {
      page = await browser.page(options);
      await page.go(server.url + tab);
      await page.until(`${element('#connection')}?.dataset.state === 'good'`, 'the connection');
    },
    shot: (name) => page.screenshot(join(LINTEL_SCREENSHOTS, `${name}.png`)),
    text: (selector) => page.evaluate(`${element(selector)}.textContent`),
    count: (selector) => page.evaluate(`document.querySelectorAll(${quote(selector)}).length`),
    says: (selector, what) =>
      page.until(`${what}.test(${element(selector)}?.textContent)`, `${selector} to say ${what}`),
    set: (selector, value) =>
      page.evaluate(`(() => {
        const control = ${element(selector)};
        control.value = ${quote(value)};
        control.dispatchEvent(new Event('change'));
      })()`),
    // A button of a tab by its label.
    press: (tab, label) =>
      page.evaluate(
        `[...document.querySelectorAll('#${tab} button')].find((b) => b.textContent === ${quote(label)}).click()`,
      ),
    ready: (tab) => page.until(`!${element(`#${tab} .primary`)}.disabled`, `${tab} to be ready`),
    // The levels of a canvas, row by row.
    levels: (selector) =>
      page.evaluate(`(() => {
        const canvas = ${element(selector)};
        const { width, height } = canvas;
        // Reads a copy: reading changes how a canvas is drawn.
        const copy = new OffscreenCanvas(width, height).getContext('2d', { willReadFrequently: true });
        copy.drawImage(canvas, 0, 0);
        const { data } = copy.getImageData(0, 0, width, height);
        return Array.from({ length: width * height }, (_, i) => Math.max(data[4 * i], data[4 * i + 1], data[4 * i + 2]));
      })()`),
    // A call as the page makes it; gives its answer.
    call: (method, request) =>
      page.evaluate(`fetch('/lintel.v1.${method}', {
        method: 'POST', headers: { 'Content-Type': 'application/json' }, body: ${quote(quote(request))},
      }).then((response) => response.json())`),
    async complete() {
      await fixture.ready('digits');
      await page.click('#digits .primary');
      await fixture.says('#digits .status', /pixels in/);
    },
    async race(laps) {
      await fixture.ready('race');
      await fixture.set('#race-laps', laps);
      await page.click('#race .primary');
      await fixture.says('#race .status', /was first/);
    },
  };
  return fixture;
}
