// SPDX-License-Identifier: Apache-2.0
// Connect's GET of methods that change nothing, asked for by its official clients.
import assert from 'node:assert/strict';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { describe, it } from 'node:test';
import { load, servedSuite, service } from './house.mjs';

const { Code, ConnectError, createClient } = await load('@connectrpc/connect');
const node = await load('@connectrpc/connect-node');
const web = await load('@connectrpc/connect-web');

// The HTTP methods of what `asks` sends: clients decide on them behind their interceptors.
async function methodsOf(channel, asks) {
  const requests = new Set(); // one without a body is reported twice
  const note = ({ request }) => requests.add(request);
  subscribe(channel, note);
  await asks();
  unsubscribe(channel, note);
  return [...requests].map((request) => request.method);
}

describe('clients with useHttpGet', () => {
  const house = servedSuite();

  const clients = {
    'from Node': ['http.client.request.start', (options) => node.createConnectTransport({ ...options, httpVersion: '1.1' })],
    'by fetch': ['undici:request:create', (options) => web.createConnectTransport(options)],
  };
  for (const [name, [channel, transport]] of Object.entries(clients)) {
    for (const useBinaryFormat of [true, false]) {
      it(`use GET for calls that change nothing: ${name}, ${useBinaryFormat ? 'proto' : 'JSON'}`, async () => {
        const to = transport({ baseUrl: house.http, useHttpGet: true, useBinaryFormat });
        const models = createClient(service('ModelService'), to);
        const methods = await methodsOf(channel, async () => {
          assert.equal((await models.get({ name: 'bytes' })).name, 'bytes');
          assert.equal((await models.list({})).models.length, 2);
          await assert.rejects(models.get({ name: 'nosuch' }), (error) => ConnectError.from(error).code === Code.NotFound);
          await createClient(service('SessionService'), to).create({ model: 'tokens' });
        });
        assert.deepEqual(methods, ['GET', 'GET', 'GET', 'POST']);
      });
    }
  }
});
