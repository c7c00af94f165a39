// SPDX-License-Identifier: Apache-2.0
// The servers that a client may call, each of which will do, and the one that it calls.
import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import grpc from '@grpc/grpc-js';

// "A:1,B:2": each of them. gRPC's own ways of naming servers have their own commas.
export function split(addresses) {
  const [scheme] = /^https?:\/\//.exec(addresses) ?? [];
  if (scheme) {
    const way = scheme === 'http://' ? '' : '; tlsCa encrypts';
    throw new TypeError(`address '${addresses}': expected HOST:PORT of gRPC, without ${scheme}${way}`);
  }
  if (addresses.includes('://') || /^ipv[46]:/.test(addresses)) return [addresses];
  const several = addresses.split(',').map((address) => address.trim());
  if (several.includes('') || new Set(several).size < several.length) {
    throw new TypeError(`addresses '${addresses}': one is empty, or given twice`);
  }
  return several;
}

// Every address that a name has; none of what is no name.
export async function addressesOf(address) {
  const colon = address.lastIndexOf(':');
  const host = address.slice(0, Math.max(colon, 0));
  if (!host || isIP(host.replace(/^\[|\]$/g, '')) || /^unix|\/\//.test(address)) return [];
  try {
    const found = await lookup(host, { all: true });
    return found.map((one) => (one.family === 6 ? `[${one.address}]` : one.address) + address.slice(colon));
  } catch {
    return [];
  }
}

// True for the codes of a server that is gone, or ends: that cancels the calls that did not end in time. For a call
// that was cancelled here CANCELLED says nothing.
export const isLost = ({ code }) => code === grpc.status.UNAVAILABLE || code === grpc.status.CANCELLED;

// Another server may do what this one did not.
export function namesAServer({ code, reason = '' }) {
  return isLost({ code }) || (code === grpc.status.ABORTED && reason.startsWith('SESSION_'));
}

// A call that never left this machine.
export const isUnsent = ({ unreached }) => unreached === true;

// A client stays with one for as long as that answers, for what its sessions left in that server's memory;
// then it goes to the next. A name stands for one server until that fails; then for each of the addresses
// that it has, and when all of those were gone through for itself again: by then it may have others.
export class Servers {
  #open;
  #original;
  #all;
  #current = 0;

  // open(address, name): {address, services}; name: whose address it is, undefined: its own.
  constructor(addresses, open) {
    this.#open = open;
    this.#original = addresses.map((address) => open(address));
    this.#all = [...this.#original];
  }

  get current() {
    return this.#all[this.#current];
  }

  get count() {
    return this.#all.length;
  }

  // The one behind `failed` is called from now on, unless another call has gone on already. Whether there
  // is another one.
  async leave(failed, error) {
    const found = isUnsent(error) ? [] : await addressesOf(failed.address);
    if (this.current !== failed) return this.count > 1;
    if (found.length > 1) {
      const several = found.map((address) => this.#open(address, failed.address));
      this.#all.splice(this.#current, 1, ...several);
    } else if (++this.#current === this.count) {
      for (const server of this.#all) if (!this.#original.includes(server)) close(server);
      this.#all = [...this.#original];
      this.#current = 0;
    }
    return this.count > 1;
  }

  close() {
    for (const server of new Set([...this.#all, ...this.#original])) close(server);
  }
}

const close = ({ services }) => Object.values(services).forEach((service) => service.close());
