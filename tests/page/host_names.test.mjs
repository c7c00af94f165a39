// SPDX-License-Identifier: Apache-2.0
// Names that point to this machine and are not its own: a page of such a name may read nothing of the server.
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Chromium } from './chromium.mjs';
import { serve } from './serving.mjs';

let server;
let metrics;
let browser;

before(async () => {
  server = await serve(
    ['text-linear-small'],
    '--metrics-listen',
    '127.0.0.1:0',
    '--http-allowed-host',
    'proxy.example',
  );
  metrics = /metrics on (http:\/\/\S+)/.exec(server.log())[1];
  browser = await Chromium.start(['--host-resolver-rules=MAP *.example 127.0.0.1']);
});
after(async () => {
  try {
    await browser?.stop();
  } finally {
    await server?.stop(); // a server that stays keeps this process from ending
  }
});

const as = (url, name) => url.replace('127.0.0.1', name);

// The answer to a page that asks the server it came from.
const ask = (page, path, init = {}) =>
  page.evaluate(`fetch(${JSON.stringify(path)}, ${JSON.stringify(init)}).then(async (response) => ({
    status: response.status, text: await response.text() }))`);

describe('a foreign page whose name points to the server (DNS rebinding)', () => {
  it('gets 403 and nothing of the server for every request [threat-37]', async () => {
    const page = await browser.page();
    await page.go(as(server.url, 'evil.example'));
    assert.match(await page.evaluate('document.body.innerText'), /--http-allowed-host/);
    const json = { 'content-type': 'application/json' };
    const query = '?connect=v1&encoding=json&message=%7B%7D';
    for (const [path, init] of [
      ['/'],
      ['/v2'],
      ['/v2/health/live'],
      ['/v1/models'],
      [`/lintel.v1.ModelService/List${query}`],
      [`/lintel.v1.ModelService/Statistics${query}`],
      [`/lintel.v1.SessionService/List${query}`],
      ['/lintel.v1.SessionService/List', { method: 'POST', headers: json, body: '{}' }],
      ['/lintel.v1.SessionService/Create', { method: 'POST', headers: json, body: '{}' }],
    ]) {
      const { status, text } = await ask(page, path, init);
      assert.equal(status, 403, path);
      assert.ok(!text.includes('text-linear-small'), path);
    }
    await page.close();
  });

  it('gets 403 from the port of the metrics [threat-37]', async () => {
    const page = await browser.page();
    await page.go(as(metrics, 'evil.example'));
    for (const path of ['/metrics', '/healthz', '/readyz']) {
      const { status, text } = await ask(page, path);
      assert.equal(status, 403, path);
      assert.ok(!text.includes('lintel_'), path);
    }
    await page.close();
  });
});

describe('a name of this machine, or one that a flag names', () => {
  it('is served', async () => {
    for (const name of ['127.0.0.1', 'localhost', 'proxy.example']) {
      const page = await browser.page();
      await page.go(as(server.url, name));
      const { status, text } = await ask(page, '/v1/models');
      assert.equal(status, 200, name);
      assert.match(text, /text-linear-small/);
      await page.go(as(metrics, name));
      assert.equal((await ask(page, '/metrics')).status, 200, name);
      await page.close();
    }
  });

  it('lists sessions by POST alone', async () => {
    const page = await browser.page();
    await page.go(server.url);
    const path = '/lintel.v1.SessionService/List';
    assert.equal((await ask(page, `${path}?connect=v1&encoding=json&message=%7B%7D`)).status, 405);
    const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{}' };
    assert.equal((await ask(page, path, init)).status, 200);
    await page.close();
  });
});
