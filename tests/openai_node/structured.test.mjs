// SPDX-License-Identifier: Apache-2.0
// Structured output of the real server against another validator: documents that random weights write for schemas of
// JSON-Schema-Test-Suite, zod and pydantic are valid by ajv. Formats of texts are left to tests/server/grammar.
//
// Needs LINTEL_SERVER and LINTEL_WRITE_TINY_MODELS, two binaries, and LINTEL_PACKAGES, where ajv is.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { serve } from '../client_node/serving.mjs';

const { LINTEL_PACKAGES, LINTEL_WRITE_TINY_MODELS } = process.env;
const validator = async (path, options) => {
  const { default: loaded } = await import(pathToFileURL(join(LINTEL_PACKAGES, 'node_modules/ajv/dist', path)));
  return () => new loaded.default({ strict: false, validateFormats: false, multipleOfPrecision: 12, ...options });
};
// ajv reads drafts 6 and 7 by one class, 2020-12 by another. One for each schema: ids of several would clash.
const DRAFTS = { 'http://json-schema.org/draft-07/schema': await validator('ajv.js') };
const newest = await validator('2020.js');

const golden = (name) => JSON.parse(readFileSync(join(import.meta.dirname, '../golden/chat/schema', name), 'utf8'));
// Every eighth schema is asked for a document with each change, others each day, and every one for six at night.
const TODAY = Number(process.env.LINTEL_CASE_SEED ?? Math.floor(Date.now() / 86400e3));
const isNight = process.env.LINTEL_NIGHTLY === '1';
const schemas = [...golden('cases.json').made, ...golden('libraries.json')]
  .filter((_, place) => isNight || place % 8 === TODAY % 8);
const CHOICES = isNight ? 6 : 1; // of each schema
const SENDERS = 4;

// A model with random weights ends a text of JSON by itself where its quotation mark is likely.
const END_TOKEN = 1460;
const QUOTATION_MARK = 1;

describe('structured output', () => {
  let directory;
  let server;
  let url;
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-structured-'));
    await promisify(execFile)(LINTEL_WRITE_TINY_MODELS, [directory]);
    server = await serve(join(directory, 'chat'), '--http-listen', '127.0.0.1:0');
    url = await server.httpAddress();
  });
  after(async () => {
    await server?.stop();
    rmSync(directory, { recursive: true, force: true });
  });

  // Returns the texts for one schema that end by themselves, or the reason for which it is refused.
  async function documentsOf(schema) {
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({
        model: 'chat', messages: [{ role: 'user', content: 'Write.' }], n: CHOICES, seed: 7, max_tokens: 250,
        logit_bias: { [END_TOKEN]: 7, [QUOTATION_MARK]: 5 },
        response_format: { type: 'json_schema', json_schema: { name: 'document', schema, strict: true } } }) });
    const answer = await response.json();
    if (response.status === 400) return { refused: answer.error.message };
    assert.equal(response.status, 200, JSON.stringify(answer));
    const ended = answer.choices.filter(({ finish_reason: reason }) => reason === 'stop');
    return { texts: ended.map(({ message }) => message.content) };
  }

  it('never makes a document that another validator refuses', async (test) => {
    const left = schemas.entries();
    const answers = [];
    const send = async () => {
      for (const [place, { schema }] of left) answers[place] = await documentsOf(schema);
    };
    await Promise.all(Array.from({ length: SENDERS }, send));

    // Only now: a schema may keep ajv busy for longer than a connection waits for its request.
    const invalid = [];
    const unread = [];
    let unmet = 0;
    let documents = 0;
    let used = 0;
    for (const [place, { from, name, schema }] of schemas.entries()) {
      const { refused, texts } = answers[place];
      if (refused !== undefined) {
        assert.match(refused, /cannot be met by any text$/, `${from} ${name}`);
        ++unmet;
        continue;
      }
      let isValid;
      try {
        isValid = (DRAFTS[schema.$schema?.replace(/#$/, '')] ?? newest)().compile(schema);
      } catch (error) {
        unread.push(`${from} ${name}: ${error.message}`);
        continue;
      }
      for (const text of texts) {
        ++documents;
        if (!isValid(JSON.parse(text))) invalid.push({ from, name, schema, text, errors: isValid.errors });
      }
      used += texts.length > 0;
    }
    const counts = `${documents} documents of ${used} schemas, ${invalid.length} invalid; of ${schemas.length} schemas ` +
      `${unmet} cannot be met, ${unread.length} ajv cannot read: ${unread.join('; ')}`;
    test.diagnostic(counts);
    assert.deepEqual(invalid.slice(0, 3), [], counts);
    const least = Math.floor((schemas.length * 250) / 359);
    assert.ok(used >= least && documents >= least * CHOICES && unread.length <= (isNight ? 2 : 1), counts);
  });
});
