// SPDX-License-Identifier: Apache-2.0
// The page's files, as the server gives them.
import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { serve } from './serving.mjs';

const ROOT = new URL('../../', import.meta.url);
const modules = readdirSync(new URL('web/js', ROOT), { recursive: true })
  .filter((name) => name.endsWith('.js'))
  .map((name) => `js/${name}`);
const TYPES = {
  html: 'text/html',
  css: 'text/css',
  js: 'text/javascript',
  svg: 'image/svg+xml',
  png: 'image/png',
};

let server;
before(async () => (server = await serve(['text-linear-small'])));
after(() => server.stop());

const get = (path, headers = {}, method = 'GET') => fetch(server.url + path, { method, headers });

describe('the page', () => {
  it('has the files of web/ and the scripts of Debian, each with its type', async () => {
    assert.ok(modules.length > 15);
    for (const [path, file] of [
      ['', 'web/index.html'],
      ['digits.png', 'weights/demo-digits.png'],
      ['favicon.ico', 'web/icon.svg'],
      ['lib/marked.js', '/usr/share/javascript/marked/marked.umd.min.js'],
      ['lib/purify.js', '/usr/share/nodejs/dompurify/dist/purify.min.js'],
      ...['style.css', 'icon.svg', ...modules].map((f) => [f, `web/${f}`]),
    ]) {
      const response = await get(path);
      assert.equal(response.status, 200, path);
      assert.equal(response.headers.get('content-type').split(';')[0], TYPES[file.split('.').pop()], path);
      assert.deepEqual(Buffer.from(await response.arrayBuffer()), readFileSync(new URL(file, ROOT)), path);
    }
  });

  it('restricts its own rights, and may not be shown in another page [threat-40]', async () => {
    const { headers } = await get('');
    assert.equal(
      headers.get('content-security-policy'),
      "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    );
    assert.equal(headers.get('x-content-type-options'), 'nosniff');
    assert.equal(headers.get('referrer-policy'), 'no-referrer');
  });

  it('is sent again only when it has changed', async () => {
    const first = await get('js/main.js');
    const etag = first.headers.get('etag');
    assert.match(etag, /^"[0-9a-f]{32}"$/);
    assert.equal(first.headers.get('cache-control'), 'no-cache');
    await first.arrayBuffer();
    for (const tag of [etag, `W/${etag}`, `"another", ${etag}`, '*']) {
      const again = await get('js/main.js', { 'if-none-match': tag });
      assert.equal(again.status, 304, tag);
      assert.equal(again.headers.get('etag'), etag);
      assert.equal((await again.arrayBuffer()).byteLength, 0);
    }
    const other = await get('js/main.js', { 'if-none-match': '"another"' });
    assert.equal(other.status, 200);
    await other.arrayBuffer();
  });

  it('answers HEAD as GET, without a body', async () => {
    const response = await get('style.css', {}, 'HEAD');
    assert.equal(response.status, 200);
    assert.equal(Number(response.headers.get('content-length')), readFileSync(new URL('web/style.css', ROOT)).length);
    assert.equal((await response.arrayBuffer()).byteLength, 0);
  });

  it('has no other files', async () => {
    for (const path of ['package.json', 'js', 'js/none.js', '../README.md', 'index.html']) {
      const response = await get(path);
      assert.equal(response.status, 404, path);
      await response.arrayBuffer();
    }
  });

  it('names nothing that is elsewhere [threat-40]', () => {
    for (const name of ['index.html', 'style.css', ...modules]) {
      const code = readFileSync(new URL(`web/${name}`, ROOT), 'utf8').replace(/^\s*\/\/.*$/gm, '');
      const links = (code.match(/https?:\/\/[^'")\s]*/g) ?? []).filter(
        (link) => !link.startsWith('http://www.w3.org/'),
      );
      assert.deepEqual(links, [], name);
    }
  });
});
