# SPDX-License-Identifier: Apache-2.0
"""docker/envoy/envoy.yaml: every field is one of Envoy's, and it goes with compose.cluster.yaml and the server.

Needs envoy_api/node_modules (npm ci in envoy_api/), whose grpc-js-xds has Envoy's own descriptions of its
configuration, and protoc.
"""

import copy
import os
import re
import subprocess
import tempfile
import unittest

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

import manifests
import serving

ENVOY = os.path.join(manifests.ROOT, "docker", "envoy", "envoy.yaml")
COMPOSE = os.path.join(manifests.ROOT, "docker", "compose.cluster.yaml")
API = os.path.join(os.path.dirname(os.path.abspath(__file__)), "envoy_api", "node_modules",
                   "@grpc", "grpc-js-xds", "deps")
BOOTSTRAP = "envoy/config/bootstrap/v3/bootstrap.proto"
EXTENSIONS = (
    "envoy/extensions/filters/http/router/v3/router.proto",
    "envoy/extensions/filters/network/http_connection_manager/v3/http_connection_manager.proto",
    "envoy/extensions/retry/host/previous_hosts/v3/previous_hosts.proto",
    "envoy/extensions/upstreams/http/v3/http_protocol_options.proto",
)


def pool_of_envoy():
    """Envoy's messages."""
    with tempfile.TemporaryDirectory() as directory:
        out = os.path.join(directory, "envoy.pb")
        _write_validation_rules(directory)
        paths = [f"-I{directory}"] + [f"-I{os.path.join(API, name)}"
                                      for name in ("envoy-api", "xds", "googleapis")]
        subprocess.run(["protoc", *paths, "--include_imports", f"--descriptor_set_out={out}",
                        BOOTSTRAP, *EXTENSIONS], check=True)
        with open(out, "rb") as file:
            described = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for file in described.file:
        pool.Add(file)
    return pool


def _write_validation_rules(directory):
    """validate/validate.proto as the package has it, with a rule that Envoy's files use and it lacks."""
    with open(os.path.join(API, "protoc-gen-validate", "validate", "validate.proto"),
              encoding="utf-8") as file:
        rules = file.read()
    if not re.search(r"message StringRules \{[^}]*ignore_empty", rules):
        rules = rules.replace("message StringRules {",
                              "message StringRules {\n  optional bool ignore_empty = 26;")
    os.mkdir(os.path.join(directory, "validate"))
    with open(os.path.join(directory, "validate", "validate.proto"), "w", encoding="utf-8") as file:
        file.write(rules)


def read(pool, document):
    """The configuration as Envoy has it. json_format.ParseError for what it does not know."""
    kind = pool.FindMessageTypeByName("envoy.config.bootstrap.v3.Bootstrap")
    get_class = getattr(message_factory, "GetMessageClass", None)
    made = get_class(kind) if get_class else message_factory.MessageFactory(pool).GetPrototype(kind)
    return json_format.ParseDict(document, made(), descriptor_pool=pool)


class EnvoyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pool = pool_of_envoy()

    def setUp(self):
        self.document = manifests.load(ENVOY)
        (self.cluster,) = self.document["static_resources"]["clusters"]
        (self.listener,) = self.document["static_resources"]["listeners"]
        self.manager = self.listener["filter_chains"][0]["filters"][0]["typed_config"]
        (self.host,) = self.manager["route_config"]["virtual_hosts"]
        (self.route,) = self.host["routes"]

    def test_envoy_knows_every_field(self):
        bootstrap = read(self.pool, self.document)
        self.assertEqual(bootstrap.static_resources.clusters[0].lb_policy, 5)  # MAGLEV

    def test_unknown_and_ill_typed_fields_are_refused(self):
        def misspell(document):
            document["static_resources"]["clusters"][0]["lb_polici"] = "MAGLEV"

        def misname(document):
            document["static_resources"]["clusters"][0]["lb_policy"] = "MAGLOV"

        def misspell_within(document):
            filters = document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"]
            filters[0]["typed_config"]["route_confg"] = {}

        for change in (misspell, misname, misspell_within):
            with self.subTest(change.__name__):
                document = copy.deepcopy(self.document)
                change(document)
                with self.assertRaises(json_format.ParseError):
                    read(self.pool, document)

    def test_it_calls_the_servers_of_the_compose_file(self):
        services = manifests.load(COMPOSE)["services"]
        servers = {name for name in services if name.startswith("server-")}
        (locality,) = self.cluster["load_assignment"]["endpoints"]
        called = {}
        for endpoint in locality["lb_endpoints"]:
            address = endpoint["endpoint"]["address"]["socket_address"]
            called[address["address"]] = address["port_value"]
        self.assertEqual(set(called), servers)
        for name, port in called.items():
            self.assertIn(f"--listen=0.0.0.0:{port}", services[name]["command"])
        listened = self.listener["address"]["socket_address"]["port_value"]
        self.assertIn(f"127.0.0.1:{listened}:{listened}", services["envoy"]["ports"])

    def test_a_sessions_calls_go_by_its_key_and_others_anywhere(self):
        self.assertEqual(self.route["route"]["hash_policy"],
                         [{"header": {"header_name": "lintel-affinity"}}])
        self.assertEqual(self.cluster["lb_policy"], "MAGLEV")

    def test_nothing_is_sent_twice_that_a_server_may_have_begun(self):
        retries = self.route["route"]["retry_policy"]["retry_on"].split(",")
        self.assertLessEqual(set(retries), {"connect-failure", "refused-stream"})

    def test_streams_are_not_cut_off_by_time(self):
        self.assertEqual(self.route["route"]["timeout"], "0s")
        self.assertGreaterEqual(serving.seconds(self.manager["stream_idle_timeout"]), 300)

    def test_servers_are_asked_how_they_are_by_grpc_and_not_pinged_too_often(self):
        (check,) = self.cluster["health_checks"]
        self.assertEqual(check["grpc_health_check"], {})
        options = self.cluster["typed_extension_protocol_options"]
        (upstream,) = options.values()
        ping = upstream["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]
        self.assertGreaterEqual(serving.seconds(ping["interval"]), 10)  # as the server bounds it
        source = os.path.join(manifests.ROOT, "server/grpc/connection_settings.cpp")
        with open(source, encoding="utf-8") as file:
            self.assertTrue(re.search(r"kMinClientPingIntervalMs = 10'000;", file.read()))


if __name__ == "__main__":
    unittest.main()
