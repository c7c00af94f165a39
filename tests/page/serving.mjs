// SPDX-License-Identifier: Apache-2.0
// The real server with trained models and HTTP, for tests of the page. Needs LINTEL_SERVER, a binary.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const weights = (name) => fileURLToPath(new URL(`../../weights/${name}`, import.meta.url));

// A lintel-server, by default on free ports; `url` is where the page is.
export async function serve(models, ...more) {
  const flags = models.flatMap((name) => ['--model', weights(name)]);
  if (!more.includes('--http-listen')) flags.push('--http-listen', '127.0.0.1:0');
  flags.push('--listen', '127.0.0.1:0', '--workers', '1', ...more);
  const child = spawn(process.env.LINTEL_SERVER, flags, { stdio: ['ignore', 'pipe', 'pipe'] });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  let log = '';
  child.stderr.on('data', (data) => (log += data));
  await Promise.race([
    new Promise((resolve) => createInterface(child.stdout).once('line', resolve)),
    ended.then(() => assert.fail(`lintel-server did not start:\n${log}`)),
  ]);
  // Log and output come by two pipes: the line was written before the server was ready, and may be read after it.
  let url;
  while (!(url = /HTTP on (http:\/\/\S+)/.exec(log)?.[1])) {
    assert.equal(child.exitCode, null, log);
    await new Promise((resolve) => child.stderr.once('data', resolve));
  }
  return {
    url: `${url}/`,
    log: () => log,
    stop(signal = 'SIGTERM') {
      child.kill(signal);
      return ended;
    },
  };
}
