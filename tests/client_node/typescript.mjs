// SPDX-License-Identifier: Apache-2.0
// The types of the client, as TypeScript reads them with those of its packages. Needs LINTEL_EXAMPLE, a folder with the client
// and its packages.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { copyFileSync } from 'node:fs';
import { join } from 'node:path';
import { it } from 'node:test';
import { fileURLToPath } from 'node:url';

const { LINTEL_EXAMPLE } = process.env;

it('types hold in a program, and find what is wrong in it', () => {
  copyFileSync(fileURLToPath(new URL('./use.mts', import.meta.url)), join(LINTEL_EXAMPLE, 'use.mts'));
  const tsc = join(LINTEL_EXAMPLE, 'node_modules/typescript/bin/tsc');
  const flags = ['--noEmit', '--strict', '--target', 'es2022', '--module', 'nodenext'];
  const { status, stdout } = spawnSync(process.execPath, [tsc, ...flags, 'use.mts'], { cwd: LINTEL_EXAMPLE, encoding: 'utf8' });
  assert.equal(stdout, '');
  assert.equal(status, 0);
});
