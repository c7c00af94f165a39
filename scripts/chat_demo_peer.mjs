// SPDX-License-Identifier: Apache-2.0
// The next turn of a conversation in llama.cpp after its process ended, for scripts/chat_demo.py --peer-root.
//
//   npm install --prefix DIR node-llama-cpp
//   node scripts/chat_demo_peer.mjs DIR MODEL.gguf <ids.json
//
// ids.json has the token ids of the history and of the next turn's prompt, [[...], [...]]. Prints milliseconds to the
// first token as JSON: of the whole prompt, as a server does that kept nothing, and of the new part after the state
// was loaded from a file, in processes of their own. Loading the weights does not count.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const [root, modelPath, task, file] = process.argv.slice(2);

async function open(contextSize) {
  const { resolve: find } = createRequire(resolve(root, 'package.json'));
  const { getLlama } = await import(pathToFileURL(find('node-llama-cpp')));
  const llama = await getLlama({ gpu: false, build: 'never', logLevel: 'error', maxThreads: 2 });
  const model = await llama.loadModel({ modelPath });
  const context = await model.createContext({ contextSize, sequences: 1, threads: 2, batchSize: 512 });
  return context.getSequence();
}

async function firstToken(sequence, ids, begin) {
  for await (const token of sequence.evaluate(ids, { temperature: 0 })) {
    if (token !== undefined) break;
  }
  return performance.now() - begin;
}

async function run(history, prompt) {
  const sequence = await open(prompt.length + 64);
  const begin = performance.now();
  if (task === 'all') return firstToken(sequence, prompt, begin);
  if (task === 'save') {
    await sequence.evaluateWithoutGeneratingNewTokens(history);
    await sequence.saveStateToFile(file);
    return 0;
  }
  await sequence.loadStateFromFile(file, { acceptRisk: true });
  return firstToken(sequence, prompt.slice(history.length), begin);
}

const input = readFileSync(0, 'utf8');
if (task !== undefined) {
  console.log(await run(...JSON.parse(input)));
} else {
  const directory = mkdtempSync(join(tmpdir(), 'chat-demo-peer-'));
  const state = join(directory, 'state');
  const measure = (name) =>
    Number(execFileSync(process.execPath, [process.argv[1], root, modelPath, name, state], { input, encoding: 'utf8', stdio: ['pipe', 'pipe', 'ignore'] }));
  const reading_all_ms = measure('all');
  measure('save');
  const [history, prompt] = JSON.parse(input);
  const more = { prompt: prompt.length, new: prompt.length - history.length, file_bytes: statSync(state).size };
  console.log(JSON.stringify({ reading_all_ms, from_file_ms: measure('load'), ...more }));
  rmSync(directory, { recursive: true });
}
process.exit();
