// SPDX-License-Identifier: Apache-2.0
// axe-core, from npm (LINTEL_PAGE_PACKAGES), finds nothing in the page: in light and dark, at the sizes of usual windows.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { MARKDOWN, answerNext } from './answers.mjs';
import { watchedPages } from './watched_pages.mjs';

const AXE = readFileSync(join(process.env.LINTEL_PAGE_PACKAGES, 'node_modules/axe-core/axe.min.js'), 'utf8');
const SIZES = [
  [1280, 800],
  [1366, 768],
  [360, 740],
];

const at = watchedPages('--model', new URL('../../weights/text-rwkv7-small', import.meta.url).pathname);

// Checks the page as it is. DevTools runs axe: the page's Content-Security-Policy stays. least: rules that apply; a
// dialog hides most of the page from them.
async function check(what, least = 40) {
  const { passes, violations } = await at.page.evaluate(`axe.run().then(({ passes, violations }) => ({
    passes: passes.map(({ id, nodes }) => [id, nodes.length]),
    violations: violations.map(({ id, nodes }) => id + ': ' + nodes.map((n) => n.target + ' ' + n.failureSummary).join('; ')) }))`);
  assert.deepEqual(violations, [], what);
  const contrasts = passes.find(([id]) => id === 'color-contrast');
  const counts = `${passes.length} rules passed, contrast of ${contrasts?.[1] ?? 0} elements`;
  assert.ok(passes.length >= least && contrasts?.[1] > 0, `${what}: ${counts}`);
}

async function ask(text) {
  await at.set('#chat-text', text);
  await at.page.evaluate('document.querySelector("#chat-form").requestSubmit()');
  await at.page.until('document.querySelector("#chat-stop").hidden', 'the answer');
}
const press = (label) =>
  at.page.evaluate(`[...document.querySelectorAll('.turn button')].find((b) => b.textContent === '${label}').click()`);

describe('axe-core finds nothing', () => {
  for (const scheme of ['light', 'dark']) {
    for (const [width, height] of SIZES) {
      const size = `${width}x${height}`;
      it(`in Chat: ${size}, ${scheme}`, async () => {
        await at.open({ width, height, scheme, mobile: width < 500 }, '#/chat');
        await at.page.evaluate(`${AXE}; 0`);
        await at.ready('chat');
        await check('a new conversation');
        await at.shot(`chat-new-${size}-${scheme}`);
        await answerNext(at.page, { reasoning: 'It asks for all of it.', content: MARKDOWN });
        await ask('Everything that Markdown has, please.');
        await answerNext(at.page, { content: 'Short.' });
        await press('Regenerate');
        await at.page.until('document.querySelector("#chat-stop").hidden', 'the answer');
        await at.page.evaluate('document.querySelector(".siblings button").click()');
        await at.page.evaluate('document.querySelector(".turn details").open = true');
        await check('Markdown, reasoning and branches');
        await at.shot(`chat-markdown-${size}-${scheme}`);

        await at.page.evaluate('document.querySelector("#chat-settings [name=colours]").click()');
        await at.set('#chat-settings [name=tokens]', '40');
        await ask('Good morrow, what news?');
        await at.page.evaluate(
          `for (const span of document.querySelectorAll('.coloured span')) span.style.setProperty('--surprise', 1)`,
        );
        await check('colours of probability, all at their strongest');
        await at.shot(`chat-colours-${size}-${scheme}`);

        const call = { call_id: 'a', name: 'get_time', arguments: '{"place":"Verona"}' };
        await answerNext(at.page, { calls: [call] });
        await ask('What time is it?');
        await check('a call');
        await at.set('#chat-settings [name=temperature]', '-1');
        await ask('Hello');
        await at.says('#chat-status', /Temperature/);
        await check('a failure');
        for (const panel of ['list', 'settings']) {
          if (await at.page.evaluate(`document.querySelector('#chat-${panel}-panel').hidden`)) {
            await at.page.click(`#chat-show-${panel}`);
          }
          await check(panel);
          await at.shot(`chat-${panel}-${size}-${scheme}`);
          if (width < 500) await at.page.click(`#chat-${panel}-panel .close`);
        }
        await press('Delete');
        await check('a question', 15);
        at.page.complaints.length = 0; // Chromium's of the status 400
      });

      it(`in the other tabs: ${size}, ${scheme}`, async () => {
        await at.open({ width, height, scheme, mobile: width < 500 }, '#/digits');
        await at.page.evaluate(`${AXE}; 0`);
        await at.complete();
        await check('digits');
        await at.page.click('#tab-text');
        await at.ready('text');
        await at.set('#text-count', '40');
        await at.page.click('#text-write');
        await at.says('.branch .hint:last-child', /seed/);
        await check('text');
        await at.page.click('#tab-race');
        await at.race(1);
        await check('race');
        await at.page.click('#tab-server');
        await at.page.until('document.querySelectorAll("#server-models tr").length > 0', 'the models');
        await check('server');
      });
    }
  }
});
