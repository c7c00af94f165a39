// SPDX-License-Identifier: Apache-2.0
// The client's defaults: what it refuses, bounds and keeps to this machine.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { PATIENCE, serve } from './serving.mjs';

const { LINTEL_EXAMPLE, LINTEL_ROOT } = process.env;
const { Client } = await import(pathToFileURL(join(LINTEL_EXAMPLE, 'lintel.mjs')));
const run = promisify(execFile);

let mnist; // a server of weights/mnist-linear-small
let endless; // one of a tiny model of any length
let text; // one of a tiny model that was trained on texts of 32
let directory;

async function count(client, request) {
  let n = 0;
  for await (const _ of client.generate(request)) ++n;
  return n;
}

function withClient(address, options, work) {
  const client = new Client(address, { timeout: PATIENCE, ...options });
  return Promise.resolve(work(client)).finally(() => client.close());
}

before(async () => {
  directory = mkdtempSync(join(tmpdir(), 'lintel-node-'));
  await run(process.env.LINTEL_WRITE_TINY_MODELS, [directory]);
  mnist = await serve(join(LINTEL_ROOT, 'weights', 'mnist-linear-small'));
  endless = await serve(join(directory, 'tokens'));
  text = await serve(join(directory, 'text'));
});

after(async () => {
  for (const server of [mnist, endless, text]) assert.equal(await server?.stop(), 0);
  rmSync(directory, { recursive: true });
});

describe('a generation without a bound', () => {
  it('ends after 256 tokens where the model has no end', () =>
    withClient(endless.address, {}, async (client) => {
      assert.equal(await count(client, { prompt: [1] }), 256);
      assert.equal(await count(client, { prompt: [1], maxNewTokens: 300 }), 300);
      const { id } = await client.createSession();
      assert.equal(await count(client, { sessionId: id, prompt: [1] }), 256);
      await client.deleteSession(id);
    }));

  it('goes to the end of an image', () =>
    withClient(mnist.address, {}, async (client) => assert.equal(await count(client, {}), 783)));

  it('names the timeout it ran into', () =>
    withClient(endless.address, {}, async (client) => {
      const late = async () => {
        for await (const _ of client.generate({ prompt: [1], maxNewTokens: 1_000_000 }, { timeout: 300 }));
      };
      await assert.rejects(late, /DEADLINE_EXCEEDED.*the call had a timeout of 300 ms/);
    }));
});

describe('a window', () => {
  const prompt = Buffer.from('a text that is longer than what the model was trained on'.repeat(5));
  const generated = async (client, request) => {
    const all = [];
    let end;
    const whole = { prompt: [...prompt], maxNewTokens: 90, sampling: { seed: 5 }, ...request };
    for await (const { token } of client.generate(whole, { onFinish: (finish) => (end = finish) })) all.push(token);
    return { all, window: Number(end.window), restarts: Number(end.windowRestarts) };
  };

  it("is the server's choice unless a request names one, and its end says which it was", () =>
    withClient(text.address, {}, async (client) => {
      const chosen = await generated(client, {});
      assert.equal(chosen.window, 32);
      assert.equal(chosen.restarts, Math.floor((prompt.length + 90 - 1 - 32) / 16) + 1);
      assert.deepEqual(await generated(client, { window: 32 }), chosen);
      const short = { prompt: [1, 2], maxNewTokens: 60 };
      const off = await generated(client, { ...short, window: 0 });
      assert.deepEqual([off.window, off.restarts], [0, 0]);
      assert.notDeepEqual(off.all, (await generated(client, short)).all);
    }));

  it("is the server's choice for a session, unless it is made with another", () =>
    withClient(text.address, {}, async (client) => {
      for (const [options, window] of [[{}, 32], [{ window: 16 }, 16], [{ window: 0 }, 0]]) {
        const { id } = await client.createSession(options);
        assert.equal((await generated(client, { sessionId: id, prompt: [1], maxNewTokens: 60 })).window, window);
        await client.deleteSession(id);
      }
    }));
});

