// SPDX-License-Identifier: Apache-2.0
// The real server, for tests of the client. Needs LINTEL_SERVER, a binary.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import http from 'node:http';
import net from 'node:net';
import { createInterface } from 'node:readline';

const { LINTEL_SERVER } = process.env;
export const PATIENCE = 120_000; // ms for what must happen soon, on a machine that is busy with other things

export async function eventually(condition, what) {
  for (const end = Date.now() + PATIENCE; !(await condition());) {
    assert.ok(Date.now() < end, `${what} did not come about`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

// A port without a listener.
export const freePort = () =>
  new Promise((resolve) => {
    const probe = net.createServer().listen(0, '127.0.0.1', () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });

// A lintel-server with metrics, by default on a free port.
export async function serve(model, ...more) {
  const where = more.includes('--listen') ? [] : ['--listen', '127.0.0.1:0'];
  if (!more.includes('--http-listen')) where.push('--http-listen', 'off');
  const flags = [...where, '--metrics-listen', '127.0.0.1:0', ...more];
  const child = spawn(LINTEL_SERVER, ['--model', model, ...flags], { stdio: ['ignore', 'pipe', 'pipe'] });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  let log = '';
  child.stderr.on('data', (data) => (log += data));
  const ready = await Promise.race([
    new Promise((resolve) => createInterface(child.stdout).once('line', resolve)),
    ended.then(() => assert.fail(`lintel-server did not start:\n${log}`)),
  ]);
  return {
    address: ready.replace('lintel-server ready on ', ''),
    stop(signal = 'SIGTERM') {
      child.kill(signal);
      return ended;
    },
    // The address of HTTP, with --http-listen.
    async httpAddress() {
      const address = () => /HTTP on (https?:\/\/\S+)/.exec(log)?.[1];
      await eventually(address, 'the line about HTTP');
      return address();
    },
    // The sum of a metric over its labels.
    async metric(name) {
      const address = () => /metrics on (http:\/\/\S+)/.exec(log)?.[1];
      await eventually(address, 'the line about metrics');
      const text = await get(address());
      const lines = text.split('\n').filter((l) => l.startsWith(`${name}{`) || l.startsWith(`${name} `));
      assert.notEqual(lines.length, 0, `the server has no metric ${name}`);
      return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' '))), 0);
    },
  };
}

// On a connection of its own: one that is kept may be closed by the server as the next request is sent.
export function get(url) {
  return new Promise((resolve, reject) => {
    const request = http.get(url, { agent: false }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (data) => (text += data));
      response.on('end', () => resolve(text)).on('error', reject);
    });
    request.on('error', reject);
  });
}
