// SPDX-License-Identifier: Apache-2.0
// Calls on sessions that outlive the server, with one that is killed and started again on purpose.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import net from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { PATIENCE } from './serving.mjs';

const { LINTEL_EXAMPLE, LINTEL_ROOT } = process.env;
const { Client, LintelError } = await import(pathToFileURL(join(LINTEL_EXAMPLE, 'lintel.mjs')));
const require = createRequire(join(LINTEL_EXAMPLE, 'lintel.mjs'));
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');
const protobuf = require('protobufjs');
const { v1 } = grpc.loadPackageDefinition(
  protoLoader.loadSync(['lintel/v1/generation.proto', 'lintel/v1/session.proto'], {
    includeDirs: [join(LINTEL_ROOT, 'proto')],
    longs: String,
    enums: String,
    defaults: true,
    oneofs: true,
  }),
).lintel;

const COUNT = 6;
const positions = Array.from({ length: COUNT }, (_, i) => 2 + i);
const tokenOf = (seed, position) => Number((BigInt(seed) * 31n + BigInt(position) * 7n) % 251n);

const refusal = (code, details = 'on purpose') => ({ code, details });
const GONE = refusal(grpc.status.UNAVAILABLE);
const CANCELLED = refusal(grpc.status.CANCELLED); // by a server that ends
const BUSY = refusal(grpc.status.ABORTED);

// A refusal with google.rpc.ErrorInfo, as the server gives it.
function reasoned(code, reason, metadata = {}) {
  const root = new protobuf.Root();
  root.resolvePath = (_, file) => (file.startsWith('google/protobuf/') ? file : join(LINTEL_ROOT, 'proto', file));
  root.loadSync(['google/rpc/status.proto', 'google/rpc/error_details.proto']);
  const info = root.lookupType('google.rpc.ErrorInfo');
  const status = root.lookupType('google.rpc.Status');
  const value = info.encode(info.create({ reason, domain: 'lintel', metadata })).finish();
  const details = [{ type_url: 'type.googleapis.com/google.rpc.ErrorInfo', value }];
  const trailer = new grpc.Metadata();
  trailer.set('grpc-status-details-bin', Buffer.from(status.encode(status.create({ code, details })).finish()));
  return { ...refusal(code), metadata: trailer };
}

let fake;
let client;

// Tokens are a function of seed and position. killAt: after so many of them the next call waits for
// kill(). script: how the next ones end at once.
class DurableServer {
  durability = 'DURABILITY_INPUT';
  killAt = undefined;
  sendsFrom = undefined; // positions that were not asked for are sent from here on
  script = [];
  calls = [];
  gets = 0;
  port = 0;
  sockets = new Set();

  async open() {
    this.server = new grpc.Server();
    this.server.addService(v1.GenerationService.service, { generate: (call) => this.generate(call) });
    const session = () => ({ id: 'it', durability: this.durability });
    this.server.addService(v1.SessionService.service, {
      create: (_, answer) => answer(null, session()),
      get: (_, answer) => answer(null, session(++this.gets)),
    });
    this.inner = await new Promise((resolve, reject) =>
      this.server.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), (error, port) =>
        error ? reject(error) : resolve(port),
      ),
    );
    await this.start();
  }

  close() {
    this.kill();
    this.server.forceShutdown();
  }

  // A way to it on `port`, which kill() cuts off as the death of a process does: without a word.
  async start() {
    this.way = net.createServer((client) => {
      const server = net.connect(this.inner, '127.0.0.1');
      for (const [from, to] of [[client, server], [server, client]]) {
        this.sockets.add(from.on('error', () => {}).on('close', () => to.destroy()));
        from.pipe(to);
      }
    });
    await new Promise((resolve) => this.way.listen(this.port, '127.0.0.1', resolve));
    this.port = this.way.address().port;
  }

  kill() {
    this.way.close();
    this.sockets.forEach((socket) => socket.resetAndDestroy());
    this.sockets.clear();
  }

  generate(call) {
    this.calls.push(structuredClone(call.request));
    const step = this.script.shift();
    if (step) return call.emit('error', step);
    const { killAt } = this;
    this.killAt = undefined;
    const { seed } = call.request.sampling;
    const first = Math.max(2, Math.min(Number(call.request.fromPosition), this.sendsFrom ?? Infinity));
    for (let position = first; position < 2 + COUNT; ++position) {
      const tokens = [tokenOf(seed, position)];
      call.write({ chunks: [{ firstPosition: position, source: 'VALUE_SOURCE_SAMPLED', tokens, log2Probs: [-position] }] });
      if (position - first + 1 === killAt) return undefined;
    }
    call.write({ finished: [{ seed, position: 2 + COUNT }] });
    return call.end();
  }
}

// The output of a call; onToken(tokens) is awaited.
async function read({ sessionId = 'it', onToken, ...options } = {}) {
  const seen = { tokens: [], finishes: [] };
  const request = { sessionId, prompt: [0, 7], maxNewTokens: COUNT, log2Probs: true };
  try {
    for await (const token of client.generate(request, { onFinish: (f) => seen.finishes.push(f), ...options })) {
      seen.tokens.push(token);
      await onToken?.(seen.tokens);
    }
  } catch (error) {
    assert.ok(error instanceof LintelError, error.stack);
    seen.error = error;
  }
  return seen;
}

