// Connect's GET of methods that change nothing, asked for by its official clients.
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { load, servedSuite, service } from './house.mjs';

const { Code, ConnectError, createClient } = await load('@connectrpc/connect');
const node = await load('@connectrpc/connect-node');
const web = await load('@connectrpc/connect-web');

describe('clients with useHttpGet', () => {
  const house = servedSuite();

  const transports = {
    'from Node': (options) => node.createConnectTransport({ ...options, httpVersion: '1.1' }),
    'by fetch': (options) => web.createConnectTransport(options),
  };
  for (const [name, transport] of Object.entries(transports)) {
    for (const useBinaryFormat of [true, false]) {
      it(`ask by GET what changes nothing: ${name}, ${useBinaryFormat ? 'proto' : 'JSON'}`, async () => {
        const asked = [];
        const interceptors = [(next) => async (call) => {
          asked.push(call.requestMethod);
          return next(call);
        }];
        const to = transport({ baseUrl: house.http, useHttpGet: true, useBinaryFormat, interceptors });
        const models = createClient(service('ModelService'), to);
        assert.equal((await models.get({ name: 'bytes' })).name, 'bytes');
        assert.equal((await models.list({})).models.length, 2);
        await assert.rejects(models.get({ name: 'nosuch' }), (error) => ConnectError.from(error).code === Code.NotFound);
        await createClient(service('SessionService'), to).create({ model: 'tokens' });
        assert.deepEqual(asked, ['GET', 'GET', 'GET', 'POST']);
      });
    }
  }
});
