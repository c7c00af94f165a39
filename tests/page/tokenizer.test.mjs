// SPDX-License-Identifier: Apache-2.0
// The tab Text with a model whose tokens have several bytes.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, it } from 'node:test';
import { watchedPages } from './watched_pages.mjs';

const directory = mkdtempSync(join(tmpdir(), 'lintel-page-'));
execFileSync(process.env.LINTEL_WRITE_TINY_MODELS, [directory]);

describe('Text of a model with a tokenizer', () => {
  after(() => rmSync(directory, { recursive: true }));
  const at = watchedPages('--model', join(directory, 'world'));
  const written = (n) => at.says(`.branch:nth-child(${n}) .hint:last-child`, /seed/);

  async function write() {
    await at.open({}, '#/text');
    await at.ready('text');
    await at.set('#text-model', 'world');
    await at.set('#text-prompt', 'there, 你好');
    await at.set('#text-count', '40');
    await at.set('#text-seed', '3');
    await at.page.click('#text-write');
    await written(1);
    return at.text('.branch .text');
  }

  it('is written as the tokens are detokenized, coloured by probability', async () => {
    const words = await write();
    assert.ok(words.startsWith('there, 你好'));
    assert.match(await at.text('.branch .hint:last-child'), /^\d+ tokens · \S+ bits a token · /);
    const { sessions } = await at.call('SessionService/List', { model: 'world' });
    const [{ id }] = sessions;
    const { ids } = await at.call('ModelService/Tokenize', { model: 'world', text: Buffer.from('there, 你好').toString('base64') });
    assert.ok(ids.length < 15);
    assert.equal(Number(sessions[0].position), ids.length + 40);
    assert.ok(id);
    assert.equal(await at.page.evaluate('document.querySelector(".text span").textContent'), 'there');
  });

  it('forks with another token in its place', async () => {
    const words = await write();
    await at.page.evaluate('document.querySelectorAll(".branch .text span")[3].click()');
    await at.page.evaluate('[...document.querySelectorAll(".alternatives button")].find((b) => !b.disabled).click()');
    await written(2);
    const other = await at.text('.branch:nth-child(2) .text');
    const kept = await at.page.evaluate(
      '[...document.querySelectorAll(".branch .text span")].slice(0, 3).map((s) => s.textContent).join("")',
    );
    assert.ok(other.startsWith(kept));
    assert.notEqual(other, words);
  });
});
