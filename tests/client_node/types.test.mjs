// SPDX-License-Identifier: Apache-2.0
// The types of the client and what it has. Needs LINTEL_EXAMPLE, a folder with the client and its packages.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { it } from 'node:test';
import { pathToFileURL } from 'node:url';

const { LINTEL_EXAMPLE } = process.env;
const client = await import(pathToFileURL(join(LINTEL_EXAMPLE, 'lintel.mjs')));
const types = readFileSync(join(LINTEL_EXAMPLE, 'lintel.d.mts'), 'utf8');

it('types have every export and every method of a client, and no other', () => {
  const declared = [...types.matchAll(/^export (?:class|function) (\w+)/gm)].map(([, name]) => name);
  assert.deepEqual(declared.sort(), Object.keys(client).sort());
  const [, body] = /^export class Client \{\n(.*?)^\}/ms.exec(types);
  const methods = [...body.matchAll(/^  (\w+)[(<]/gm)].map(([, name]) => name);
  assert.deepEqual(methods.sort(), Object.getOwnPropertyNames(client.Client.prototype).sort());
});
