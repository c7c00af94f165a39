// SPDX-License-Identifier: Apache-2.0
// The tab Digits.
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { PATIENCE } from './chromium.mjs';
import { watchedPages } from './watched_pages.mjs';

const SHEET = fileURLToPath(new URL('../../weights/demo-digits.png', import.meta.url));
const CTRL = 2;
const SHIFT = 8;

const at = watchedPages();
const hiddenShare = async () =>
  Number(/(\d+) % hidden/.exec(await at.page.evaluate('document.querySelector("#digits-editor").ariaLabel'))[1]);
const lastFrame = () => at.page.until('document.querySelectorAll(".best").length === 1', 'the last frame');
const isDisabled = () => at.page.evaluate('document.querySelector("#digits-complete").disabled');
const focusEditor = () => at.page.evaluate('document.querySelector("#digits-editor").focus()');

describe('Digits', () => {
  it('completes hidden pixels, with a heat map, and the same again by seed', async () => {
    await at.open();
    await at.set('#digits-seed', '7');
    await at.complete();
    await lastFrame();
    assert.equal(await at.count('.results figure'), 4);
    assert.match(await at.text('.results'), /bits · likeliest/);
    assert.match(await at.text('#heat-note'), /bits on the average/);
    const first = await at.levels('.results canvas');
    assert.ok(
      first.slice(0, 392).some((v) => v > 200),
      'the upper half is that of the digit',
    );
    assert.ok(
      first.slice(392).some((v) => v > 100),
      'something was drawn below it',
    );
    const heat = await at.levels('#heat');
    assert.ok(Math.max(...heat.slice(392)) > 200, 'what was unsure is bright');
    await at.shot('digits-light');

    await at.complete();
    await lastFrame();
    assert.deepEqual(await at.levels('.results canvas'), first);
    await at.set('#digits-seed', '8');
    await at.complete();
    await lastFrame();
    assert.notDeepEqual(await at.levels('.results canvas'), first);
  });

  it('shows pixels one by one in slow motion', async () => {
    await at.open();
    await at.page.click('#digits-slow');
    await at.set('#digits-samples', '16'); // which takes nine seconds to show
    await at.complete();
    // The hidden pixels of the last completion, by their colours.
    const hidden = async () => {
      const levels = await at.levels('.results figure:last-child canvas');
      return levels.slice(392).filter((v) => v === 64 || v === 48).length;
    };
    assert.ok((await hidden()) > 50, 'everything has come, and not all of it is shown');
    await at.page.click('#digits-slow');
    for (const end = Date.now() + PATIENCE; (await hidden()) > 20; ) assert.ok(Date.now() < end, 'it stays hidden');
  });

  it('downloads the picture', async () => {
    await at.open();
    await at.complete();
    const folder = mkdtempSync(join(tmpdir(), 'lintel-download-'));
    const { contextId } = at.page;
    await at.browser.send('Browser.setDownloadBehavior', {
      behavior: 'allow',
      downloadPath: folder,
      browserContextId: contextId,
    });
    await at.page.click('#digits-save');
    const file = join(folder, 'lintel-digits.png');
    let png = Buffer.alloc(0); // the name is there before the last byte is
    for (const end = Date.now() + PATIENCE; png.toString('latin1', png.length - 8, png.length - 4) !== 'IEND';) {
      assert.ok(Date.now() < end, 'nothing was downloaded');
      await new Promise((resolve) => setTimeout(resolve, 20));
      if (existsSync(file)) png = readFileSync(file);
    }
    assert.equal(png.toString('latin1', 1, 4), 'PNG');
    // Original, what was hidden, four completions and the heat map, eight times as large, with gaps of 8.
    assert.deepEqual([png.readUInt32BE(16), png.readUInt32BE(20)], [7 * (28 * 8 + 8) + 8, 28 * 8 + 16]);
    rmSync(folder, { recursive: true });
  });

  it('is painted by pointer', async () => {
    await at.open();
    await at.ready('digits');
    await at.set('#digits-mask', 'none');
    assert.equal(await hiddenShare(), 0);
    assert.equal(await isDisabled(), true, 'nothing is hidden');
    const { x, y, width } = await at.page.middle('#digits-editor');
    await at.page.mouse('mousePressed', x - width / 4, y, 1);
    await at.page.mouse('mouseMoved', x + width / 4, y, 1);
    await at.page.mouse('mouseReleased', x + width / 4, y);
    const painted = await hiddenShare();
    assert.ok(painted >= 4 && painted < 20, `${painted} %`);
    assert.equal(await isDisabled(), false);
    await at.page.click('#digits-undo');
    assert.equal(await hiddenShare(), 0);
  });

  it('is painted by keyboard', async () => {
    await at.open();
    await at.ready('digits');
    await at.set('#digits-mask', 'none');
    await focusEditor();
    await at.page.key(' ');
    const dot = await hiddenShare();
    assert.ok(dot >= 1);
    for (let i = 0; i < 10; ++i) await at.page.key('ArrowUp', SHIFT);
    assert.ok((await hiddenShare()) > dot);
    await at.says('#news', /^row 10, column 15, hidden/);
    await at.page.key('z', CTRL);
    for (let i = 0; i < 10; ++i) await at.page.key('z', CTRL);
    assert.equal(await hiddenShare(), 0);
  });

  it('takes drawings', async () => {
    await at.open();
    await at.ready('digits');
    await at.press('digits', 'New drawing');
    assert.equal(await hiddenShare(), 0);
    for (let i = 0; i < 6; ++i) await at.page.key('ArrowUp', SHIFT);
    await at.says('#news', /level 255/);
  });

  it('takes pictures', async () => {
    await at.open();
    await at.ready('digits');
    const { root } = await at.page.send('DOM.getDocument');
    const { nodeId } = await at.page.send('DOM.querySelector', { nodeId: root.nodeId, selector: '#digits-upload' });
    const before = await at.levels('#digits-editor');
    await at.page.send('DOM.setFileInputFiles', { nodeId, files: [SHEET] });
    await at.says('#digits-status', /demo-digits.png: centred/);
    assert.notDeepEqual(await at.levels('#digits-editor'), before);
    // White paper.
    await at.page.evaluate(`(async () => {
      const canvas = new OffscreenCanvas(50, 40);
      const context = canvas.getContext('2d');
      context.fillStyle = 'white';
      context.fillRect(0, 0, 50, 40);
      const files = new DataTransfer();
      files.items.add(new File([await canvas.convertToBlob()], 'paper.png', { type: 'image/png' }));
      const upload = document.querySelector('#digits-upload');
      upload.files = files.files;
      upload.dispatchEvent(new Event('change'));
    })()`);
    await at.says('#digits-status', /^paper.png: a blank picture$/);
  });

  it('stops on request', async () => {
    await at.open();
    await at.ready('digits');
    await at.set('#digits-mask', 'all');
    await at.set('#digits-samples', '16');
    // Both clicks come in one turn of the page: it may be done before the next.
    await at.page.evaluate(
      `document.querySelector('#digits-complete').click(), document.querySelector('#digits-stop').click()`,
    );
    await at.says('#digits-status', /^stopped$/);
    assert.equal(await isDisabled(), false);
  });

  it('shows refusals', async () => {
    await at.open();
    await at.ready('digits');
    await at.set('#digits-temperature', '-1');
    await at.page.evaluate('document.querySelector("#digits-form").noValidate = true');
    await at.page.click('#digits-complete');
    await at.says('#digits-status', /temperature/);
    assert.equal(await at.page.evaluate('document.querySelector("#digits-complete").hidden'), false);
  });
});
