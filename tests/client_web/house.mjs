// SPDX-License-Identifier: Apache-2.0
// What the tests of clients over HTTP share: the packages, the messages of lintel.v1, and a server.
//
// Needs LINTEL_SERVER and LINTEL_WRITE_TINY_MODELS, two binaries, LINTEL_ROOT, the repository,
// LINTEL_DESCRIPTORS, what protoc knows of lintel.v1, and to be run where the clients are installed.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before } from 'node:test';
import { pathToFileURL } from 'node:url';

const { LINTEL_DESCRIPTORS, LINTEL_ROOT, LINTEL_WRITE_TINY_MODELS } = process.env;
const installed = createRequire(join(process.cwd(), 'package.json'));

// A package that is installed.
export const load = (name) => import(pathToFileURL(installed.resolve(name)));

const { createFileRegistry, fromBinary } = await load('@bufbuild/protobuf');
const { FileDescriptorSetSchema } = await load('@bufbuild/protobuf/wkt');
const serving = await import(pathToFileURL(join(LINTEL_ROOT, 'tests/client_node/serving.mjs')));
export const { eventually } = serving;

const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(LINTEL_DESCRIPTORS)));
export const service = (name) => registry.getService(`lintel.v1.${name}`);

export const request = {
  model: 'bytes',
  prompt: { form: { case: 'text', value: new TextEncoder().encode('The quick') } },
  maxNewTokens: 200,
  sampling: { seed: 7n },
};

// A request of a model whose sequences have no end.
export const endless = { model: 'tokens', prompt: { form: { case: 'tokens', value: { ids: [1] } } } };

// Call it in a suite: it has a server of the models "bytes" and "tokens" then, with `http`, its address.
export function servedSuite() {
  const house = {};
  let directory;
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-web-'));
    execFileSync(LINTEL_WRITE_TINY_MODELS, [directory]);
    house.server = await serving.serve(join(directory, 'bytes'), '--model', join(directory, 'tokens'),
      '--http-listen', '127.0.0.1:0', '--max-new-tokens', '1000000000');
    house.http = await house.server.httpAddress();
  });
  after(async () => {
    if (house.server) assert.equal(await house.server.stop(), 0);
    rmSync(directory, { recursive: true, force: true });
  });
  return house;
}
