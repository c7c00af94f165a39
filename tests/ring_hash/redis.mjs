// SPDX-License-Identifier: Apache-2.0
// A redis-server on loopback, which keeps its data in a directory.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { freePort } from '../client_node/serving.mjs';

export async function redisServer(directory) {
  const port = await freePort();
  const flags = { port, bind: '127.0.0.1', dir: directory, save: '', appendonly: 'yes', 'maxmemory-policy': 'noeviction' };
  const words = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, String(value)]);
  const child = spawn('redis-server', words, { stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  let log = '';
  await new Promise((resolve, reject) => {
    createInterface(child.stdout).on('line', (line) => {
      log += `${line}\n`;
      if (line.includes('Ready to accept connections')) resolve();
    });
    ended.then(() => reject(new Error(`redis-server did not start:\n${log}`)));
  });
  return {
    url: `redis://127.0.0.1:${port}`,
    stop() {
      child.kill('SIGTERM');
      return ended;
    },
  };
}
