// SPDX-License-Identifier: Apache-2.0
// Requests that Codex made (codex_requests.json, without their texts: tests/codex_node), again to the real server; and
// custom tools by OpenAI's own client.
//
// Needs LINTEL_SERVER, a binary, and LINTEL_PACKAGES, where the client is.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { serve } from '../client_node/serving.mjs';
import { withLetters } from '../codex_node/recording.mjs';
import { callPieces, writeScriptedModel } from './scripted_model.mjs';

const { LINTEL_PACKAGES } = process.env;
const { default: OpenAI } = await import(pathToFileURL(join(LINTEL_PACKAGES, 'node_modules/openai/index.mjs')));
const recorded = withLetters(JSON.parse(readFileSync(join(import.meta.dirname, 'codex_requests.json'), 'utf8')));

const PATCH = '*** Begin Patch\n*** Add File: a.txt\n+"quoted" \\ é\n*** End Patch';

let directory;
let server;
let url;

describe('requests of Codex', () => {
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-codex-'));
    const model = (name) => join(directory, name);
    writeScriptedModel(model('scripted'),
      ['<think>', '\nplan it', '\n</think>\n\n', ...callPieces('exec_command', { cmd: 'true' })], ['Done', '.']);
    writeScriptedModel(model('gpt-5.5'), callPieces('apply_patch', { input: PATCH }), ['Done', '.']);
    writeScriptedModel(model('gpt-6.2-sol'), ['Good', ' day', '!'], ['Done', '.']);
    server = await serve(model('scripted'), '--model', model('gpt-5.5'), '--model', model('gpt-6.2-sol'),
      '--http-listen', '127.0.0.1:0', '--workers', '1');
    url = await server.httpAddress();
  });
  after(async () => {
    await server?.stop();
    rmSync(directory, { recursive: true, force: true });
  });

  // Replays a recorded request: its response, the types of its events and the ignored members.
  async function replay({ method, path, headers, body }) {
    const sent = Object.fromEntries(Object.entries(headers).filter(([name]) => !/^(host|content-length|connection)$/.test(name)));
    const answer = await fetch(url + path, { method, headers: sent, body: JSON.stringify(body) });
    const text = await answer.text();
    assert.equal(answer.status, 200, text);
    const events = text.split('\n').filter((line) => line.startsWith('data: {')).map((line) => JSON.parse(line.slice(6)));
    assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, index) => index));
    assert.equal(events.at(-1).type, 'response.completed', text.slice(-1000));
    return { response: events.at(-1).response, types: new Set(events.map((event) => event.type)),
      ignored: answer.headers.get('lintel-ignored') };
  }

  const expected = {
    scripted: { item: 'function_call', event: 'response.reasoning_summary_text.delta', ignored: /tools=namespace, tools=web_search/ },
    custom: { item: 'custom_tool_call', event: 'response.custom_tool_call_input.done', ignored: /=lark, tools=tool_search/ },
    additional: { item: 'message', event: 'response.output_text.delta', ignored: /input=additional_tools/ },
  };
  for (const [name, requests] of Object.entries(recorded)) {
    it(`are served as those of its model ${requests[0].body.model}`, async () => {
      const first = await replay(requests[0]);
      const { item, event, ignored } = expected[name];
      assert.equal(first.response.output.at(-1).type, item);
      assert.ok(first.types.has(event), [...first.types].join());
      assert.match(first.ignored, ignored);
      if (requests.length === 1) return;
      const second = await replay(requests[1]);
      assert.equal(second.response.output.at(-1).content[0].text, 'Done.');
      const share = second.response.usage.input_tokens_details.cached_tokens / first.response.usage.input_tokens;
      assert.ok(share >= 0.95, `${share} of the first prompt is cached`);
    });
  }

  it('for models by a client version are answered', async () => {
    const answer = await fetch(`${url}/v1/models?client_version=0.171.0`);
    assert.equal(answer.status, 200);
    assert.equal((await answer.json()).data.length, 3);
  });

  it("with a custom tool are those of OpenAI's client", async () => {
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
    const request = { model: 'gpt-5.5', input: 'Patch it.', tools: [{ type: 'custom', name: 'apply_patch', description: 'Patches.' }] };
    const whole = await client.responses.create(request);
    const [call] = whole.output;
    assert.deepEqual([call.type, call.name, call.input], ['custom_tool_call', 'apply_patch', PATCH]);

    const stream = client.responses.stream({ ...request, store: false });
    let text = '';
    let done;
    stream.on('response.custom_tool_call_input.delta', (event) => (text += event.delta));
    stream.on('response.custom_tool_call_input.done', (event) => (done = event.input));
    const last = await stream.finalResponse();
    assert.equal(text, PATCH);
    assert.equal(done, PATCH);
    assert.equal(last.output[0].input, PATCH);

    // The result of the call, after the response that is stored, and with the call itself.
    const result = { type: 'custom_tool_call_output', call_id: call.call_id, output: 'ok' };
    const next = await client.responses.create({ ...request, input: [result], previous_response_id: whole.id });
    assert.equal(next.output_text, 'Done.');
    assert.ok(next.usage.input_tokens_details.cached_tokens >= 0.9 * whole.usage.input_tokens);
    const all = [{ role: 'user', content: 'Patch it.' }, call, result];
    assert.equal((await client.responses.create({ ...request, input: all, store: false })).output_text, 'Done.');
    await assert.rejects(client.responses.create({ ...request, tool_choice: { type: 'web_search_preview' } }),
      (error) => error.status === 400 && error.param === 'tool_choice');
  });
});