describe('an image', () => {
  const warnings = [];
  const { warn } = console;
  beforeEach(() => (console.warn = (text) => warnings.push(text)));
  afterEach(() => {
    console.warn = warn;
    warnings.length = 0;
  });
  const hidden = (i) => i >= 770;

  it('of another shape is refused, naming both', () =>
    withClient(mnist.address, {}, async (client) => {
      await assert.rejects(client.completeImage(new Uint8Array(400), (i) => i >= 200), {
        name: 'TypeError',
        message: 'the image has 400 tokens, model mnist-linear-small draws 28 x 28 = 784',
      });
      await assert.rejects(client.completeImage(new Uint8Array(784), hidden, { model: 'unknown' }), /NOT_FOUND/);
    }));

  it('of a model that draws none is refused', () =>
    withClient(endless.address, {}, (client) =>
      assert.rejects(client.completeImage(new Uint8Array(4), (i) => i > 1), /model tokens draws no images/)));

  it('dark on light is warned of', () =>
    withClient(mnist.address, {}, async (client) => {
      const digit = new Uint8Array(784);
      digit.fill(255, 300, 310);
      await client.completeImage(digit, hidden);
      assert.deepEqual(warnings, []);
      await client.completeImage(digit.map((v) => 255 - v), hidden);
      assert.equal(warnings.length, 1);
      assert.match(warnings[0], /border is light.*255 - pixel/);
    }));

  it('that times out has the image so far', () =>
    withClient(mnist.address, {}, async (client) => {
      const late = client.completeImage(new Uint8Array(784).fill(7), (i) => i > 1, { timeout: 1 });
      await assert.rejects(late, (error) => {
        assert.match(error.message, /DEADLINE_EXCEEDED/);
        assert.equal(error.image.length, 784);
        return true;
      });
    }));

  it('drawn by complete.mjs and completed there is not completed with its own noise', async () => {
    const draw = async (...flags) => {
      const out = join(directory, 'drawn.pgm');
      const command = [join(LINTEL_EXAMPLE, 'complete.mjs'), '--address', mnist.address, '--out', out, ...flags];
      await run(process.execPath, command);
      return [...readFileSync(out).subarray(-784)];
    };
    // A seed draws the same image, completed by any call.
    for (const seed of ['1', '18446744073709551615']) {
      const original = await withClient(mnist.address, {}, (client) =>
        client.completeImage(new Uint8Array(784), () => true, { sampling: { seed: BigInt(seed) } }));
      const completed = await draw('--seed', seed);
      assert.deepEqual(completed.slice(0, 392), [...original.slice(0, 392)]);
      const different = completed.filter((v, i) => v !== original[i]).length;
      assert.ok(different > 30, `${different} of 784 pixels differ`);
    }
  });
});

describe('a proxy', () => {
  const ELSEWHERE = 'model.invalid:50051'; // a reserved name
  const VARIABLES = ['grpc_proxy', 'https_proxy', 'http_proxy'];
  const environment = {};
  const sockets = [];
  let asked, proxy, address;

  beforeEach(async () => {
    asked = [];
    proxy = http.createServer();
    proxy.on('connect', (request, client) => {
      asked.push({ target: request.url, user: request.headers['proxy-authorization'] });
      const server = net.connect(Number(endless.address.split(':')[1]), '127.0.0.1', () => {
        client.write('HTTP/1.1 200 OK\r\n\r\n');
        server.pipe(client).pipe(server);
      });
      sockets.push(client, server);
      for (const socket of [client, server]) socket.on('error', () => {});
    });
    await new Promise((resolve) => proxy.listen(0, '127.0.0.1', resolve));
    address = `127.0.0.1:${proxy.address().port}`;
    for (const name of VARIABLES) {
      environment[name] = process.env[name];
      process.env[name] = `http://${address}`;
    }
  });

  afterEach(() => {
    for (const name of VARIABLES) {
      if (environment[name] === undefined) delete process.env[name];
      else process.env[name] = environment[name];
    }
    for (const socket of sockets.splice(0)) socket.destroy();
    proxy.close();
  });

  it('of the environment is not heeded', async () => {
    await withClient(endless.address, {}, (client) => client.models());
    await withClient(ELSEWHERE, { timeout: 3000 }, (client) => assert.rejects(client.models()));
    assert.deepEqual(asked, []);
  });

  it('that is named is the way to other machines, and not to this one', async () => {
    for (const name of VARIABLES) delete process.env[name];
    await withClient(endless.address, { proxy: address }, (client) => client.models());
    assert.deepEqual(asked, []);
    await withClient(ELSEWHERE, { proxy: `me:secret@${address}` }, (client) => client.models());
    const user = `Basic ${Buffer.from('me:secret').toString('base64')}`;
    assert.deepEqual(asked[0], { target: ELSEWHERE, user });
  });

  it('gets no token in plain text', () => {
    const through = () => new Client(ELSEWHERE, { proxy: address, token: 'secret' });
    assert.throws(through, /through a proxy in plain text/);
  });

  it('that is invalid is refused, without its password in the error', () => {
    for (const wrong of ['', 'host', 'host:', 'host:port', 'http://host:1', 'user:pass@host']) {
      assert.throws(
        () => new Client(ELSEWHERE, { proxy: wrong }),
        (error) => error instanceof TypeError && /^proxy: expected/.test(error.message) && !/pass@/.test(error.message),
      );
    }
  });
});
