// SPDX-License-Identifier: Apache-2.0
// What an error says where gRPC alone knows why a call failed.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { PATIENCE, eventually, freePort, serve } from './serving.mjs';

const { LINTEL_EXAMPLE } = process.env;
const { Client, LintelError } = await import(pathToFileURL(join(LINTEL_EXAMPLE, 'lintel.mjs')));
const { plainWords } = await import(pathToFileURL(join(LINTEL_EXAMPLE, 'errors.mjs')));
const grpc = createRequire(join(LINTEL_EXAMPLE, 'lintel.mjs'))('@grpc/grpc-js');
const run = promisify(execFile);

let directory;

before(async () => {
  directory = mkdtempSync(join(tmpdir(), 'lintel-node-'));
  await run(process.env.LINTEL_WRITE_TINY_MODELS, [directory]);
});
after(() => rmSync(directory, { recursive: true }));

async function failure(call) {
  try {
    await call();
  } catch (error) {
    assert.ok(error instanceof LintelError, error.stack);
    return error;
  }
  return assert.fail('nothing failed');
}

async function read(client, request, onToken = () => {}) {
  for await (const token of client.generate(request)) onToken(token);
}

describe('an error', () => {
  it('of every kind of call without a server names the address and the reason, in plain words', async () => {
    const address = `127.0.0.1:${await freePort()}`;
    for (const call of [
      (client) => client.models(),
      (client) => read(client, { prompt: [1], maxNewTokens: 2 }),
      (client) => client.createSession(),
      (client) => client.restoreSession(Buffer.from('abc')),
      (client) => client.snapshotSession('a'),
    ]) {
      const client = new Client(address, { timeout: PATIENCE });
      const error = await failure(() => call(client));
      client.close();
      assert.equal(error.message, `UNAVAILABLE: no server answers at ${address}: connection refused`);
      assert.equal(error.code, grpc.status.UNAVAILABLE);
      assert.match(error.details, /ECONNREFUSED/);
      assert.equal(error.unreached, true);
      assert.doesNotMatch(error.stack, /14 UNAVAILABLE|No connection established/);
    }
  });

  it('of a connection that is lost says so', async () => {
    const server = await serve(join(directory, 'tokens'));
    const client = new Client(server.address, { timeout: PATIENCE });
    let killed;
    const error = await failure(() =>
      read(client, { prompt: [1], maxNewTokens: 100_000 }, () => (killed ??= server.stop('SIGKILL'))),
    );
    client.close();
    await killed;
    assert.equal(error.message, 'UNAVAILABLE: the connection to the server was lost');
    assert.notEqual(error.details, 'the connection to the server was lost');
    assert.equal(error.unreached, false);
  });

  it('of a client that is closed says so, at once', async () => {
    const client = new Client(`127.0.0.1:${await freePort()}`, { timeout: PATIENCE });
    client.close();
    for (const call of [
      () => client.models(),
      () => read(client, { prompt: [1], maxNewTokens: 2 }),
      () => client.restoreSession(Buffer.from('abc')),
    ]) {
      assert.equal((await failure(call)).message, 'CANCELLED: the client is closed');
    }
  });

  it('of a copy of a session in use asks for its position', async () => {
    const server = await serve(join(directory, 'tokens'), '--max-new-tokens', '1000000000');
    const client = new Client(server.address, { timeout: PATIENCE });
    const { id } = await client.createSession();
    const abort = new AbortController();
    const reading = (async () => {
      for await (const _ of client.generate({ sessionId: id, prompt: [1], maxNewTokens: 1e9 }, { signal: abort.signal }));
    })().catch((error) => error);
    await eventually(async () => (await client.getSession(id)).busy, 'a call on the session');
    const { message } = await failure(() => client.forkSession(id));
    assert.match(message, /^ABORTED: .* is in use by another call: a copy of it needs `position`$/);
    abort.abort();
    await reading;
    client.close();
    assert.equal(await server.stop(), 0);
  });

  it('has the words of the server where there are any, and plain ones for those of grpc-js', () => {
    const { CANCELLED, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, UNIMPLEMENTED } = grpc.status;
    const words = (code, details) => plainWords({ code, details, address: 'there:7', timeout: 20 }).message;
    for (const [code, details, expected] of [
      [UNAVAILABLE, 'No connection established. Last error: null. Resolution note: ', 'no server answers at there:7: no connection'],
      [UNAVAILABLE, 'Name resolution failed for target dns:there:7', 'no server answers at there:7: this host name is not known'],
      [UNAVAILABLE, 'No connection established. Last error: Error: connect ENOENT /x. Resolution note: ', 'no server answers at there:7: there is no such socket'],
      [UNAVAILABLE, 'Connection dropped', 'the connection to the server was lost'],
      [UNAVAILABLE, 'read ECONNRESET', 'the connection to the server was lost'],
      [UNAVAILABLE, 'model a is being loaded', 'model a is being loaded'],
      [INTERNAL, 'read ECONNRESET', 'read ECONNRESET'],
      [UNIMPLEMENTED, 'Received HTTP status code 404', 'what answers at there:7 is no gRPC server: HTTP 404'],
      [CANCELLED, 'Cancelled on client', 'the call was cancelled here'],
      [DEADLINE_EXCEEDED, 'Deadline exceeded after 0.02s', 'the call took too long; the call had a timeout of 20 ms'],
    ]) {
      assert.equal(words(code, details), expected);
    }
  });
});
