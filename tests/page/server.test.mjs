// SPDX-License-Identifier: Apache-2.0
// The tab Server.
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { watchedPages } from './watched_pages.mjs';

const at = watchedPages();
const tokensInAll = () =>
  at.page.evaluate(`Number(document.querySelector('#tile-rate-note').textContent.replace(/\\D/g, ''))`);

describe('Server', () => {
  it('shows models, sessions, throughput and queue, and their changes', async () => {
    await at.open({}, '#/server');
    await at.page.until('document.querySelectorAll("#server-models tr").length === 4', 'the models');
    const models = await at.text('#server-models');
    for (const name of ['mnist-linear-small', 'mnist-softmax-small', 'mnist-lsh1-small', 'text-linear-small']) {
      assert.ok(models.includes(name), name);
    }
    assert.match(models, /constant/);
    assert.match(models, /\d+ of \d+ tokens, or 1 of \d+/); // the room for sessions
    assert.match(models, /to \d+(\.\d+)? MB/);
    assert.equal(await at.text('#server-sessions'), 'None of yours.');
    assert.match(await at.text('#tile-up-note'), /^version \d/);
    const before = await tokensInAll();

    const { id } = await at.call('SessionService/Create', { model: 'text-linear-small' });
    await at.page.until(
      `document.querySelector('#server-sessions').textContent.includes('${id.slice(0, 8)}')`,
      'the session',
    );
    assert.equal(await at.text('#tile-sessions'), '1');
    await at.page.click('#tab-digits');
    await at.complete();
    await at.page.click('#tab-server');
    await at.page.until(
      `Number(document.querySelector('#tile-rate-note').textContent.replace(/\\D/g, '')) >= ${before} + 4 * 392`,
      'what was drawn',
    );
    await at.page.until(
      'document.querySelector("#throughput polyline").getAttribute("points").split(" ").length > 2',
      'the curve',
    );
    await at.shot('server-light');
    await at.call('SessionService/Delete', { id });
    await at.says('#tile-sessions', /^0$/);
  });
});
