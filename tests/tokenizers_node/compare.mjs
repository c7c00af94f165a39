// SPDX-License-Identifier: Apache-2.0
// node compare.mjs [--texts N] [--seed N] [--tokenizer NAME]...: encodes N random texts for each of
// tests/golden/tokenizers that has a tokenizer.json, by Lintel and by the Rust library. Ids have to be equal.
// LINTEL_ENCODE_LINES: our executable; LINTEL_PACKAGES: where node_modules is.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import readline from 'node:readline';
import { parseArgs } from 'node:util';

import { Random, randomText } from './texts.mjs';

const { Tokenizer } = createRequire(`${process.env.LINTEL_PACKAGES}/`)('@anush008/tokenizers');
const { values: flags } = parseArgs({
  options: {
    texts: { type: 'string', default: '3000' },
    seed: { type: 'string', default: '1' },
    tokenizer: { type: 'string', multiple: true },
  },
});
const goldens = path.join(import.meta.dirname, '../golden/tokenizers');
const kBatch = 500;
const kMostShown = 10;

// Lintel's side: a process that answers each line with a line.
class Lines {
  constructor(directory) {
    this.process = spawn(process.env.LINTEL_ENCODE_LINES, [directory], { stdio: ['pipe', 'pipe', 'inherit'] });
    this.lines = readline.createInterface({ input: this.process.stdout })[Symbol.asyncIterator]();
  }
  async encode(texts) {
    this.process.stdin.write(`${texts.map((text) => JSON.stringify(text)).join('\n')}\n\n`);
    const answers = [];
    for (let i = 0; i < texts.length; ++i) {
      const { value, done } = await this.lines.next();
      if (done) throw new Error(`encode_lines ended at ${JSON.stringify(texts[i])}`);
      answers.push(value);
    }
    return answers;
  }
  async end() {
    this.process.stdin.end();
    if (this.process.exitCode === null) await once(this.process, 'exit');
  }
}

// Texts that `file` knows: of its added tokens, and of its vocabulary's entries.
function namesIn(file) {
  const { added_tokens: added, model } = JSON.parse(fs.readFileSync(file, 'utf8'));
  return [added.map((token) => token.content), Object.keys(model.vocab)];
}

// Other texts for each tokenizer.
function seedFor(name) {
  let seed = Number(flags.seed);
  for (const c of name) seed = (Math.imul(seed, 31) + c.codePointAt(0)) >>> 0;
  return seed;
}

async function compare(name) {
  const directory = path.join(goldens, name);
  const file = path.join(directory, 'tokenizer.json');
  const random = new Random(seedFor(name));
  const names = namesIn(file);
  const ours = new Lines(directory);
  const theirs = Tokenizer.fromFile(file);
  const count = Number(flags.texts);
  let ids = 0;
  let differences = 0;
  for (let done = 0; done < count; done += kBatch) {
    const texts = Array.from({ length: Math.min(kBatch, count - done) }, () => randomText(random, names));
    const [answers, encodings] = await Promise.all([
      ours.encode(texts),
      theirs.encodeBatch(texts, { addSpecialTokens: false }),
    ]);
    texts.forEach((text, i) => {
      const expected = encodings[i].getIds();
      ids += expected.length;
      if (answers[i] === expected.join(' ')) return;
      if (++differences > kMostShown) return;
      console.log(`${name}: text ${done + i} ${JSON.stringify(text)}\n  Lintel  ${answers[i]}\n  library ${expected.join(' ')}`);
    });
  }
  await ours.end();
  console.log(`${name}: ${count} texts, ${ids} ids, ${differences} differences`);
  return differences;
}

console.log(`seed ${flags.seed}`);
const known = fs.readdirSync(goldens).filter((name) => fs.existsSync(path.join(goldens, name, 'tokenizer.json')));
let differences = 0;
for (const name of flags.tokenizer ?? known) differences += await compare(name);
process.exitCode = differences === 0 ? 0 : 1;
