// The official clients of Connect and gRPC-Web from npm against the real server, over HTTP/1.1.
//
// Needs LINTEL_SERVER and LINTEL_WRITE_TINY_MODELS, two binaries, LINTEL_ROOT, the repository,
// LINTEL_DESCRIPTORS, what protoc knows of lintel.v1, and to be run where the clients are installed.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';

const { LINTEL_DESCRIPTORS, LINTEL_ROOT, LINTEL_WRITE_TINY_MODELS } = process.env;
const installed = createRequire(join(process.cwd(), 'package.json'));
const load = (name) => import(pathToFileURL(installed.resolve(name)));
const { createFileRegistry, fromBinary } = await load('@bufbuild/protobuf');
const { FileDescriptorSetSchema } = await load('@bufbuild/protobuf/wkt');
const { Code, ConnectError, createClient } = await load('@connectrpc/connect');
const node = await load('@connectrpc/connect-node');
const web = await load('@connectrpc/connect-web');
const { eventually, serve } = await import(pathToFileURL(join(LINTEL_ROOT, 'tests/client_node/serving.mjs')));

const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(LINTEL_DESCRIPTORS)));
const service = (name) => registry.getService(`lintel.v1.${name}`);

let directory;
let server;

const transports = {
  'Connect from Node, proto': () => node.createConnectTransport({ baseUrl: server.http, httpVersion: '1.1', useBinaryFormat: true }),
  'Connect from Node, JSON': () => node.createConnectTransport({ baseUrl: server.http, httpVersion: '1.1', useBinaryFormat: false }),
  'Connect by fetch': () => web.createConnectTransport({ baseUrl: server.http }),
  'gRPC-Web from Node': () => node.createGrpcWebTransport({ baseUrl: server.http, httpVersion: '1.1' }),
  'gRPC-Web by fetch': () => web.createGrpcWebTransport({ baseUrl: server.http }),
};

async function values(client, request) {
  const tokens = [];
  let finished = 0;
  for await (const message of client.generate(request)) {
    for (const chunk of message.chunks) tokens.push(...chunk.tokens);
    finished += message.finished.length;
  }
  assert.equal(finished, 1);
  return tokens;
}

const request = {
  model: 'bytes',
  prompt: { form: { case: 'text', value: new TextEncoder().encode('The quick') } },
  maxNewTokens: 200,
  sampling: { seed: 7n },
};

// Of a model whose sequences have no end.
const endless = { model: 'tokens', prompt: { form: { case: 'tokens', value: { ids: [1] } } } };

describe('clients from npm over HTTP', () => {
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-web-'));
    execFileSync(LINTEL_WRITE_TINY_MODELS, [directory]);
    server = await serve(join(directory, 'bytes'), '--model', join(directory, 'tokens'), '--http-listen', '127.0.0.1:0', '--max-new-tokens', '1000000000');
    server.http = await server.httpAddress();
  });
  after(async () => {
    if (server) assert.equal(await server.stop(), 0);
    rmSync(directory, { recursive: true, force: true });
  });

  let expected; // by the first
  for (const [name, transport] of Object.entries(transports)) {
    describe(name, () => {
      it('lists the models', async () => {
        const { models } = await createClient(service('ModelService'), transport()).list({});
        assert.deepEqual(models.map((model) => model.name).sort(), ['bytes', 'tokens']);
      });
      it('streams the values that every other client gets', async () => {
        const got = await values(createClient(service('GenerationService'), transport()), request);
        assert.equal(got.length, 200);
        expected ??= got;
        assert.deepEqual(got, expected);
      });
      it('tells errors by their code, message and details', async () => {
        const client = createClient(service('ModelService'), transport());
        await assert.rejects(client.get({ name: 'nosuch' }), (error) => {
          assert.ok(error instanceof ConnectError);
          assert.equal(error.code, Code.NotFound);
          assert.match(error.rawMessage, /nosuch/);
          return true;
        });
        const generation = createClient(service('GenerationService'), transport());
        await assert.rejects(values(generation, { ...request, sampling: { topP: 7 } }), (error) => {
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
        await eventually(async () => (await server.metric('lintel_streams')) === 0, 'the end of the call');
      });
    });
  }
});
