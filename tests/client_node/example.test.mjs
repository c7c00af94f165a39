// SPDX-License-Identifier: Apache-2.0
// The Node example against the real server: the tokens are those of the C++ command line.
//
// Needs LINTEL_SERVER and LINTEL_CLI, two binaries, LINTEL_EXAMPLE, where the example and its packages
// are, and LINTEL_ROOT, the repository.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { PATIENCE, eventually, serve } from './serving.mjs';

const { LINTEL_CLI, LINTEL_EXAMPLE, LINTEL_ROOT } = process.env;
const { Client, LintelError } = await import(pathToFileURL(join(LINTEL_EXAMPLE, 'lintel.mjs')));
const run = promisify(execFile);

let mnist; // a server of weights/mnist-linear-small
let endless; // one of a tiny model of any length
let client; // of mnist
let directory;

async function cli(...flags) {
  return (await run(LINTEL_CLI, [...flags, '--address', mnist.address], { maxBuffer: 1 << 24 })).stdout;
}

async function example(name, ...flags) {
  return run(process.execPath, [join(LINTEL_EXAMPLE, name), '--address', mnist.address, ...flags], { maxBuffer: 1 << 24 });
}

async function collect(request, options) {
  const all = [];
  for await (const token of client.generate(request, options)) all.push(token);
  return all;
}

