// SPDX-License-Identifier: Apache-2.0
// Errors of calls: a code, plain words, and the decoded google.rpc details.
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import protobuf from 'protobufjs';

// The interfaces: in the package, or in the repository above it.
const packed = fileURLToPath(new URL('./proto/', import.meta.url));
export const PROTO = existsSync(packed) ? packed : fileURLToPath(new URL('../../proto/', import.meta.url));
const root = new protobuf.Root();
root.resolvePath = (_, file) => (file.startsWith('google/protobuf/') ? file : PROTO + file);
root.loadSync(['google/rpc/status.proto', 'google/rpc/error_details.proto']);

export class LintelError extends Error {
  constructor(code, message, requestId, details = {}) {
    const fields = details.violations?.map((v) => v.field).filter((f) => !message.includes(f)) ?? [];
    super([`${grpc.status[code]}: ${message}`, ...fields].join('; '));
    this.name = 'LintelError';
    this.code = code; // a grpc.status
    this.details = details.text ?? message; // as gRPC has it, where the message has plainer words
    this.unreached = details.unreached ?? false; // no connection came about: the server knows nothing of the call
    this.violations = details.violations ?? []; // {field, description}: what was refused
    this.reason = details.reason ?? ''; // for programs: 'CALL_INTERRUPTED', 'POSITION_MISMATCH'; '': none
    this.facts = details.facts ?? {}; // details of the reason: {position: '120'}
    this.retryDelay = details.retryDelay; // ms after which the same request is worth sending again
    this.requestId = requestId; // by which the server's log knows the call
  }
}

// Decodes the server's details beyond code and message, from the trailer grpc-status-details-bin.
function decodeDetails(trailer) {
  const details = {};
  try {
    for (const any of root.lookupType('google.rpc.Status').decode(trailer).details) {
      const name = any.type_url.split('/').pop();
      if (name === 'google.rpc.BadRequest') {
        const bad = root.lookupType(name).decode(any.value);
        details.violations = bad.fieldViolations.map(({ field, description }) => ({ field, description }));
      } else if (name === 'google.rpc.ErrorInfo') {
        const { reason, metadata } = root.lookupType(name).decode(any.value);
        Object.assign(details, { reason, facts: { ...metadata } });
      } else if (name === 'google.rpc.RetryInfo') {
        const { seconds, nanos } = root.lookupType(name).decode(any.value).retryDelay;
        details.retryDelay = Number(seconds) * 1000 + nanos / 1e6;
      }
    }
  } catch {
    // Details from an unknown proxy: a status is still a status.
  }
  return details;
}

// Reasons for a missing connection: 'connection refused' of 'No connection established. Last error: Error: connect
// ECONNREFUSED 127.0.0.1:1. Resolution note: '.
const REASONS = [
  [/ECONNREFUSED/, 'connection refused'],
  [/ECONNRESET|EPIPE|socket disconnected|closed before/i, 'it closes the connection; does it speak TLS (tlsCa)?'],
  [/ETIMEDOUT|timed out/i, 'no answer in time'],
  [/EHOSTUNREACH|ENETUNREACH/, 'there is no way to it'],
  [/ENOENT/, 'there is no such socket'],
  [/EACCES|EPERM/, 'permission denied'],
  [/Name resolution failed|ENOTFOUND|EAI_AGAIN/, 'this host name is not known'],
  [/certificate|CERT_|UNABLE_TO_VERIFY/i, 'the certificate it shows cannot be trusted (tlsCa)'],
  [/wrong version number|WRONG_VERSION_NUMBER/, 'it does not speak TLS'],
];

const LOST = /Connection dropped|connection (closed|reset)|ECONNRESET|EPIPE|ETIMEDOUT|RST_STREAM|goaway|keepalive|premature/i;

// Puts gRPC's own messages into plain words; a server's message stays as it is.
export function plainWords({ code, details: text, address, timeout }) {
  const { CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE } = grpc.status;
  if (code === DEADLINE_EXCEEDED) {
    const message = /^Deadline exceeded/i.test(text) ? 'the call took too long' : text;
    return { message: `${message}; the call had a timeout of ${timeout} ms` };
  }
  if (code === CANCELLED && text === 'Cancelled on client') return { message: 'the call was cancelled here' };
  const http = /Received HTTP status code (\d+)/.exec(text);
  if (http) return { message: `what answers at ${address} is no gRPC server: HTTP ${http[1]}` };
  if (code !== UNAVAILABLE) return { message: text };
  if (/^No connection established|Name resolution failed/.test(text)) {
    const [, reason = 'no connection'] = REASONS.find(([known]) => known.test(text)) ?? [];
    return { message: `no server answers at ${address}: ${reason}`, unreached: true };
  }
  return { message: LOST.test(text) ? 'the connection to the server was lost' : text };
}

// The error of a failure that grpc-js raised in a call to `address` that had `timeout` ms.
export function lintelError(error, requestId, { address, timeout }) {
  const [trailer] = error.metadata?.get('grpc-status-details-bin') ?? [];
  const details = trailer ? decodeDetails(trailer) : {};
  const { message, unreached } = plainWords({ code: error.code, details: error.details, address, timeout });
  return new LintelError(error.code, message, requestId, { ...details, text: error.details, unreached });
}
