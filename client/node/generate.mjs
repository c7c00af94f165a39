#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// Streams tokens to standard output as they come, and says at the end what they took.
import { COMMON, connect, count, number, parseFlags, tokenIds } from './flags.mjs';

const flags = parseFlags(
  `Usage: node generate.mjs [--prompt TEXT | --prompt-tokens 0,0,12] [--max-new-tokens N]
                        [--temperature T] ${COMMON}`,
  {
    prompt: { type: 'string' },
    'prompt-tokens': { type: 'string', read: tokenIds },
    'max-new-tokens': { type: 'string', read: count },
    temperature: { type: 'string', read: number },
  },
);
const prompt = flags.prompt ?? flags['prompt-tokens'];
const request = {
  model: flags.model,
  adapter: flags.adapter,
  prompt,
  sampling: {
    ...(flags.seed !== undefined && { seed: flags.seed }),
    ...(flags.temperature !== undefined && { temperature: flags.temperature }),
  },
  ...(flags['max-new-tokens'] !== undefined && { maxNewTokens: flags['max-new-tokens'] }),
};

const client = connect(flags);
const interrupted = new AbortController();
process.once('SIGINT', () => interrupted.abort()); // the server stops, too
let finish;
let separator = '';
try {
  const options = { onFinish: (f) => (finish = f), signal: interrupted.signal };
  for await (const { token, text } of client.generate(request, options)) {
    if (flags.prompt !== undefined) {
      process.stdout.write(text);
    } else {
      process.stdout.write(`${separator}${token}`);
      separator = ',';
    }
  }
  process.stdout.write('\n');
  console.error(`${finish.generatedTokens} tokens, seed ${finish.seed}, ended by ${finish.reason}`);
} catch (error) {
  process.stdout.write('\n');
  console.error(error.message);
  process.exitCode = 1;
} finally {
  client.close();
}
