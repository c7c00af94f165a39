// SPDX-License-Identifier: Apache-2.0
// A client of several servers: it continues at another one where the first is killed, shuts down or refuses.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { PATIENCE, freePort } from './serving.mjs';

const { LINTEL_EXAMPLE, LINTEL_SERVER, LINTEL_WRITE_TINY_MODELS } = process.env;
const { Client, LintelError } = await import(pathToFileURL(join(LINTEL_EXAMPLE, 'lintel.mjs')));
const { Servers, addressesOf, isUnsent, split } = await import(pathToFileURL(join(LINTEL_EXAMPLE, 'servers.mjs')));

let directory;
before(() => {
  directory = mkdtempSync(join(tmpdir(), 'lintel-elsewhere-'));
  execFileSync(LINTEL_WRITE_TINY_MODELS, [directory]);
});
after(() => rmSync(directory, { recursive: true, force: true }));

// A lintel-server at an address, on a store that others have before and after it.
async function serveAt(address, store) {
  const child = spawn(
    LINTEL_SERVER,
    [
      ...['--model', join(directory, 'tokens'), '--listen', address, '--session-store', join(directory, store)],
      ...['--http-listen', 'off', '--drain-handover', '0s', '--outbox-tokens', '40', '--max-new-tokens', '100000'],
    ],
    { stdio: ['ignore', 'pipe', 'ignore'] },
  );
  const ended = new Promise((resolve) => child.once('exit', resolve));
  await new Promise((resolve) => createInterface(child.stdout).once('line', resolve));
  return {
    end(signal) {
      child.kill(signal);
      return ended;
    },
  };
}

async function stream(client, sessionId, count, onToken = () => {}) {
  const tokens = [];
  const request = { sessionId, prompt: [1, 2, 3], maxNewTokens: count, sampling: { seed: 7n } };
  for await (const { position, token } of client.generate(request)) {
    tokens.push(token);
    assert.equal(position, 2 + tokens.length);
    onToken(position);
  }
  return tokens;
}

describe('a client of several servers', () => {
  for (const how of ['SIGKILL', 'SIGTERM']) {
    it(`streams on while its server is ended by ${how}`, { timeout: 4 * PATIENCE }, async () => {
      const count = 12_000;
      const addresses = [`127.0.0.1:${await freePort()}`, `127.0.0.1:${await freePort()}`];
      const first = await serveAt(addresses[0], how);
      const client = new Client(addresses.join(','), { retry: PATIENCE, timeout: 4 * PATIENCE });
      let changed;
      let last = 0;
      const session = await client.createSession();
      const tokens = await stream(client, session.id, count, (position) => {
        last = position;
        if (position === 100) {
          changed = first.end(how).then(() => {
            assert.ok(last < count, 'the call was over before its server was');
            return serveAt(addresses[1], how);
          });
        }
      });
      const second = await changed;
      try {
        const twin = await client.createSession();
        assert.deepEqual(await stream(client, twin.id, count), tokens);
        assert.equal(tokens.length, count);
      } finally {
        client.close();
        await second.end('SIGTERM');
      }
    });
  }

  it('works without the first', async () => {
    const address = `127.0.0.1:${await freePort()}`;
    const server = await serveAt(address, 'unminded');
    const client = new Client(`127.0.0.1:${await freePort()},${address}`, { timeout: PATIENCE });
    try {
      assert.equal((await client.models()).length, 1);
      const tokens = [];
      for await (const { token } of client.generate({ prompt: [1, 2], maxNewTokens: 3 })) tokens.push(token);
      assert.equal(tokens.length, 3);
      const { id, affinityKey } = await client.createSession();
      assert.equal(affinityKey.length, 16);
      await client.deleteSession(id);
    } finally {
      client.close();
      await server.end('SIGTERM');
    }
  });

  it('reports that none of them answers', async () => {
    const client = new Client(`127.0.0.1:${await freePort()},127.0.0.1:${await freePort()}`, { timeout: PATIENCE });
    await assert.rejects(client.models(), (error) => error instanceof LintelError && isUnsent(error));
    client.close();
  });
});

describe('addresses', () => {
  it('are split at commas, and refused where they make no sense', () => {
    assert.deepEqual(split('a:1, b:2'), ['a:1', 'b:2']);
    assert.deepEqual(split('ipv4:1.2.3.4:5,1.2.3.5:5').length, 1);
    for (const [scheme, way] of [['http://', ''], ['https://', '; tlsCa encrypts']]) {
      const message = `address '${scheme}a:1': expected HOST:PORT of gRPC, without ${scheme}${way}`;
      assert.throws(() => new Client(`${scheme}a:1`), { name: 'TypeError', message });
    }
    for (const bad of ['a:1,', 'a:1,a:1']) assert.throws(() => new Client(bad), TypeError);
    assert.throws(() => new Client('127.0.0.1:1,10.0.0.1:1', { token: 'secret' }), TypeError);
  });

  it('are asked of the resolver for names alone', async () => {
    for (const none of ['127.0.0.1:1', '[::1]:1', 'unix:/x', 'dns:///a:1', 'localhost:///a']) assert.deepEqual(await addressesOf(none), []);
    assert.ok((await addressesOf('localhost:7')).every((address) => address.endsWith(':7')));
  });

  it('are left one after the other, and once by calls that fail together', async () => {
    const open = (address) => ({ address, services: {} });
    const servers = new Servers(['127.0.0.1:1', '127.0.0.1:2'], open);
    const failed = servers.current;
    assert.deepEqual(await Promise.all([servers.leave(failed, {}), servers.leave(failed, {})]), [true, true]);
    assert.equal(servers.current.address, '127.0.0.1:2');
    assert.equal(await servers.leave(servers.current, {}), true);
    assert.equal(servers.current.address, '127.0.0.1:1');
    assert.equal(await new Servers(['127.0.0.1:1'], open).leave(failed, {}), false);
  });
});
