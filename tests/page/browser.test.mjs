// The page in a real Chromium against the real server: each tab does its job, complains of nothing, and asks nobody else.
// Screenshots go to LINTEL_SCREENSHOTS.
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Chromium, PATIENCE } from './chromium.mjs';
import { serve } from './serving.mjs';

const SCREENSHOTS = process.env.LINTEL_SCREENSHOTS;
mkdirSync(SCREENSHOTS, { recursive: true });

let server;
let browser;
let page;

before(async () => {
  server = await serve(['mnist-linear-small', 'mnist-softmax-small', 'mnist-lsh1-small', 'text-linear-small']);
  browser = await Chromium.start();
});
after(async () => {
  await browser?.stop();
  await server?.stop();
});

async function open(options = {}, tab = '') {
  page = await browser.page(options);
  await page.go(server.url + tab);
  await page.until('document.querySelector("#connection").dataset.state === "good"', 'the connection');
}

// Whatever a test did.
afterEach(async () => {
  if (!page) return;
  assert.deepEqual(page.complaints, []);
  const elsewhere = page.requests.filter(
    (url) => !/^(data|blob):/.test(url) && new URL(url).origin !== new URL(server.url).origin && url !== 'about:blank',
  );
  assert.deepEqual(elsewhere, []);
  assert.ok(page.requests.length > 10); // they are seen
  await page.close();
  page = undefined;
});

const shot = (name) => page.screenshot(join(SCREENSHOTS, `${name}.png`));
const text = (selector) => page.evaluate(`document.querySelector(${JSON.stringify(selector)}).textContent`);
const count = (selector) => page.evaluate(`document.querySelectorAll(${JSON.stringify(selector)}).length`);
const set = (selector, value) =>
  page.evaluate(
    `(() => { const e = document.querySelector(${JSON.stringify(selector)}); e.value = ${JSON.stringify(value)}; e.dispatchEvent(new Event('change')); })()`,
  );
const ready = (tab) =>
  page.until(
    `document.querySelector('#${tab} .primary') && !document.querySelector('#${tab} .primary').disabled`,
    `${tab} to be ready`,
  );
// The field of a tab by its label.
const fieldOf = (tab, label, value) =>
  page.evaluate(`(() => {
  const field = [...document.querySelectorAll('#${tab} .field')].find((f) => f.firstElementChild.textContent === ${JSON.stringify(label)});
  const control = field.querySelector('input, select, textarea');
  control.value = ${JSON.stringify(value)};
  control.dispatchEvent(new Event('change'));
})()`);
const press = (tab, label) =>
  page.evaluate(
    `[...document.querySelectorAll('#${tab} button')].find((b) => b.textContent === ${JSON.stringify(label)}).click()`,
  );
const hiddenShare = async () =>
  Number(/(\d+) % hidden/.exec(await page.evaluate('document.querySelector(".editor").getAttribute("aria-label")'))[1]);

async function complete() {
  await ready('digits');
  await page.click('#digits .primary');
  await page.until('/ pixels in /.test(document.querySelector("#digits .status").textContent)', 'the completion');
}

// The levels of a canvas, row by row.
const levels = (selector) =>
  page.evaluate(`(() => { const c = document.querySelector(${JSON.stringify(selector)});
  const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);
  return Array.from({ length: data.length / 4 }, (_, i) => Math.max(data[4 * i], data[4 * i + 1], data[4 * i + 2])); })()`);