function checkWhole({ tokens, finishes, error }) {
  assert.equal(error, undefined);
  assert.equal(finishes.length, 1);
  assert.deepEqual(tokens.map((t) => t.position), positions);
  assert.deepEqual(tokens.map((t) => t.token), positions.map((p) => tokenOf(finishes[0].seed, p)));
  assert.deepEqual(tokens.map((t) => t.log2Prob), positions.map((p) => -p));
}

function killedAt(count) {
  fake.killAt = count;
  const before = fake.calls.length;
  return read({
    async onToken(tokens) {
      if (tokens.length !== count || fake.calls.length !== before + 1) return;
      fake.kill();
      await fake.start();
    },
  });
}

beforeEach(async () => {
  fake = new DurableServer();
  await fake.open();
  client = new Client(`127.0.0.1:${fake.port}`, { timeout: PATIENCE, retry: PATIENCE });
});

afterEach(() => {
  client.close();
  fake.close();
});

describe('a call on a session that outlives the server', () => {
  it('is repeated when it is killed at any token, with each position once', async () => {
    for (const count of positions.keys()) {
      fake.calls = [];
      checkWhole(await killedAt(count + 1));
      const [first, second] = fake.calls;
      assert.equal(Number(second.fromPosition), 2 + count + 1);
      assert.deepEqual({ ...second, fromPosition: first.fromPosition }, first);
      assert.equal(first.callId.length, 36);
    }
  });

  it('yields each token once when the server repeats some', async () => {
    fake.sendsFrom = 2;
    checkWhole(await killedAt(3));
  });

  it('waits out transient errors, and ends with others', async () => {
    fake.script = [GONE, BUSY, GONE];
    checkWhole(await read());
    for (const code of [grpc.status.INVALID_ARGUMENT, grpc.status.DATA_LOSS, grpc.status.FAILED_PRECONDITION]) {
      fake.script = [GONE, refusal(code)];
      assert.equal((await read()).error.code, code);
    }
    fake.script = [BUSY]; // another call holds the session
    assert.equal((await read()).error.code, grpc.status.ABORTED);
  });

  it('is repeated when a server cancels it, as one that ends does', async () => {
    fake.script = [CANCELLED, BUSY, CANCELLED];
    checkWhole(await read());
    assert.equal(fake.calls.length, 4);
    assert.equal(new Set(fake.calls.map(({ callId }) => callId)).size, 1);
  });

  it('is not repeated when it is cancelled here', async () => {
    for (const count of [1, 3]) {
      fake.calls = [];
      fake.killAt = count;
      const abort = new AbortController();
      const onToken = (tokens) => tokens.length === count && abort.abort();
      const { tokens, error } = await read({ signal: abort.signal, onToken });
      assert.equal(error.code, grpc.status.CANCELLED);
      assert.equal(tokens.length, count);
      assert.equal(fake.calls.length, 1);
    }
  });

  it('says why it was refused, by name', async () => {
    fake.script = [reasoned(grpc.status.FAILED_PRECONDITION, 'POSITION_MISMATCH', { position: '120' })];
    const { error } = await read();
    assert.equal(error.reason, 'POSITION_MISMATCH');
    assert.deepEqual(error.facts, { position: '120' });
    fake.script = [BUSY];
    const busy = (await read()).error;
    assert.equal(busy.reason, '');
    assert.deepEqual(busy.facts, {});
  });

  it('waits for the session that a lost server holds', async () => {
    fake.script = [reasoned(grpc.status.ABORTED, 'SESSION_HELD')];
    checkWhole(await read());
  });

  it('ends when the server stays away', async () => {
    fake.killAt = 2;
    const start = Date.now();
    const { tokens, error } = await read({ retry: 500, onToken: (t) => t.length === 2 && fake.kill() });
    assert.equal(error.code, grpc.status.UNAVAILABLE);
    assert.deepEqual(tokens.map((t) => t.position), [2, 3]);
    assert.ok(Date.now() - start >= 500);
  });

  it('asks the server once', async () => {
    await read();
    await read();
    assert.equal(fake.gets, 1);
  });

  it('asks nothing about a session that was made here', async () => {
    await client.createSession();
    checkWhole(await read());
    assert.equal(fake.gets, 0);
  });
});

describe('other calls', () => {
  it('are never repeated', async () => {
    for (const [durability, options] of [
      ['DURABILITY_NONE', {}],
      ['DURABILITY_TOKEN', { sessionId: '' }],
      ['DURABILITY_TOKEN', { retry: 0 }],
    ]) {
      fake.durability = durability;
      fake.calls = [];
      fake.script = [GONE];
      assert.equal((await read(options)).error.code, grpc.status.UNAVAILABLE);
      assert.equal(fake.calls.length, 1);
      assert.equal(fake.calls[0].callId, '');
    }
    fake.durability = 'DURABILITY_NONE';
    fake.calls = [];
    fake.script = [CANCELLED];
    assert.equal((await read()).error.code, grpc.status.CANCELLED);
    assert.equal(fake.calls.length, 1);
  });
});
