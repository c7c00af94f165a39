// SPDX-License-Identifier: Apache-2.0
// The tab Race.
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { watchedPages } from './watched_pages.mjs';

const number = (text) => Number(text.replaceAll(',', ''));

describe('Race', () => {
  const at = watchedPages('--speculation', 'off');

  it('lets all kinds draw one image, and shows time and state by position', async () => {
    await at.open({}, '#/race');
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
    assert.deepEqual(
      rows.map((row) => row[8]),
      ['none', 'none', 'none'],
    );
    assert.equal(await at.page.evaluate('document.querySelector("#race-drafts").hidden'), true);
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
    await at.open({}, '#/race');
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

describe('Race on a server that uses draft tokens', () => {
  const at = watchedPages('--speculation', 'on');

  it('says so, with how many tokens came of them', async () => {
    await at.open({}, '#/race');
    await at.ready('race');
    assert.equal(await at.page.evaluate('document.querySelector("#race-drafts").hidden'), true);
    await at.race(1);
    assert.equal(await at.page.evaluate('document.querySelector("#race-drafts").hidden'), false);
    const note = await at.text('#race-drafts');
    const [, accepted, drawn] = /Draft tokens were used: ([\d,]+) of ([\d,]+) tokens/.exec(note).map(number);
    assert.ok(0 < accepted && accepted < drawn, note);
    assert.match(note, /--speculation off/);
    const cells = await at.page.evaluate(
      '[...document.querySelectorAll("#race-table tr")].map((row) => row.children[8].textContent)',
    );
    const sum = (part) => cells.reduce((total, cell) => total + (number(cell.split(' of ')[part] ?? '0') || 0), 0);
    assert.equal(sum(0), accepted, cells.join());
  });
});
