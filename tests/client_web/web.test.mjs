// SPDX-License-Identifier: Apache-2.0
// The official clients of Connect and gRPC-Web from npm against the real server, over HTTP/1.1.
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { endless, eventually, load, request, servedSuite, service } from './house.mjs';

const { Code, ConnectError, createClient } = await load('@connectrpc/connect');
const node = await load('@connectrpc/connect-node');
const web = await load('@connectrpc/connect-web');

let house;

const transports = {
  'Connect from Node, proto': () => node.createConnectTransport({ baseUrl: house.http, httpVersion: '1.1', useBinaryFormat: true }),
  'Connect from Node, JSON': () => node.createConnectTransport({ baseUrl: house.http, httpVersion: '1.1', useBinaryFormat: false }),
  'Connect by fetch': () => web.createConnectTransport({ baseUrl: house.http }),
  'gRPC-Web from Node': () => node.createGrpcWebTransport({ baseUrl: house.http, httpVersion: '1.1' }),
  'gRPC-Web by fetch': () => web.createGrpcWebTransport({ baseUrl: house.http }),
};

async function tokensOf(client, request) {
  const tokens = [];
  let finished = 0;
  for await (const message of client.generate(request)) {
    for (const chunk of message.chunks) tokens.push(...chunk.tokens);
    finished += message.finished.length;
  }
  assert.equal(finished, 1);
  return tokens;
}

describe('clients from npm over HTTP', () => {
  house = servedSuite();

  let expected; // by the first
  for (const [name, transport] of Object.entries(transports)) {
    describe(name, () => {
      it('lists the models', async () => {
        const { models } = await createClient(service('ModelService'), transport()).list({});
        assert.deepEqual(models.map((model) => model.name).sort(), ['bytes', 'tokens']);
      });
      it('streams the tokens that every other client gets', async () => {
        const got = await tokensOf(createClient(service('GenerationService'), transport()), request);
        assert.equal(got.length, 200);
        expected ??= got;
        assert.deepEqual(got, expected);
      });
      it('reports errors by their code, message and details', async () => {
        const client = createClient(service('ModelService'), transport());
        await assert.rejects(client.get({ name: 'nosuch' }), (error) => {
          assert.ok(error instanceof ConnectError);
          assert.equal(error.code, Code.NotFound);
          assert.match(error.rawMessage, /nosuch/);
          return true;
        });
        const generation = createClient(service('GenerationService'), transport());
        await assert.rejects(tokensOf(generation, { ...request, sampling: { topP: 7 } }), (error) => {
          assert.equal(error.code, Code.InvalidArgument);
          assert.match(error.rawMessage, /top_p/);
          assert.equal(error.details.length, 1);
          return true;
        });
      });
      it('has a timeout', async () => {
        const client = createClient(service('GenerationService'), transport());
        const consume = async () => {
          for await (const message of client.generate(endless, { timeoutMs: 100 })) assert.ok(message);
        };
        await assert.rejects(consume(), (error) => error.code === Code.DeadlineExceeded);
      });
      it('ends its call when it goes', async () => {
        const client = createClient(service('GenerationService'), transport());
        const leaving = new AbortController();
        const consume = async () => {
          for await (const message of client.generate(endless, { signal: leaving.signal })) {
            assert.ok(message);
            leaving.abort();
          }
        };
        await assert.rejects(consume(), (error) => error.code === Code.Canceled);
        await eventually(async () => (await house.server.metric('lintel_streams')) === 0, 'the end of the call');
      });
    });
  }
});
