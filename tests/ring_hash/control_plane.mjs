// SPDX-License-Identifier: Apache-2.0
// A control plane for gRPC's own clients: it sends them over xDS where the servers are and how to choose one.
//
// Needs LINTEL_PACKAGES, where the packages are, whose descriptions of xDS it takes.
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';

export const installed = createRequire(join(process.env.LINTEL_PACKAGES, 'package.json'));
const grpc = installed('@grpc/grpc-js');
const protoLoader = installed('@grpc/proto-loader');

const DESCRIPTIONS = join(dirname(installed.resolve('@grpc/grpc-js-xds/package.json')), 'deps');
const { AggregatedDiscoveryService } = grpc.loadPackageDefinition(
  protoLoader.loadSync(
    [
      ...['service/discovery/v3/ads', 'config/listener/v3/listener', 'config/cluster/v3/cluster', 'config/endpoint/v3/endpoint'],
      ...['extensions/filters/network/http_connection_manager/v3/http_connection_manager', 'extensions/filters/http/router/v3/router'],
    ].map((name) => `envoy/${name}.proto`),
    {
      includeDirs: ['envoy-api', 'xds', 'googleapis', 'protoc-gen-validate'].map((name) => join(DESCRIPTIONS, name)),
      keepCase: true, // without it protobufjs packs no Any
      enums: String,
    },
  ),
).envoy.service.discovery.v3;

const any = (type, fields) => ({ '@type': `type.googleapis.com/envoy.${type}`, ...fields });

// The resources that a channel to xds:///NAME asks for, one after the other, by the types' names: one route, by the
// header's hash.
function resources(name, cluster, addresses) {
  const route = {
    match: { prefix: '' },
    route: { cluster: name, hash_policy: [{ header: { header_name: 'lintel-affinity' } }] },
  };
  const manager = any('extensions.filters.network.http_connection_manager.v3.HttpConnectionManager', {
    route_config: { virtual_hosts: [{ name, domains: ['*'], routes: [route] }] },
    http_filters: [{ name: 'router', typed_config: any('extensions.filters.http.router.v3.Router', {}) }],
  });
  const endpoint = (address) => {
    const { hostname, port } = new URL(`http://${address}`);
    return { endpoint: { address: { socket_address: { address: hostname, port_value: Number(port) } } } };
  };
  const locality = {
    locality: { region: 'here' },
    load_balancing_weight: { value: 1 },
    lb_endpoints: addresses.map(endpoint),
  };
  return [
    any('config.listener.v3.Listener', { name, api_listener: { api_listener: manager } }),
    any('config.cluster.v3.Cluster', { name, type: 'EDS', eds_cluster_config: { eds_config: { ads: {} } }, ...cluster }),
    any('config.endpoint.v3.ClusterLoadAssignment', { cluster_name: name, endpoints: [locality] }),
  ];
}

// Sends the addresses under two names: xds:///ring goes by ring_hash over `entries` places, xds:///turns by
// round_robin. `bootstrap` is what GRPC_XDS_BOOTSTRAP_CONFIG has to be for gRPC to ask here.
export async function controlPlane(addresses, entries) {
  const ring = { minimum_ring_size: { value: entries }, maximum_ring_size: { value: entries } };
  const all = [
    ...resources('ring', { lb_policy: 'RING_HASH', ring_hash_lb_config: ring }, addresses),
    ...resources('turns', { lb_policy: 'ROUND_ROBIN' }, addresses),
  ];
  const server = new grpc.Server();
  server.addService(AggregatedDiscoveryService.service, {
    // A client names all that it wants of a type; a request without other names only says how it liked the answer.
    StreamAggregatedResources(stream) {
      const sent = new Map();
      stream.on('data', ({ type_url: type, resource_names: names = [], error_detail: refusal }) => {
        if (refusal) console.error(`a client does not take ${type}: ${refusal.message}`);
        const wanted = [...names].sort().join();
        if (sent.get(type) === wanted) return;
        sent.set(type, wanted);
        const found = all.filter((one) => one['@type'] === type && names.includes(one.name ?? one.cluster_name));
        stream.write({ type_url: type, version_info: '1', nonce: String(sent.size), resources: found });
      });
      stream.on('error', () => {}); // a client that has gone
      stream.on('end', () => stream.end());
    },
    DeltaAggregatedResources: (stream) => stream.end(),
  });
  const port = await new Promise((resolve, reject) => {
    const credentials = grpc.ServerCredentials.createInsecure();
    server.bindAsync('127.0.0.1:0', credentials, (error, bound) => (error ? reject(error) : resolve(bound)));
  });
  const way = { server_uri: `127.0.0.1:${port}`, channel_creds: [{ type: 'insecure' }], server_features: ['xds_v3'] };
  return {
    bootstrap: JSON.stringify({ xds_servers: [way], node: { id: 'lintel-test', locality: {} } }),
    stop: () => server.forceShutdown(),
  };
}
