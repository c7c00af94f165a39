// SPDX-License-Identifier: Apache-2.0
// Three servers with one store behind gRPC's own ring_hash, which our client reaches by xds:///NAME.
//
// Needs LINTEL_SERVER and LINTEL_WRITE_TINY_MODELS, two binaries, and LINTEL_PACKAGES, where gRPC's packages and a
// copy of the client are.
import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { PATIENCE, eventually, freePort, serve } from '../client_node/serving.mjs';
import { controlPlane, installed } from './control_plane.mjs';
import { redisServer } from './redis.mjs';

const { LINTEL_PACKAGES, LINTEL_WRITE_TINY_MODELS } = process.env;
const SESSIONS = 48; // once in ten million runs one of three servers has none of them
const ENTRIES = 4096; // of the ring
const grpc = installed('@grpc/grpc-js');
const run = promisify(execFile);
const { Client } = await import(pathToFileURL(join(LINTEL_PACKAGES, 'client/node/lintel.mjs')));

let directory;
let redis;
let plane;
let undisturbed; // a server without a store, and a client of it
let twins;
let core; // {python, version}, the latter 1000 times the major version and the minor one; undefined: none
const addresses = [];
const servers = [];

const start = (i) =>
  serve(join(directory, 'tokens'), '--listen', addresses[i], '--session-store', redis.url, '--session-lease', '2s',
    '--replica-id', `replica-${i}`, '--outbox-tokens', '40', '--max-new-tokens', '100000', '--workers', '1');

// Notes which server answers each call that is about a session, in `answered`, by the session's key.
const noting = (answered) => (options, nextCall) =>
  new grpc.InterceptingCall(nextCall(options), {
    start(metadata, _, next) {
      const [key] = metadata.get('lintel-affinity');
      const listener = new grpc.ListenerBuilder().withOnReceiveMetadata((answer, nextAnswer) => {
        if (key !== undefined) answered.set(key, [...(answered.get(key) ?? []), answer.get('lintel-replica')[0]]);
        nextAnswer(answer);
      });
      next(metadata, listener.build());
    },
  });

// A client, and sessions that it made.
class House {
  answered = new Map();
  talks = [];

  constructor(address) {
    this.client = new Client(address, { interceptors: [noting(this.answered)], retry: PATIENCE, timeout: PATIENCE });
  }

  async open(count) {
    for (let i = 0; i < count; ++i) this.talks.push(new Talk(this, i + 1, await this.client.createSession()));
  }

  // One call on each session, all at once.
  say(count, talks = this.talks) {
    return Promise.all(talks.map((talk) => talk.say(count)));
  }
}

// A session: what was asked of it, and what came.
class Talk {
  calls = [];
  tokens = [];

  constructor(house, seed, { id, affinityKey }) {
    Object.assign(this, { house, seed, id, affinityKey });
  }

  // The servers that answered, call by call.
  get replicas() {
    return this.house.answered.get(this.affinityKey);
  }

  get last() {
    return this.replicas.at(-1);
  }

  async say(count, onValue = () => {}) {
    const prompt = this.calls.length === 0 ? { prompt: [1, 2, 3] } : {};
    this.calls.push(count);
    const request = { sessionId: this.id, ...prompt, maxNewTokens: count, sampling: { seed: this.seed } };
    for await (const { position, token } of this.house.client.generate(request)) {
      this.tokens.push(token);
      assert.equal(position, 2 + this.tokens.length);
      onValue(this.tokens.length);
    }
  }

  // The same calls, on a server that nothing happens to.
  async check() {
    const twin = new Talk(twins, this.seed, await twins.client.createSession());
    for (const count of this.calls) await twin.say(count);
    assert.equal(twin.tokens.length, this.calls.reduce((sum, count) => sum + count));
    assert.deepEqual(this.tokens, twin.tokens);
    await twins.client.deleteSession(twin.id);
  }
}

// A Python with grpcio, gRPC's own core, of 1.52 or later: before, its ring_hash crashes (grpc/grpc#31766).
async function findCore() {
  for (const python of [process.env.LINTEL_PYTHON, 'python3', '/usr/bin/python3'].filter(Boolean)) {
    try {
      const { stdout } = await run(python, ['-c', 'import grpc, lintel.v1.generation_pb2; print(grpc.__version__)']);
      const [major, minor] = stdout.split('.').map(Number);
      const version = major * 1000 + minor;
      if (version >= 1052) return { python, version };
    } catch {} // the next
  }
  return undefined;
}

// A call on each session by gRPC's core, which is to choose the server that answered last.
async function sayByCore(talks, count, target, options = []) {
  const env = { ...process.env, GRPC_EXPERIMENTAL_RING_HASH_SET_REQUEST_HASH_KEY: 'true' };
  const calling = run(core.python, [fileURLToPath(new URL('calls.py', import.meta.url))], { env, timeout: PATIENCE });
  const calls = talks.map(({ id, affinityKey, seed }) => ({ id, key: affinityKey, seed, count }));
  calling.child.stdin.end(JSON.stringify({ target, options, calls }));
  const answers = JSON.parse((await calling).stdout);
  assert.equal(answers.length, talks.length);
  for (const [i, { replica, tokens }] of answers.entries()) {
    assert.equal(replica, talks[i].last, "gRPC's core chose another server than grpc-js");
    talks[i].calls.push(count);
    talks[i].tokens.push(...tokens);
  }
}

// The number of them that each server answered last.
function shares(talks) {
  const counts = new Map(addresses.map((_, i) => [`replica-${i}`, 0]));
  for (const { last } of talks) counts.set(last, counts.get(last) + 1);
  return [...counts.values()];
}

