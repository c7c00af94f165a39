// SPDX-License-Identifier: Apache-2.0
// Codex, without a terminal, at work with the real server and scripted models: a call writes a file, its result is read,
// and the first prompt is not read again.
//
// Needs LINTEL_SERVER, a binary, and LINTEL_CODEX, its launcher. RECORD=FILE writes the requests without their texts.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { PATIENCE, serve } from '../client_node/serving.mjs';
import { callPieces, writeScriptedModel } from '../openai_node/scripted_model.mjs';
import { withoutTexts } from './recording.mjs';

const { LINTEL_CODEX, RECORD } = process.env;

let directory;
let server;
let proxy;
let seen = []; // requests and answers of a run

// Passes requests on to the server, and keeps them with their answers.
function startProxy(target) {
  const passOn = (request, answer) => {
    const body = [];
    request.on('data', (piece) => body.push(piece));
    request.on('end', () => {
      const exchange = { method: request.method, path: request.url, headers: request.headers, body: Buffer.concat(body), answer: '' };
      seen.push(exchange);
      const onward = http.request(target + request.url, { method: request.method, headers: request.headers }, (reply) => {
        exchange.status = reply.statusCode;
        exchange.ignored = reply.headers['lintel-ignored'];
        answer.writeHead(reply.statusCode, reply.headers);
        reply.on('data', (piece) => {
          exchange.answer += piece;
          answer.write(piece);
        });
        reply.on('end', () => answer.end());
      });
      onward.on('error', () => answer.destroy());
      onward.end(exchange.body);
    });
  };
  return new Promise((resolve) => {
    const listener = http.createServer(passOn).listen(0, '127.0.0.1', () => resolve(listener));
  });
}

// Runs Codex in a folder of its own with a model. Returns that folder and what it printed.
async function runCodex(model, prompt) {
  seen = [];
  const folder = mkdtempSync(join(directory, 'work-'));
  const home = mkdtempSync(join(directory, 'home-'));
  writeFileSync(join(home, 'config.toml'), `
model = "${model}"
model_provider = "lintel"
check_for_update_on_startup = false

[model_providers.lintel]
name = "Lintel"
base_url = "http://127.0.0.1:${proxy.address().port}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[feedback]
enabled = false
`);
  // All other addresses that it wants to reach are refused.
  const env = { PATH: process.env.PATH, HOME: home, CODEX_HOME: home, NO_PROXY: '127.0.0.1',
    HTTP_PROXY: 'http://127.0.0.1:9', HTTPS_PROXY: 'http://127.0.0.1:9' };
  const flags = ['exec', '--dangerously-bypass-approvals-and-sandbox', '--skip-git-repo-check', prompt];
  const child = spawn(process.execPath, [LINTEL_CODEX, ...flags], { cwd: folder, env, stdio: ['ignore', 'pipe', 'pipe'] });
  const timer = setTimeout(() => child.kill('SIGKILL'), PATIENCE);
  let output = '';
  let log = '';
  child.stdout.on('data', (data) => (output += data));
  child.stderr.on('data', (data) => (log += data));
  const status = await new Promise((resolve) => child.once('close', resolve));
  clearTimeout(timer);
  const answers = seen.map(({ status: code, answer }) => `${code} ${answer.slice(0, 500)}`).join('\n');
  assert.equal(status, 0, `${log}\n${answers}`);
  return { folder, output, log };
}

// The requests of the last run as JSON, and the responses that ended them.
function turns() {
  return seen.map(({ body, answer, status, ignored }) => {
    assert.equal(status, 200, answer);
    const data = answer.split('\n').filter((line) => line.startsWith('data: {')).map((line) => JSON.parse(line.slice(6)));
    const last = data.at(-1);
    assert.equal(last.type, 'response.completed');
    return { request: JSON.parse(body), response: last.response, ignored };
  });
}

function checkRequests() {
  assert.deepEqual(seen.map(({ method, path }) => `${method} ${path}`), ['POST /v1/responses', 'POST /v1/responses']);
}

