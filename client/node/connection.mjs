// SPDX-License-Identifier: Apache-2.0
// Where a client calls, by which way and as whom.
import { readFileSync } from 'node:fs';
import { BlockList, isIP } from 'node:net';
import grpc from '@grpc/grpc-js';

// Does not leave this machine. Names but localhost are taken to leave it.
export function isLocal(address) {
  if (address.startsWith('unix:')) return true;
  const host = address.slice(0, address.lastIndexOf(':')).replace(/^\[|\]$/g, '');
  const loopback = new BlockList();
  loopback.addSubnet('127.0.0.0', 8);
  loopback.addAddress('::1', 'ipv6');
  return host === 'localhost' || (isIP(host) && loopback.check(host, isIP(host) === 6 ? 'ipv6' : 'ipv4'));
}

// [USER:PASSWORD@]HOST:PORT -> {address, user}. TypeError, without the password, for anything else.
function parseProxy(proxy) {
  const at = proxy.lastIndexOf('@');
  const address = proxy.slice(at + 1);
  if (!/^(\[[0-9A-Fa-f:.]+\]|[^:@/\s]+):\d+$/.test(address) || at === 0) {
    throw new TypeError(`proxy: expected [USER:PASSWORD@]HOST:PORT, not '${address}'`);
  }
  return { address, user: at > 0 ? proxy.slice(0, at) : undefined };
}

// {address, credentials, options} for grpc-js. TypeError for what makes no sense together.
// `name`: whose address it is; `others`: there are other servers.
export function connection(address, { tlsCa, tlsCert, tlsKey, token, proxy, interceptors }, { name, others } = {}) {
  if (!tlsCert !== !tlsKey) throw new TypeError('a client certificate and its key belong together');
  const way = proxy === undefined ? undefined : parseProxy(proxy);
  const encrypted = tlsCa || tlsCert;
  if (token && !encrypted && !isLocal(address)) {
    const through = way ? ' through a proxy' : '';
    throw new TypeError(`the token would go to ${address}${through} in plain text: use TLS (tlsCa)`);
  }
  const read = (file) => (file ? readFileSync(file) : null);
  const credentials = encrypted
    ? grpc.credentials.createSsl(read(tlsCa), read(tlsKey), read(tlsCert))
    : grpc.credentials.createInsecure();
  const options = {
    // A chunk with the N best of many tokens can pass gRPC's 4 MB; the server bounds what it sends.
    'grpc.max_receive_message_length': -1,
    // Else http_proxy and its kin are obeyed, on loopback, too.
    'grpc.enable_http_proxy': 0,
    ...(interceptors && { interceptors }),
    // A client with other servers notices when one is gone without a word; servers take a ping in 10 s.
    ...(others && { 'grpc.keepalive_time_ms': 15_000, 'grpc.keepalive_timeout_ms': 5000 }),
    // Its certificate has the name.
    ...(name && { 'grpc.default_authority': name, 'grpc.ssl_target_name_override': name.replace(/:\d+$/, '') }),
  };
  if (!way || isLocal(address)) return { address, credentials, options };
  return {
    address: `dns:${way.address}`,
    credentials,
    options: {
      ...options,
      'grpc.http_connect_target': `dns:${address}`,
      'grpc.default_authority': address,
      ...(way.user !== undefined && { 'grpc.http_connect_creds': way.user }),
    },
  };
}
