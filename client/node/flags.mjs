// SPDX-License-Identifier: Apache-2.0
// The flags that both examples have.
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { Client } from './lintel.mjs';

// Parses the command line; ends the process with its use where it makes no sense. `own` has the flags
// of one example, each with what parseArgs wants and, where its text means something else, `read`: a
// function that gives the value, or throws.
export function parseFlags(usage, own) {
  const options = {
    address: { type: 'string', default: '127.0.0.1:50051' },
    model: { type: 'string', default: '' },
    adapter: { type: 'string', default: '' },
    seed: { type: 'string', read: seed },
    'tls-ca': { type: 'string' },
    'token-file': { type: 'string' },
    proxy: { type: 'string' },
    help: { type: 'boolean', short: 'h' },
    ...own,
  };
  try {
    const { values } = parseArgs({ options });
    if (values.help) {
      console.log(usage);
      process.exit(0);
    }
    for (const [name, { read }] of Object.entries(options)) {
      if (read && values[name] !== undefined) values[name] = read(values[name], `--${name}`);
    }
    return values;
  } catch (error) {
    console.error(`${error.message}\n${usage}`);
    process.exit(2);
  }
}

function seed(text, flag) {
  if (!/^\d+$/.test(text) || BigInt(text) >= 2n ** 64n) {
    throw new Error(`${flag} '${text}' is no whole number from 0 to ${2n ** 64n - 1n}`);
  }
  return BigInt(text);
}

// Whole numbers with commas between them. The server knows which ids its model has.
export function tokenIds(text, flag) {
  return text.split(',').map((id) => {
    if (!/^\s*-?\d+\s*$/.test(id) || Number(id) !== (Number(id) | 0)) {
      throw new Error(`${flag}: '${id}' is no token id`);
    }
    return Number(id);
  });
}

// A count: what does not fit would become another one on its way.
export function count(text, flag) {
  if (!/^\d+$/.test(text) || Number(text) >= 2 ** 32) {
    throw new Error(`${flag} '${text}' is no whole number from 0 to ${2 ** 32 - 1}`);
  }
  return Number(text);
}

export function number(text, flag) {
  if (text.trim() === '' || !Number.isFinite(Number(text))) {
    throw new Error(`${flag} '${text}' is no number`);
  }
  return Number(text);
}

export function connect(flags) {
  const token = flags['token-file'] && readFileSync(flags['token-file'], 'utf8').trim();
  return new Client(flags.address, { tlsCa: flags['tls-ca'], token, proxy: flags.proxy });
}

export const COMMON = `[--address HOST:PORT] [--model NAME] [--adapter NAME] [--seed N] [--tls-ca FILE]
[--token-file FILE] [--proxy HOST:PORT]`;