describe('Digits', () => {
  it('completes what is hidden, with a heat map, and gives the picture away', async () => {
    await open();
    await ready('digits');
    await fieldOf('digits', 'Seed', '7');
    await complete();
    assert.equal(await count('.results figure'), 4);
    assert.match(await text('.results'), /bits · likeliest/);
    assert.match(await text('#digits .heat .hint'), /bits on the average/);
    const first = await levels('.results canvas');
    assert.ok(
      first.slice(0, 392).some((v) => v > 200),
      'the upper half is that of the digit',
    );
    assert.ok(
      first.slice(392).some((v) => v > 100),
      'something was drawn below it',
    );
    await shot('digits-light');

    // The same seed draws the same.
    await fieldOf('digits', 'Seed', '7');
    await complete();
    assert.deepEqual(await levels('.results canvas'), first);

    const folder = mkdtempSync(join(tmpdir(), 'lintel-download-'));
    await browser.send('Browser.setDownloadBehavior', {
      behavior: 'allow',
      downloadPath: folder,
      browserContextId: page.contextId,
    });
    await press('digits', 'Download PNG');
    for (const end = Date.now() + PATIENCE; !readdirSync(folder).includes('lintel-digits.png');) {
      assert.ok(Date.now() < end, 'nothing was downloaded');
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    const png = readFileSync(join(folder, 'lintel-digits.png'));
    assert.equal(png.toString('latin1', 1, 4), 'PNG');
    assert.deepEqual([png.readUInt32BE(16), png.readUInt32BE(20)], [7 * 232 + 8, 240]);
    rmSync(folder, { recursive: true });
  });

  it('is painted by pointer and by keyboard', async () => {
    await open();
    await ready('digits');
    await set('#digits .board .field select', 'none');
    assert.equal(await hiddenShare(), 0);
    assert.equal(await page.evaluate('document.querySelector("#digits .primary").disabled'), true, 'nothing is hidden');

    const { x, y, width } = await page.middle('.editor');
    await page.mouse('mousePressed', x - width / 4, y, 1);
    await page.mouse('mouseMoved', x + width / 4, y, 1);
    await page.mouse('mouseReleased', x + width / 4, y);
    const painted = await hiddenShare();
    assert.ok(painted >= 4 && painted < 20, `${painted} %`);

    await page.evaluate('document.querySelector(".editor").focus()');
    await page.key('z', 2); // ctrl
    assert.equal(await hiddenShare(), 0);
    await page.key(' ');
    const dot = await hiddenShare();
    assert.ok(dot >= 1);
    for (let i = 0; i < 10; ++i) await page.key('ArrowUp', 8); // shift
    assert.ok((await hiddenShare()) > dot);
    await page.until(
      '/^row 10, column 15, hidden/.test(document.querySelector("#news").textContent)',
      'what the brush is at',
    );
    assert.equal(await page.evaluate('document.querySelector("#digits .primary").disabled'), false);
  });

  it('takes drawings and pictures', async () => {
    await open();
    await ready('digits');
    await press('digits', 'New drawing');
    await page.evaluate('document.querySelector(".editor").focus()');
    for (let i = 0; i < 6; ++i) await page.key('ArrowUp', 8);
    await page.until('/level 255/.test(document.querySelector("#news").textContent)', 'ink');

    const file = join(mkdtempSync(join(tmpdir(), 'lintel-upload-')), 'five.png');
    writeFileSync(file, readFileSync(fileURLToPath(new URL('../../weights/demo-digits.png', import.meta.url))));
    const { root } = await page.send('DOM.getDocument');
    const { nodeId } = await page.send('DOM.querySelector', {
      nodeId: root.nodeId,
      selector: '#digits-upload',
    });
    await page.send('DOM.setFileInputFiles', { nodeId, files: [file] });
    await page.until('/five.png: centred/.test(document.querySelector("#digits .status").textContent)', 'the upload');
    rmSync(file);
  });

  it('stops when it is told to', async () => {
    await open();
    await ready('digits');
    await set('#digits .board .field select', 'all');
    await fieldOf('digits', 'Completions', '16');
    await page.click('#digits .primary');
    await press('digits', 'Stop');
    await page.until('document.querySelector("#digits .status").textContent === "stopped"', 'the stop');
  });

  it('tells what is refused', async () => {
    await open();
    await ready('digits');
    await fieldOf('digits', 'Temperature', '-1');
    await page.evaluate('document.querySelector("#digits form").noValidate = true');
    await page.click('#digits .primary');
    await page.until('/temperature/.test(document.querySelector("#digits .status").textContent)', 'the refusal');
    assert.equal(await page.evaluate('document.querySelector("#digits .primary").hidden'), false);
  });
});

describe('Text', () => {
  const branch = (n) => `.branch:nth-child(${n})`;
  const written = (n) =>
    page.until(
      `document.querySelectorAll('.branch').length >= ${n} && /seed/.test(document.querySelector('${branch(n)} .hint:last-child').textContent)`,
      `branch ${n}`,
    );
  const wordsOf = (n) => text(`${branch(n)} .text`);
  const choose = (n, character) =>
    page.evaluate(`document.querySelectorAll('${branch(n)} .text span')[${character}].click()`);

  it('writes, forks, rewinds and goes on', async () => {
    await open({}, '#text');
    await ready('text');
    await fieldOf('text', 'Bytes to write', '60');
    await fieldOf('text', 'Seed', '3');
    await page.click('#text .primary');
    await written(1);
    const first = await wordsOf(1);
    assert.ok(first.startsWith('Once upon a time'));
    assert.equal(Buffer.byteLength(first), 76);
    assert.match(await text('.branch .hint:last-child'), /76 bytes · .* bits a byte · .* tokens\/s · seed 3/);

    // Alternatives of a character, by pointer and by keyboard.
    const { x, y } = await page.middle('.branch .text span:nth-child(30)');
    await page.mouse('mouseMoved', x, y);
    await page.until('document.querySelectorAll(".alternatives li").length === 8', 'alternatives');
    assert.equal((await count('.alternatives .taken')) <= 1, true);
    await page.mouse('mouseMoved', 5, 5);
    await page.evaluate('document.querySelector(".branch .text").focus()');
    for (let i = 0; i < 21; ++i) await page.key('ArrowRight');
    await page.until('document.querySelectorAll(".alternatives li").length === 8', 'alternatives by keyboard');
    await page.key('Enter');
    await page.until('document.querySelector(".inspector.pinned")', 'the choice');

    // Another byte at its place: what comes before is shared.
    await page.evaluate('[...document.querySelectorAll(".alternatives button")].find((b) => !b.disabled).click()');
    await written(2);
    const second = await wordsOf(2);
    assert.equal(second.slice(0, 20), first.slice(0, 20));
    assert.notEqual(second[20], first[20]);
    assert.equal(await count(`${branch(2)} .shared`), 20);

    // Of the same seed a fork goes on as its source did.
    await choose(1, 39);
    await press('text', 'Fork behind it');
    await written(3);
    assert.equal((await wordsOf(3)).slice(0, 76), first);

    await choose(1, 29);
    await press('text', 'Rewind to it');
    await page.until(`document.querySelectorAll('${branch(1)} .text span').length === 30`, 'the rewind');
    await page.evaluate(
      `[...document.querySelectorAll('${branch(1)} button')].find((b) => b.textContent === 'Continue').click()`,
    );
    await written(1);
    assert.equal((await wordsOf(1)).slice(0, 76), first, 'what was taken back is drawn again');
    await shot('text-light');

    // Sessions that are deleted here are gone there.
    assert.equal(await sessions(), 3);
    await page.evaluate(`document.querySelector('${branch(2)} button[aria-label="Delete branch B"]').click()`);
    await page.until('document.querySelectorAll(".branch").length === 2', 'the branch to go');
    for (const end = Date.now() + PATIENCE; (await sessions()) !== 2;) assert.ok(Date.now() < end, 'the session stays');
  });

  const sessions = () =>
    page.evaluate(`fetch('/lintel.v1.ModelService/Statistics', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{}' })
    .then((r) => r.json()).then((s) => Number(s.idleSessions ?? 0) + Number(s.busySessions ?? 0))`);
});

describe('Race', () => {
  it('lets all kinds draw one image, and tells time and state by position', async () => {
    await open({}, '#race');
    await ready('race');
    assert.equal(await count('.lane'), 3);
    await fieldOf('race', 'Laps', '3');
    await page.click('#race .primary');
    await page.until('/was first/.test(document.querySelector("#race .status").textContent)', 'the race');
    const rows = await page.evaluate(
      '[...document.querySelectorAll("#race tbody tr")].map((r) => [...r.children].map((c) => c.textContent))',
    );
    assert.deepEqual(
      rows.map((r) => [r[0], r[1], r[7]]),
      [
        ['mnist-linear-small', 'linear', '3'],
        ['mnist-lsh1-small', 'lsh, 1 round', '3'],
        ['mnist-softmax-small', 'softmax', '3'],
      ],
    );
    for (const row of rows)
      for (const cell of row.slice(2, 5)) assert.ok(Number(cell.replace(',', '')) > 0, row.join());
    assert.equal(rows[0][5], rows[0][6], 'the state of linear attention stays');
    assert.match(rows[2][5], / KB$/);
    assert.match(rows[2][6], / MB$/, 'that of softmax grows');
    assert.equal(await count('#race .chart .line'), 6);
    for (let lane = 1; lane <= 3; ++lane) {
      assert.ok(
        (await levels(`.lane:nth-child(${lane}) canvas`)).slice(392).some((v) => v > 100),
        `lane ${lane}`,
      );
    }
    await shot('race-light');
  });

  it('runs all at once, too, and only those that take part', async () => {
    await open({}, '#race');
    await ready('race');
    await page.evaluate(
      '[...document.querySelectorAll(".entrants label")].find((l) => /lsh1/.test(l.textContent)).click()',
    );
    assert.equal(await count('.lane'), 2);
    await fieldOf('race', 'Laps', '1');
    await page.click('#race-order label:last-of-type');
    await page.click('#race .primary');
    await page.until('/was first/.test(document.querySelector("#race .status").textContent)', 'the race');
    assert.equal(await count('#race tbody tr'), 2);
  });
});

describe('Server', () => {
  it('tells models, sessions, throughput and queue', async () => {
    await open({}, '#server');
    await page.until('document.querySelectorAll("#server tbody tr").length >= 5', 'the tables');
    const all = await text('#server');
    for (const name of ['mnist-linear-small', 'mnist-softmax-small', 'mnist-lsh1-small', 'text-linear-small'])
      assert.ok(all.includes(name), name);
    assert.match(all, /constant/);
    // What is done now is seen.
    const before = await page.evaluate('Number(document.querySelector(".tile small").textContent.replace(/\\D/g, ""))');
    await page.evaluate(`fetch('/lintel.v1.SessionService/Create', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{"model": "text-linear-small"}' }).then((r) => r.json())
      .then((s) => (window.made = s.id))`);
    await page.until('document.querySelector("#server").textContent.includes(window.made.slice(0, 8))', 'the session');
    await page.click('#tab-digits');
    await complete();
    await page.click('#tab-server');
    await page.until(
      `Number(document.querySelector('.tile small').textContent.replace(/\\D/g, '')) >= ${before} + 4 * 392`,
      'what was drawn',
    );
    await shot('server-light');
    await page.evaluate(
      `fetch('/lintel.v1.SessionService/Delete', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ id: window.made }) }).then((r) => r.text())`,
    );
  });
});

describe('The page', () => {
  it('goes by keyboard from tab to tab, as ARIA has it', async () => {
    await open();
    await page.evaluate('document.querySelector("#tab-digits").focus()');
    const state = () =>
      page.evaluate(
        '[document.activeElement.id, [...document.querySelectorAll("[role=tab]")].filter((t) => t.getAttribute("aria-selected") === "true").map((t) => t.id).join(), [...document.querySelectorAll("[role=tabpanel]")].filter((p) => !p.hidden).map((p) => p.id).join(), location.hash].join(" ")',
      );
    await page.key('ArrowRight');
    assert.equal(await state(), 'tab-text tab-text text #text');
    await page.key('End');
    assert.equal(await state(), 'tab-server tab-server server #server');
    await page.key('ArrowRight');
    assert.equal(await state(), 'tab-digits tab-digits digits #digits');
    await page.key('ArrowLeft');
    assert.equal(await state(), 'tab-server tab-server server #server');
    await page.until('document.querySelectorAll("#server tbody tr").length > 0', 'the server to be told');
  });

  it('has a name for every control, and one for every picture', async () => {
    await open();
    for (const tab of ['digits', 'text', 'race', 'server']) {
      await page.click(`#tab-${tab}`);
      await page.until(`document.querySelector('#${tab}').children.length > 0`);
      if (tab !== 'server') await ready(tab);
    }
    await complete0();
    const { nodes } = await page.send('Accessibility.getFullAXTree');
    const roles = new Set([
      'button',
      'textbox',
      'spinbutton',
      'combobox',
      'checkbox',
      'slider',
      'tab',
      'image',
      'application',
      'group',
      'progressbar',
      'table',
    ]);
    const seen = nodes.filter((n) => !n.ignored && roles.has(n.role?.value));
    assert.ok(seen.length > 10);
    assert.deepEqual(
      seen.filter((n) => !n.name?.value?.trim()).map((n) => n.role.value),
      [],
    );

    async function complete0() {
      await page.click('#tab-digits');
      await complete();
    }
  });

  it('is readable in light and dark: contrast of 4.5 and more', async () => {
    for (const scheme of ['light', 'dark']) {
      const mine = await browser.page({ scheme });
      await mine.go(server.url);
      await mine.until('document.querySelector("#connection").dataset.state === "good"');
      const low = await mine.evaluate(`(() => {
        const style = getComputedStyle(document.documentElement);
        const rgb = (name) => { const d = document.createElement('i'); d.style.color = style.getPropertyValue(name); document.body.append(d);
          const c = getComputedStyle(d).color.match(/[\\d.]+/g).map(Number); d.remove(); return c; };
        const light = (name) => rgb(name).slice(0, 3).map((v) => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; })
          .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
        const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
        const out = [];
        for (const under of ['--paper', '--card']) for (const over of ['--ink', '--quiet', '--accent', '--bad']) out.push([over, under, contrast(over, under)]);
        out.push(['--on-accent', '--accent', contrast('--on-accent', '--accent')], ['--accent', '--accent-soft', contrast('--accent', '--accent-soft')]);
        for (let i = 0; i < 8; ++i) { const c = contrast('--s' + i, '--card'); if (c < 3) out.push(['--s' + i, '--card', c]); }
        return out.filter((o) => o[2] < 4.5);
      })()`);
      assert.deepEqual(low, [], scheme);
      await mine.close();
    }
    await open();
  });

  for (const [name, options] of [
    ['dark', { scheme: 'dark' }],
    ['phone', { width: 360, height: 740, mobile: true }],
    ['phone-dark', { width: 360, height: 740, mobile: true, scheme: 'dark' }],
  ]) {
    it(`keeps within the width, and is kept as pictures: ${name}`, async () => {
      await open(options);
      await complete();
      await shot(`digits-${name}`);
      await page.click('#tab-text');
      await ready('text');
      await fieldOf('text', 'Bytes to write', '80');
      await page.click('#text .primary');
      await page.until('/seed/.test(document.querySelector(".branch .hint:last-child")?.textContent)', 'the text');
      await page.evaluate('document.querySelectorAll(".text span")[40].click()');
      await shot(`text-${name}`);
      await page.evaluate('document.querySelector(".branch button[aria-label^=Delete]").click()');
      await page.click('#tab-race');
      await ready('race');
      await fieldOf('race', 'Laps', '2');
      await page.click('#race .primary');
      await page.until('/was first/.test(document.querySelector("#race .status").textContent)', 'the race');
      await shot(`race-${name}`);
      await page.click('#tab-server');
      await page.until('document.querySelectorAll("#server tbody tr").length >= 5', 'the tables');
      await shot(`server-${name}`);
      for (const tab of ['digits', 'text', 'race', 'server']) {
        await page.click(`#tab-${tab}`);
        const wide = await page.evaluate('document.documentElement.scrollWidth - innerWidth');
        assert.ok(wide <= 0, `${tab} is ${wide} pixels too wide`);
      }
    });
  }
});
