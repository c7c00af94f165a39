// SPDX-License-Identifier: Apache-2.0
// What all tabs have in common: keyboard, names, contrast, width.
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { watchedPages } from './watched_pages.mjs';

const TABS = ['chat', 'text', 'digits', 'race', 'server'];
const PHONE = { width: 360, height: 740, mobile: true };
const SIZES = [
  [1280, 800],
  [1366, 768],
  [360, 740],
];

const at = watchedPages('--model', new URL('../../weights/text-rwkv7-small', import.meta.url).pathname);

// Run in the page: pairs of its colours with less than `least` between them.
function lowContrasts(pairs) {
  const style = getComputedStyle(document.documentElement);
  const probe = document.body.appendChild(document.createElement('i'));
  const luminance = (name) => {
    probe.style.color = style.getPropertyValue(name);
    const [r, g, b] = getComputedStyle(probe)
      .color.match(/[\d.]+/g)
      .map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  return pairs.filter(([over, under, least]) => contrast(over, under) < least);
}

describe('The page', () => {
  it('goes by keyboard from tab to tab, as ARIA has it', async () => {
    await at.open({}, '#/chat');
    await at.page.evaluate('document.querySelector("#tab-chat").focus()');
    const state = () =>
      at.page.evaluate(`[document.activeElement.id, location.hash,
        ...[...document.querySelectorAll('[role=tab][aria-selected=true]')].map((tab) => tab.id),
        ...[...document.querySelectorAll('[role=tabpanel]:not([hidden])')].map((panel) => panel.id)].join(' ')`);
    for (const [key, tab] of [
      ['ArrowRight', 'text'],
      ['End', 'server'],
      ['ArrowRight', 'chat'],
      ['ArrowLeft', 'server'],
      ['Home', 'chat'],
    ]) {
      await at.page.key(key);
      assert.equal(await state(), `tab-${tab} #/${tab} tab-${tab} ${tab}`);
    }
    await at.ready('chat');
  });

  for (const [width, height] of SIZES) {
    it(`opens at its top, also after a reload, and at the chat that the server has: ${width}x${height}`, async () => {
      const place = `[scrollY, location.hash, document.querySelector('.top').getBoundingClientRect().top].join(' ')`;
      await at.open({ width, height, mobile: width < 500 });
      await at.ready('chat');
      assert.equal(await at.page.evaluate(place), '0 #/chat 0');
      for (const tab of TABS) {
        await at.page.evaluate(`document.querySelector('#tab-${tab}').click(); scrollTo(0, 1e6)`);
        await at.page.evaluate('globalThis.isOld = true');
        await at.page.send('Page.reload');
        await at.page.until('!globalThis.isOld && document.readyState === "complete"', 'the reload');
        await at.page.until(`document.querySelector('#connection').dataset.state === 'good'`, 'the connection');
        assert.equal(await at.page.evaluate(place), `0 #/${tab} 0`);
      }
    });
  }

  it('takes the addresses of earlier versions', async () => {
    await at.open({ width: 360, height: 740 }, '#race');
    assert.equal(await at.page.evaluate('[scrollY, location.hash].join(" ")'), '0 #/race');
  });

  it('has a name for every control, and one for every picture', async () => {
    await at.open({}, '#/digits');
    await at.complete();
    for (const tab of TABS) {
      await at.page.click(`#tab-${tab}`);
      if (tab === 'server')
        await at.page.until('document.querySelectorAll("#server-models tr").length > 0', 'the models');
      else await at.ready(tab);
      const { nodes } = await at.page.send('Accessibility.getFullAXTree');
      const roles =
        'button textbox spinbutton combobox checkbox radio slider tab image img application group progressbar table region'.split(
          ' ',
        );
      const seen = nodes.filter((node) => !node.ignored && roles.includes(node.role?.value));
      assert.ok(seen.length > 7, tab);
      assert.deepEqual(
        seen.filter((node) => !node.name?.value?.trim()).map((node) => node.role.value),
        [],
        tab,
      );
    }
  });

  for (const scheme of ['light', 'dark']) {
    it(`is readable: ${scheme}`, async () => {
      await at.open({ scheme });
      const pairs = ['--paper', '--card'].flatMap((under) =>
        ['--ink', '--quiet', '--accent', '--bad'].map((over) => [over, under, 4.5]),
      );
      pairs.push(['--on-accent', '--accent', 4.5], ['--accent', '--accent-soft', 4.5]);
      for (let i = 0; i < 8; ++i) pairs.push([`--s${i}`, '--card', 3]);
      assert.deepEqual(await at.page.evaluate(`(${lowContrasts})(${JSON.stringify(pairs)})`), []);
    });
  }

  for (const [name, options] of [
    ['dark', { scheme: 'dark' }],
    ['phone', PHONE],
    ['phone-dark', { ...PHONE, scheme: 'dark' }],
  ]) {
    it(`keeps within its width, and is kept as pictures: ${name}`, async () => {
      await at.open(options, '#/digits');
      const looks = async (tab) => {
        const wider = await at.page.evaluate('document.documentElement.scrollWidth - innerWidth');
        assert.ok(wider <= 0, `${tab} is ${wider} pixels too wide`);
        await at.page.evaluate('scrollTo(0, 1e6)');
        await at.shot(`${tab}-${name}`);
      };
      await at.complete();
      await looks('digits');
      await at.page.click('#tab-text');
      await at.ready('text');
      await at.set('#text-count', '80');
      await at.page.click('#text-write');
      await at.says('.branch .hint:last-child', /seed/);
      await at.page.evaluate('document.querySelectorAll(".text span")[40].click()');
      await looks('text');
      await at.page.click('#tab-chat');
      await at.ready('chat');
      await at.set('#chat-settings [name=tokens]', '40');
      await at.set('#chat-text', 'Good morrow, what news?');
      await at.page.click('#chat-send');
      await at.says('.turn > .hint', /tokens? read/);
      await looks('chat');
      await at.page.click('#tab-race');
      await at.race(2);
      await looks('race');
      await at.page.click('#tab-server');
      await at.page.until('document.querySelectorAll("#server-models tr").length === 5', 'the models');
      await looks('server');
    });
  }
});
