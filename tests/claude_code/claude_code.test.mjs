// SPDX-License-Identifier: Apache-2.0
// Claude Code, headless, with the real server and a model that calls its tool Write. Nothing leaves the machine.
//
// Needs LINTEL_SERVER, a binary, and LINTEL_PACKAGES, where Claude Code is. LINTEL_RECORD=FILE writes what it sent, with
// filler in the place of texts, for tests/golden/anthropic/claude_code.json.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { arch, tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { serve } from '../client_node/serving.mjs';
import { writeScriptedModel } from '../anthropic_node/scripted_model.mjs';

const { LINTEL_PACKAGES, LINTEL_RECORD, PATH } = process.env;
const claude = join(LINTEL_PACKAGES, `node_modules/@anthropic-ai/claude-code-linux-${arch()}/claude`);

let directory;
let file; // written by the model
let server;
let proxy;
const exchanges = []; // of messages: {method, url, headers, body, answer}

// Passes requests on to the server, and keeps them with their answers.
function keep(target) {
  return http.createServer((request, response) => {
    const parts = [];
    request.on('data', (part) => parts.push(part)).on('end', () => {
      const body = Buffer.concat(parts);
      const exchange = { method: request.method, url: request.url, headers: request.headers, answer: '' };
      if (body.length > 0) exchange.body = JSON.parse(body);
      exchanges.push(exchange);
      const { hostname, port } = new URL(target);
      const headers = { ...request.headers, host: `${hostname}:${port}` };
      const onward = http.request({ hostname, port, method: request.method, path: request.url, headers }, (answer) => {
        exchange.status = answer.statusCode;
        response.writeHead(answer.statusCode, answer.headers);
        answer.on('data', (part) => (exchange.answer += part)).pipe(response);
      });
      onward.on('error', () => response.destroy());
      onward.end(body);
    });
  });
}

// The usage of a stream, as its last event has it.
function usageOf({ answer }) {
  const line = answer.split('\n').find((each) => each.startsWith('data: {"type":"message_delta"'));
  assert.ok(line, answer.slice(0, 2000));
  return JSON.parse(line.slice(6)).usage;
}

// A request whose texts are filler of equal length: "$filler N" stands for N characters.
const KEPT = new Set(['type', 'role', 'name', 'id', 'tool_use_id', 'model', 'effort', 'display', 'required', 'keep', 'format']);
const BILLING = 'x-anthropic-billing-header:'; // by which the server knows a block
function withFiller(value, key = '') {
  if (Array.isArray(value)) return value.map((each) => withFiller(each, key));
  if (value !== null && typeof value === 'object') {
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, withFiller(member, name)]));
  }
  if (typeof value !== 'string' || KEPT.has(key)) return value;
  const begin = value.startsWith(BILLING) ? BILLING : '';
  return `${begin}$filler ${value.length - begin.length}`;
}
const HEADERS = ['accept', 'anthropic-beta', 'anthropic-version', 'anthropic-dangerous-direct-browser-access', 'user-agent', 'x-app'];

describe('Claude Code', () => {
  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'lintel-claude-'));
    mkdirSync(join(directory, 'home'));
    mkdirSync(join(directory, 'work'));
    file = join(directory, 'work', 'hello.txt');
    writeScriptedModel(join(directory, 'model'), {
      answer: ['<tool_call>', '\n{"name": "Write", "arguments": {"file_path": ', JSON.stringify(file), ', "content": ',
        '"Hello from a call.\\n"}}\n', '</tool_call>'],
      afterTool: ['The file', ' is there.'],
      context: 262144,
    });
    server = await serve(`qwen35=${join(directory, 'model')}`, '--http-listen', '127.0.0.1:0');
    proxy = keep(await server.httpAddress()).listen(0, '127.0.0.1');
    await new Promise((resolve) => proxy.once('listening', resolve));
  });
  after(async () => {
    proxy?.close();
    proxy?.closeAllConnections();
    await server?.stop();
    rmSync(directory, { recursive: true, force: true });
  });

  it('writes a file by a call, and sends its result on a prompt that is cached', async () => {
    const child = spawn(claude, ['-p', 'Write a file hello.txt', '--permission-mode', 'acceptEdits', '--output-format', 'json'], {
      cwd: join(directory, 'work'),
      stdio: ['ignore', 'pipe', 'pipe'],
      env: {
        PATH, HOME: join(directory, 'home'), IS_SANDBOX: '1',
        ANTHROPIC_BASE_URL: `http://127.0.0.1:${proxy.address().port}`, ANTHROPIC_AUTH_TOKEN: 'none',
        ANTHROPIC_MODEL: 'qwen35', ANTHROPIC_DEFAULT_OPUS_MODEL: 'qwen35', ANTHROPIC_DEFAULT_SONNET_MODEL: 'qwen35',
        ANTHROPIC_DEFAULT_HAIKU_MODEL: 'qwen35', CLAUDE_CODE_SUBAGENT_MODEL: 'qwen35',
        DISABLE_TELEMETRY: '1', DISABLE_ERROR_REPORTING: '1', DISABLE_AUTOUPDATER: '1',
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
      },
    });
    let out = '';
    let log = '';
    child.stdout.on('data', (data) => (out += data));
    child.stderr.on('data', (data) => (log += data));
    const status = await new Promise((resolve) => child.once('close', resolve));
    assert.equal(status, 0, `${out}\n${log}`);
    assert.equal(JSON.parse(out).result, 'The file is there.');
    assert.equal(readFileSync(file, 'utf8'), 'Hello from a call.\n');

    for (const { method, url, status: answered } of exchanges) assert.equal(answered, 200, `${method} ${url}`);
    const [first, second, ...more] = exchanges.filter(({ url }) => url.startsWith('/v1/messages?'));
    assert.equal(more.length, 0);
    const [result] = second.body.messages.at(-1).content;
    assert.equal(result.type, 'tool_result');
    assert.ok(JSON.stringify(result.content).includes('hello.txt'));
    const [began, continued] = [usageOf(first), usageOf(second)];
    const prompt = began.input_tokens + began.cache_read_input_tokens;
    console.log(`first prompt: ${prompt} tokens; second: ${continued.cache_read_input_tokens} cached, ${continued.input_tokens} read`);
    assert.ok(prompt > 10_000);
    assert.ok(continued.cache_read_input_tokens >= 0.95 * prompt, JSON.stringify([began, continued]));

    if (LINTEL_RECORD) {
      const recorded = [first, second].map(({ method, url, headers, body }) => ({
        method, url, headers: Object.fromEntries(HEADERS.map((name) => [name, headers[name]])), body: withFiller(body),
      }));
      writeFileSync(LINTEL_RECORD, `${JSON.stringify(recorded, null, 1)}\n`);
    }
  });
});