function checkCached(first, second) {
  const share = second.response.usage.input_tokens_details.cached_tokens / first.response.usage.input_tokens;
  assert.ok(share >= 0.95, `${share} of the first prompt is cached`);
}

const recordings = {};
function record(name) {
  recordings[name] = seen.map(({ method, path, headers, body }) =>
    ({ method, path, headers: withoutTexts(headers), body: withoutTexts(JSON.parse(body)) }));
}

describe('Codex', { timeout: 4 * PATIENCE }, () => {
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-codex-'));
    const model = (name) => join(directory, name);
    const thought = ['<think>', '\nplan it', '\n</think>\n\n'];
    // The names are those by which Codex chooses its tools: any other, and two that it knows.
    writeScriptedModel(model('scripted'),
      [...thought, ...callPieces('exec_command', { cmd: 'echo made by a call > made.txt' })], ['Done', '.']);
    const patch = '*** Begin Patch\n*** Add File: made.txt\n+made by a patch\n*** End Patch';
    writeScriptedModel(model('gpt-5.5'), callPieces('apply_patch', { input: patch }), ['Done', '.']);
    writeScriptedModel(model('gpt-6.2-sol'), ['Good', ' day', '!'], ['Done', '.']);
    server = await serve(model('scripted'), '--model', model('gpt-5.5'), '--model', model('gpt-6.2-sol'),
      '--http-listen', '127.0.0.1:0', '--workers', '1');
    proxy = await startProxy(await server.httpAddress());
  });
  after(async () => {
    proxy?.close();
    await server?.stop();
    rmSync(directory, { recursive: true, force: true });
    if (RECORD) writeFileSync(RECORD, `${JSON.stringify(recordings, null, 1)}\n`);
  });

  it('runs a call of its shell, sends its result, and reads the first prompt once', async () => {
    const { folder, output, log } = await runCodex('scripted', 'Make a file.');
    assert.equal(readFileSync(join(folder, 'made.txt'), 'utf8'), 'made by a call\n');
    assert.equal(output.trim(), 'Done.');
    assert.match(log, /plan it/); // the summary of the reasoning
    checkRequests();
    const [first, second] = turns();
    const [reasoning, call] = first.response.output;
    assert.ok(reasoning.encrypted_content);
    assert.equal(call.name, 'exec_command');
    const sent = (type) => second.request.input.find((item) => item.type === type);
    assert.equal(sent('reasoning').encrypted_content, reasoning.encrypted_content);
    assert.equal(sent('function_call').call_id, call.call_id);
    assert.equal(sent('function_call_output').call_id, call.call_id);
    assert.match(sent('function_call_output').output, /exited with code 0/);
    assert.match(first.ignored, /tools=namespace, tools=web_search/);
    checkCached(first, second);
    record('scripted');
  });

  it('applies a patch that a custom tool is called with', async () => {
    const { folder, output } = await runCodex('gpt-5.5', 'Make a file.');
    assert.equal(readFileSync(join(folder, 'made.txt'), 'utf8'), 'made by a patch\n');
    assert.equal(output.trim(), 'Done.');
    checkRequests();
    const [first, second] = turns();
    const [call] = first.response.output;
    assert.equal(call.type, 'custom_tool_call');
    const result = second.request.input.find((item) => item.type === 'custom_tool_call_output');
    assert.equal(result.call_id, call.call_id);
    assert.match(first.ignored, /=lark, tools=tool_search, tools=web_search/);
    checkCached(first, second);
    record('custom');
  });

  it('gets an answer where all of its tools are additional ones', async () => {
    const { output } = await runCodex('gpt-6.2-sol', 'Good day.');
    assert.equal(output.trim(), 'Good day!');
    const [{ request, ignored }] = turns();
    assert.equal(request.input[0].type, 'additional_tools');
    assert.match(ignored, /input=additional_tools/);
    record('additional');
  });
});