describe('several servers', () => {
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-ring-'));
    execFileSync(LINTEL_WRITE_TINY_MODELS, [directory]);
    mkdirSync(join(directory, 'redis'));
    redis = await redisServer(join(directory, 'redis'));
    for (let i = 0; i < 3; ++i) addresses.push(`127.0.0.1:${await freePort()}`);
    for (let i = 0; i < 3; ++i) servers.push(await start(i));
    undisturbed = await serve(join(directory, 'tokens'), '--max-new-tokens', '100000', '--workers', '1');
    twins = new House(undisturbed.address);
    plane = await controlPlane(addresses, ENTRIES);
    core = await findCore();
    process.env.GRPC_XDS_BOOTSTRAP_CONFIG = plane.bootstrap; // grpc-js reads it once
    installed('@grpc/grpc-js-xds').register();
  });
  after(async () => {
    twins?.client.close();
    for (const server of [...servers, undisturbed]) await server?.stop();
    plane?.stop();
    await redis?.stop();
    rmSync(directory, { recursive: true, force: true });
  });

  describe('behind ring_hash', () => {
    let house;
    let homes; // the server of each session
    before(async () => {
      house = new House('xds:///ring');
      await house.open(SESSIONS);
    });
    after(() => house.client.close());

    it('have their own sessions each', { timeout: PATIENCE }, async (t) => {
      for (let round = 0; round < 4; ++round) await house.say(20);
      for (const { replicas } of house.talks) {
        assert.equal(replicas.length, 4);
        assert.equal(new Set(replicas).size, 1, `calls of one session went to ${replicas}`);
      }
      assert.ok(shares(house.talks).every((share) => share > 0), `sessions by server: ${shares(house.talks)}`);
      t.diagnostic(`sessions by server: ${shares(house.talks)}`);
      homes = new Map(house.talks.map((talk) => [talk, talk.last]));
    });

    it("are chosen alike by gRPC's core over xDS", { timeout: PATIENCE }, async (t) => {
      if (!core) return t.skip('no grpcio of 1.52 or later');
      await sayByCore(house.talks, 20, 'xds:///ring');
      return house.say(20); // which continues after those calls
    });

    it("are chosen alike by gRPC's core with the page's configuration", { timeout: PATIENCE }, async (t) => {
      if (!(core?.version >= 1071)) return t.skip('no grpcio of 1.71 or later');
      const page = readFileSync(new URL('../../docs/multi_server.md', import.meta.url), 'utf8');
      const [, config] = /```json\n(\{"loadBalancingConfig".*\})\n```/.exec(page);
      const options = [
        ['grpc.service_config', config.replaceAll('131072', String(ENTRIES))],
        ['grpc.lb.ring_hash.ring_size_cap', ENTRIES],
      ];
      await sayByCore(house.talks, 20, `ipv4:${addresses}`, options);
      return house.say(20);
    });

    it("have a killed one's sessions alone move, and give the same tokens", { timeout: 2 * PATIENCE }, async (t) => {
      const [streaming] = house.talks;
      const killed = homes.get(streaming);
      const i = Number(killed.slice('replica-'.length));
      let gone;
      let begin;
      let last = 0;
      let pause = 0;
      await streaming.say(12_000, (count) => {
        if (gone) pause = Math.max(pause, Date.now() - begin);
        begin = Date.now();
        last = count;
        if (count === 200) gone = servers[i].stop('SIGKILL').then(() => assert.ok(last < 12_000, 'the call was over before its server was'));
      });
      await gone;
      assert.notEqual(streaming.last, killed, 'the stream did not move');
      t.diagnostic(`the stream stood still for at most ${pause} ms`);
      for (let round = 0; round < 2; ++round) await house.say(20);
      const moved = house.talks.filter((talk) => talk.last !== homes.get(talk));
      t.diagnostic(`${moved.length} of ${SESSIONS} sessions moved; by server: ${shares(house.talks)}`);
      for (const [talk, home] of homes) {
        const where = new Set(talk.replicas.slice(-2));
        assert.equal(where.size, 1, 'a session moved twice');
        if (home === killed) assert.ok(!where.has(killed), 'a server that was killed has answered');
        else assert.ok(where.has(home), `a session of ${home}, which continues, is at ${[...where]}`);
      }
      if (core) await sayByCore(house.talks, 20, 'xds:///ring');
      servers[i] = await start(i);
    });

    it('get their sessions back when they are back', { timeout: 2 * PATIENCE }, async (t) => {
      const [streaming] = house.talks;
      const begin = Date.now();
      await eventually(async () => {
        await streaming.say(1);
        return streaming.last === homes.get(streaming);
      }, 'the return of a session');
      t.diagnostic(`${Date.now() - begin} ms after it is ready`);
      for (let round = 0; round < 2; ++round) {
        await house.say(20);
        for (const [talk, home] of homes) assert.equal(talk.last, home);
      }
      for (const talk of house.talks) await talk.check();
    });
  });

  it('have no sessions of their own behind round_robin, and give the same tokens', { timeout: PATIENCE }, async () => {
    const house = new House('xds:///turns');
    await house.open(6);
    for (let round = 0; round < 6; ++round) await house.say(20);
    const travelled = house.talks.filter(({ replicas }) => new Set(replicas).size > 1);
    assert.ok(travelled.length > 0, 'every session stayed with one server');
    for (const talk of house.talks) await talk.check();
    house.client.close();
  });
});
