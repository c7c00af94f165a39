// The tab Race.
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { watchedPages } from './watched_pages.mjs';

const at = watchedPages();
const number = (text) => Number(text.replaceAll(',', ''));

describe('Race', () => {
  it('lets all kinds draw one image, and tells time and state by position', async () => {
    await at.open({}, '#race');
    await at.ready('race');
    assert.equal(await at.count('.lane'), 3);
    await at.race(2);
    const rows = await at.page.evaluate(
      '[...document.querySelectorAll("#race-table tr")].map((r) => [...r.children].map((c) => c.textContent))',
    );
    assert.deepEqual(
      rows.map((row) => [row[0], row[1], row[7]]),
      [
        ['mnist-linear-small', 'linear', '2'],
        ['mnist-lsh1-small', 'lsh, 1 round', '2'],
        ['mnist-softmax-small', 'softmax', '2'],
      ],
    );
    for (const row of rows) for (const cell of row.slice(2, 5)) assert.ok(number(cell) > 0, row.join());
    const [linear, , softmax] = rows;
    assert.equal(linear[5], linear[6], 'the state of linear attention stays');
    assert.match(softmax[5], / KB$/);
    assert.match(softmax[6], / MB$/, 'that of softmax grows');
    assert.equal(await at.count('#race .chart .line'), 6);
    for (let lane = 1; lane <= 3; ++lane) {
      const drawn = (await at.levels(`.lane:nth-child(${lane}) canvas`)).slice(280);
      assert.ok(
        drawn.some((v) => v > 100),
        `lane ${lane}`,
      );
    }
    await at.shot('race-light');
    const { idleSessions = 0, busySessions = 0 } = await at.call('ModelService/Statistics', {});
    assert.equal(Number(idleSessions) + Number(busySessions), 0, 'laps leave no session behind');
  });

  it('runs all at once, too, and only those that take part', async () => {
    await at.open({}, '#race');
    await at.ready('race');
    await at.page.evaluate(
      '[...document.querySelectorAll("#race-entrants label")].find((l) => /lsh1/.test(l.textContent)).click()',
    );
    assert.equal(await at.count('.lane'), 2);
    await at.page.click('#race-order label:last-of-type');
    await at.race(1);
    assert.equal(await at.count('#race-table tr'), 2);
  });
});
