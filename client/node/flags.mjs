// The flags that both examples have.
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { Client } from './lintel.mjs';

// Parses the command line; ends the process with its use where it makes no sense.
export function parseFlags(usage, own) {
  const options = {
    address: { type: 'string', default: '127.0.0.1:50051' },
    model: { type: 'string', default: '' },
    seed: { type: 'string' },
    'tls-ca': { type: 'string' },
    'token-file': { type: 'string' },
    help: { type: 'boolean', short: 'h' },
    ...own,
  };
  try {
    const { values } = parseArgs({ options });
    if (values.help) {
      console.log(usage);
      process.exit(0);
    }
    return values;
  } catch (error) {
    console.error(`${error.message}\n${usage}`);
    process.exit(2);
  }
}

export function connect(flags) {
  const token = flags['token-file'] && readFileSync(flags['token-file'], 'utf8').trim();
  return new Client(flags.address, { tlsCa: flags['tls-ca'], token });
}

export const COMMON = `[--address HOST:PORT] [--model NAME] [--seed N] [--tls-ca FILE] [--token-file FILE]`;
