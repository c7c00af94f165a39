// SPDX-License-Identifier: Apache-2.0
// Google's own client of gRPC-Web, which speaks by XMLHttpRequest, against the real server.
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { endless, eventually, load, request, servedSuite, service } from './house.mjs';
import { XMLHttpRequest } from './xhr.mjs';

const { create, fromBinary, toBinary } = await load('@bufbuild/protobuf');
const { default: grpcWeb } = await load('grpc-web');
globalThis.XMLHttpRequest = XMLHttpRequest;
const { GrpcWebClientBase, MethodDescriptor, MethodType, StatusCode } = grpcWeb;

// A call's path, message and descriptor, as generated code hands them to the client.
function call(house, serviceName, methodName, message) {
  const { methodKind, input, output, name } = service(serviceName).methods.find((m) => m.name === methodName);
  const path = `/lintel.v1.${serviceName}/${name}`;
  const type = methodKind === 'unary' ? MethodType.UNARY : MethodType.SERVER_STREAMING;
  const descriptor = new MethodDescriptor(path, type, Object, Object, (m) => toBinary(input, m), (bytes) => fromBinary(output, bytes));
  return [house.http + path, create(input, message), descriptor];
}

function unary(house, client, serviceName, methodName, message, metadata = {}) {
  const [url, sent, descriptor] = call(house, serviceName, methodName, message);
  return client.unaryCall(url, sent, metadata, descriptor);
}

// The events of a stream; `onData` may end it.
function streamed(house, client, message, { metadata = {}, onData = () => {} } = {}) {
  const [url, sent, descriptor] = call(house, 'GenerationService', 'Generate', message);
  const stream = client.serverStreaming(url, sent, metadata, descriptor);
  const seen = { tokens: [], finished: 0 };
  return new Promise((resolve) => {
    stream.on('data', (answer) => {
      for (const chunk of answer.chunks) seen.tokens.push(...chunk.tokens);
      seen.finished += answer.finished.length;
      onData(stream, () => resolve(seen));
    });
    stream.on('metadata', (metadata) => (seen.metadata = metadata));
    stream.on('status', (status) => (seen.status = status));
    stream.on('error', (error) => resolve({ ...seen, error }));
    stream.on('end', () => resolve(seen));
  });
}

describe("Google's gRPC-Web client", () => {
  const house = servedSuite();

  // grpc-web streams in base64, and has no streams in bytes.
  for (const format of ['text', 'binary']) {
    const client = new GrpcWebClientBase({ format });

    it(`makes unary calls: ${format}`, async () => {
      const { models } = await unary(house, client, 'ModelService', 'List', {});
      assert.deepEqual(models.map((model) => model.name).sort(), ['bytes', 'tokens']);
    });

    it(`gets errors with code, message and details: ${format}`, async () => {
      await assert.rejects(unary(house, client, 'ModelService', 'Get', { name: 'nosuch' }), (error) => {
        assert.equal(error.code, StatusCode.NOT_FOUND);
        assert.match(error.message, /nosuch/);
        return true;
      });
      const { error } = await streamed(house, client, { ...request, sampling: { topP: 7 } });
      assert.equal(error.code, StatusCode.INVALID_ARGUMENT);
      assert.match(error.message, /top_p/);
      assert.match(Buffer.from(error.metadata['grpc-status-details-bin'], 'base64').toString('latin1'), /sampling\.top_p/);
    });

    it(`sends and receives metadata: ${format}`, async () => {
      const id = `mine-${format}`;
      const got = await streamed(house, client, { ...request, maxNewTokens: 2 }, { metadata: { 'x-request-id': id } });
      assert.equal(got.metadata?.['x-request-id'], id);
    });
  }

  const client = new GrpcWebClientBase({ format: 'text' });

  it('streams the tokens that other calls get', async () => {
    const got = await streamed(house, client, request);
    assert.equal(got.error, undefined);
    assert.equal(got.status.code, StatusCode.OK);
    assert.equal(got.finished, 1);
    assert.equal(got.tokens.length, 200);
    const lines = await fetch(`${house.http}/lintel.v1.GenerationService/Generate`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ prompt: { text: 'The quick' }, model: 'bytes', maxNewTokens: 200, sampling: { seed: '7' } }),
    });
    const tokens = (await lines.text()).trim().split('\n').flatMap((line) => (JSON.parse(line).chunks ?? []).flatMap((chunk) => chunk.tokens));
    assert.deepEqual(got.tokens, tokens);
  });

  it('gets tokens before the end, and ends its call when it goes', async () => {
    const got = await streamed(house, client, endless, {
      onData(stream, done) {
        stream.cancel();
        done();
      },
    });
    assert.ok(got.tokens.length > 0);
    assert.equal(got.finished, 0);
    await eventually(async () => (await house.server.metric('lintel_streams')) === 0, 'the end of the call');
  });

  it('has a deadline', async () => {
    const { error } = await streamed(house, client, endless, { metadata: { deadline: String(Date.now() + 200) } });
    assert.equal(error.code, StatusCode.DEADLINE_EXCEEDED);
    await eventually(async () => (await house.server.metric('lintel_streams')) === 0, 'the end of the call');
  });
});