describe('the Node example', () => {
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-node-'));
    await run(process.env.LINTEL_WRITE_TINY_MODELS, [directory]);
    mnist = await serve(join(LINTEL_ROOT, 'weights', 'mnist-linear-small'));
    endless = await serve(join(directory, 'tokens'));
    client = new Client(mnist.address, { timeout: PATIENCE });
  });

  after(async () => {
    client?.close();
    for (const server of [mnist, endless]) assert.equal(await server?.stop(), 0);
    rmSync(directory, { recursive: true });
  });

  it('an adapter is named by a request, or by a session once and for all', async () => {
    const tiny = new Client(endless.address, { timeout: PATIENCE });
    try {
      const tokens = async (request) => {
        const all = [];
        const whole = { prompt: [3, 1, 4], maxNewTokens: 12, sampling: { seed: 7 }, ...request };
        for await (const { token } of tiny.generate(whole)) all.push(token);
        return all;
      };
      const [adapter] = (await tiny.model()).adapters;
      assert.equal(adapter.name, 'thin');
      const thin = await tokens({ adapter: 'thin' });
      assert.notDeepEqual(thin, await tokens({}));
      const session = await tiny.createSession({ adapter: 'thin' });
      assert.equal(session.adapter, 'thin');
      assert.deepEqual(await tokens({ sessionId: session.id }), thin);
      await tiny.deleteSession(session.id);
      await assert.rejects(tokens({ adapter: 'nosuch' }), /NOT_FOUND.*it has thin/);
      const flags = ['--prompt-tokens', '3,1,4', '--max-new-tokens', '12', '--seed', '7', '--adapter', 'thin'];
      const { stdout } = await run(process.execPath, [join(LINTEL_EXAMPLE, 'generate.mjs'), '--address', endless.address, ...flags]);
      assert.equal(stdout.trim(), thin.join(','));
    } finally {
      tiny.close();
    }
  });

  it('sessions are forked, taken back, read, and come back from snapshots and named states', async () => {
    const tiny = new Client(endless.address, { timeout: PATIENCE });
    try {
      const goOn = async (request) => {
        const all = [];
        const whole = { maxNewTokens: 6, sampling: { seed: 7 }, ...request };
        for await (const { token } of tiny.generate(whole)) all.push(token);
        return all;
      };
      const { id } = await tiny.createSession({ checkpoints: { everyTokens: 4, keep: 2 } });
      await goOn({ sessionId: id, prompt: [3, 1, 4] });
      const forks = await tiny.forkSession(id, { count: 2 });
      const snapshot = await tiny.snapshotSession(id);
      await tiny.saveState(id, 'saved');
      assert.deepEqual((await tiny.states()).map(({ name }) => name), ['saved']);
      const expected = await goOn({ sessionId: id });
      assert.equal((await tiny.rewindSession(id, 9)).position, '9');
      const restored = await tiny.restoreSession(snapshot, { verify: true });
      for (const sessionId of [id, restored.id, ...forks.map((fork) => fork.id)]) {
        assert.deepEqual(await goOn({ sessionId }), expected);
        await tiny.deleteSession(sessionId);
      }
      assert.deepEqual(await goOn({ initialState: 'saved' }), expected);
      const again = await tiny.createSession({ initialState: 'saved' });
      const history = [];
      await goOn({ sessionId: again.id, prompt: [5], maxNewTokens: 1 });
      for await (const token of tiny.history(again.id, { from: Number(again.position) })) history.push(token);
      assert.deepEqual(history[0], { position: 9, token: 5, source: 'PROMPT' });
      await tiny.deleteSession(again.id);
      await tiny.deleteState('saved');
      await assert.rejects(tiny.restoreSession(snapshot.subarray(1)), /INVALID_ARGUMENT|DATA_LOSS/);
    } finally {
      tiny.close();
    }
  });

  it('a seed gives the tokens and bits that the command line gives', async () => {
    const expected = JSON.parse(await cli('generate', '--prompt-tokens', '0,0,12', '--max-new-tokens', '200',
      '--seed', '18446744073709551615', '--format', 'jsonl'));
    let finish;
    const tokens = await collect(
      { prompt: [0, 0, 12], maxNewTokens: 200, sampling: { seed: 2n ** 64n - 1n }, log2Probs: true },
      { onFinish: (f) => (finish = f) },
    );
    assert.deepEqual(tokens.map((t) => t.token), expected.tokens);
    // The command line prints floats so that they read back exactly.
    assert.deepEqual(tokens.map((t) => t.log2Prob), expected.log2_probs.map(Math.fround));
    assert.deepEqual(tokens.map((t) => t.position), tokens.map((_, i) => 3 + i));
    assert.equal(finish.seed, '18446744073709551615');
    assert.equal(finish.reason, 'FINISH_REASON_LENGTH');
  });

  it('generate.mjs streams the tokens', async () => {
    const flags = ['--prompt-tokens', '0,0,12', '--max-new-tokens', '50', '--seed', '7'];
    const { stdout, stderr } = await example('generate.mjs', ...flags);
    assert.equal(stdout, await cli('generate', ...flags, '--format', 'tokens'));
    assert.match(stderr, /^50 tokens, seed 7, ended by FINISH_REASON_LENGTH/);
  });

  it('generate.mjs prints the refusal of the server', async () => {
    await assert.rejects(example('generate.mjs', '--prompt-tokens', '0,500'), (error) => {
      assert.equal(error.code, 1);
      assert.match(error.stderr, /INVALID_ARGUMENT: prompt\.tokens\.ids\[1\]/);
      return true;
    });
    await assert.rejects(example('generate.mjs', '--unknown'), { code: 2 });
  });

  it('flags that make no sense are refused before a server is called', async () => {
    for (const [name, flag, text] of [
      ...['0,,12', '0,x', '1.5', '0x10', '4294967296', ''].map((ids) => ['generate.mjs', '--prompt-tokens', ids]),
      ...['-1', '1.5', 'x', '', '18446744073709551616'].map((seed) => ['generate.mjs', '--seed', seed]),
      ['complete.mjs', '--seed', 'x'],
      ['generate.mjs', '--max-new-tokens', '10n'],
      ['generate.mjs', '--max-new-tokens', '4294967297'],
      ['generate.mjs', '--temperature', 'warm'],
    ]) {
      const command = [join(LINTEL_EXAMPLE, name), '--address', '127.0.0.1:1', `${flag}=${text}`];
      await assert.rejects(run(process.execPath, command), (error) => {
        assert.equal(error.code, 2, `${flag} ${text}: ${error.stderr}`);
        assert.match(error.stderr, new RegExp(`^${flag}.* is no .*\nUsage: `));
        return true;
      });
    }
  });

  it('BigInts may stand wherever numbers do', async () => {
    const span = (position) => [{ position, values: [0, 0, 7] }];
    const request = (n) => ({
      prompt: [n(0), n(0), n(12)],
      maxNewTokens: n(9),
      sampling: { seed: n(7), topK: n(3) },
      topLog2Probs: n(2),
    });
    const plain = await collect({ ...request(Number), given: span(5) });
    assert.equal(plain.length, 9);
    assert.deepEqual(plain.slice(2, 5).map((v) => [v.token, v.source]), [[0, 'GIVEN'], [0, 'GIVEN'], [7, 'GIVEN']]);
    assert.deepEqual(await collect({ ...request(BigInt), given: span(5n) }), plain);
    const { id } = await client.createSession({ maxTokens: 50n });
    assert.equal((await client.getSession(id)).maxTokens, '50');
    await client.deleteSession(id);
  });

  it('complete.mjs draws the lower half of an image', async () => {
    const drawn = JSON.parse(await cli('generate', '--seed', '3', '--format', 'jsonl')).tokens;
    const image = [0, ...drawn];
    const file = join(directory, 'in.pgm');
    const out = join(directory, 'out.pgm');
    writeFileSync(file, Buffer.concat([Buffer.from('P5\n28 28\n255\n'), Buffer.from(image)]));
    const { stdout } = await example('complete.mjs', '--image', file, '--out', out, '--seed', '4');
    assert.equal(stdout.split('\n').length, 15); // two rows a line
    assert.ok(!stdout.includes('\x1b')); // no colours in a pipe
    const completed = [...readFileSync(out).subarray(-784)];
    const lower = JSON.parse(await cli('generate', '--prompt-tokens', image.slice(0, 392).join(','), '--seed', '4',
      '--format', 'jsonl')).tokens;
    assert.deepEqual(completed, [...image.slice(0, 392), ...lower]);

    await example('complete.mjs', '--seed', '3', '--out', out); // draws an image, and its half again
    assert.deepEqual([...readFileSync(out).subarray(-784, -392)], image.slice(0, 392));
    const small = join(directory, 'small.pgm');
    writeFileSync(small, Buffer.concat([Buffer.from('P5\n2 2\n255\n'), Buffer.alloc(4)]));
    for (const [other, words] of [[join(LINTEL_EXAMPLE, 'lintel.mjs'), 'is no binary PGM'], [small, 'is 2x2, .* 28x28']]) {
      const stderr = new RegExp(`${words}.*; .lintel complete --images FILE --fit.`);
      await assert.rejects(example('complete.mjs', '--image', other), (error) => error.code === 1 && stderr.test(error.stderr));
    }
  });

  it('any pixels can be hidden', async () => {
    const image = Uint8Array.from([0, ...JSON.parse(await cli('generate', '--seed', '3', '--format', 'jsonl')).tokens]);
    const hidden = (i) => i % 7 === 0 && i < 500;
    const completed = await client.completeImage(image, hidden, { sampling: { seed: 5n } });
    for (const [i, pixel] of completed.entries()) {
      if (!hidden(i)) assert.equal(pixel, image[i]);
    }
    const given = [...image.keys()].filter((i) => i >= 7 && i < 498 && !hidden(i));
    const expected = JSON.parse(await cli('generate', '--prompt-tokens', image.slice(0, 7).join(','), '--seed', '5',
      '--max-new-tokens', '491', '--format', 'jsonl', ...given.map((i) => `--given=${i}=${image[i]}`))).tokens;
    assert.deepEqual([...completed.slice(7, 498)], expected);
    assert.deepEqual(await client.completeImage(image, () => false), image);
  });

  // More than any test reads, and more than the server sends unread.
  const LONG = { maxNewTokens: 1_000_000 };

  it('leaving the loop, or an abort signal, frees the slot on the server', async () => {
    const other = new Client(endless.address, { timeout: PATIENCE });
    const freed = () => eventually(async () => (await endless.metric('lintel_requests_running')) === 0, 'a free slot');
    for await (const _ of other.generate({ prompt: [1], ...LONG })) break;
    await freed();
    const controller = new AbortController();
    await assert.rejects(async () => {
      for await (const _ of other.generate({ prompt: [1], ...LONG }, { signal: controller.signal })) controller.abort();
    }, /CANCELLED/);
    await freed();
    await eventually(async () => (await endless.metric('lintel_cancellations_total')) === 2, 'two cancellations');
    const aborted = other.generate({ prompt: [1] }, { signal: AbortSignal.abort() });
    await assert.rejects(aborted.next(), /CANCELLED/);
    other.close();
  });

  it('errors name the fields', async () => {
    await assert.rejects(collect({ prompt: [1, 500], sampling: { temperature: -1 } }), (error) => {
      assert.ok(error instanceof LintelError);
      assert.deepEqual(error.violations.map((v) => v.field), ['prompt.tokens.ids[1]', 'sampling.temperature']);
      assert.match(error.message, /INVALID_ARGUMENT.*sampling\.temperature/);
      assert.match(error.requestId, /^[0-9a-f-]{36}$/);
      return true;
    });
    await assert.rejects(collect({}, { timeout: -1 }), /DEADLINE_EXCEEDED/);
  });

  it('a session continues where it was', async () => {
    const sampling = { seed: 9n };
    const whole = await collect({ prompt: [0, 0, 12], maxNewTokens: 20, sampling });
    const { id } = await client.createSession();
    const first = await collect({ sessionId: id, prompt: [0, 0, 12], maxNewTokens: 5, sampling });
    const second = await collect({ sessionId: id, maxNewTokens: 15, sampling });
    assert.deepEqual([...first, ...second], whole);
    assert.equal((await client.getSession(id)).position, '23');
    await client.deleteSession(id);
    await assert.rejects(client.getSession(id), /NOT_FOUND/);
  });

  it('a token is not sent in plain text to another machine [threat-18]', () => {
    assert.throws(() => new Client('192.0.2.1:1', { token: 'secret' }), /plain text/);
    assert.throws(() => new Client('127.0.0.1.example.org:1', { token: 'secret' }), /plain text/);
    for (const local of ['127.0.0.1:1', '[::1]:1', 'localhost:1', 'unix:/x']) new Client(local, { token: 'x' }).close();
  });

  it('talks TLS and sends a token', async () => {
    const path = (name) => join(directory, name);
    const newKey = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2'];
    await run('openssl', ['req', '-x509', ...newKey, '-subj', '/CN=Test', '-addext',
      'subjectAltName=DNS:localhost,IP:127.0.0.1', '-keyout', path('key.pem'), '-out', path('cert.pem')]);
    const { stdout } = await run(LINTEL_CLI, ['token', 'new', 'alice', '--append', path('known')]);
    writeFileSync(path('token'), stdout);
    const server = await serve(join(directory, 'tokens'), '--tls-cert', path('cert.pem'), '--tls-key', path('key.pem'),
      '--auth-tokens', path('known'));
    try {
      const flags = ['--address', server.address, '--prompt-tokens', '1', '--max-new-tokens', '5'];
      const generate = (...more) => run(process.execPath, [join(LINTEL_EXAMPLE, 'generate.mjs'), ...flags, ...more]);
      const answer = await generate('--tls-ca', path('cert.pem'), '--token-file', path('token'));
      assert.match(answer.stdout, /^\d+(,\d+){4}\n$/);
      await assert.rejects(generate('--tls-ca', path('cert.pem')), /UNAUTHENTICATED/);
      const plain = new Client(server.address, { timeout: PATIENCE });
      await assert.rejects(plain.models(), /UNAVAILABLE/);
      plain.close();
    } finally {
      assert.equal(await server.stop(), 0);
    }
  });

  it('runs the commands of the READMEs', async () => {
    const scripted = join(directory, 'qwen35');
    await run('python3', [join(LINTEL_ROOT, 'tests/support/scripted_model.py'), scripted]);
    // The model that a block names, the server for it, and the output.
    const numbers = /^[\d. \n-]+$/;
    const servers = [
      ['qwen35', await serve(scripted), /^It is sunny in Bern\.\nBern 134000$/],
      ['client.chat', await serve(join(LINTEL_ROOT, 'weights', 'text-rwkv7-small')), /\w+[^]*\{\n? *promptTokens: \d+[^]*\}\n[^]*\w/],
      ['text-linear-small', await serve(join(LINTEL_ROOT, 'weights', 'text-linear-small')), numbers],
      ['', mnist, numbers],
    ];
    for (const readme of ['client/README.md', 'client/node/README.md']) {
      const blocks = [...readFileSync(join(LINTEL_ROOT, readme), 'utf8').matchAll(/^```js\n(.*?)^```$/gms)];
      assert.notEqual(blocks.length, 0, readme);
      for (const [, block] of blocks) {
        const file = join(LINTEL_EXAMPLE, 'snippet.mjs');
        const [, { address }, printed] = servers.find(([name]) => block.includes(name));
        writeFileSync(file, block.replace('127.0.0.1:50051', address).replace('./client/node/', './'));
        const { stdout } = await run(process.execPath, [file]);
        assert.match(stdout.trim(), printed);
      }
    }
    for (const [name, server] of servers) if (name) assert.equal(await server.stop(), 0);
  });

  it('runs the code of the page of sessions', async () => {
    const page = readFileSync(join(LINTEL_ROOT, 'docs', 'sessions.md'), 'utf8');
    const [, block] = /^```js\n(.*?)^```$/ms.exec(page);
    const file = join(LINTEL_EXAMPLE, 'snippet.mjs');
    writeFileSync(file, block.replace('127.0.0.1:50051', mnist.address).replace('./client/node/', './'));
    const { stdout } = await run(process.execPath, [file]);
    assert.match(stdout, /^2 12 \w*PROMPT$/m);
    assert.equal(stdout.trim().split('\n').length, 20 + 23);
  });
});
