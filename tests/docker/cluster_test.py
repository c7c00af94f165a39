# SPDX-License-Identifier: Apache-2.0
"""docker/compose.cluster.yaml, what it mounts and the script beside it agree with each other and with the server.

Needs LINTEL_SERVER.
"""

import os
import subprocess
import tempfile
import unittest

import manifests
import serving
from compose import DOCKER, check_file, flags
from dockerfile import Dockerfile

FILE = os.path.join(DOCKER, "compose.cluster.yaml")
SCRIPT = os.path.join(DOCKER, "cluster_demo.sh")


class ClusterTest(unittest.TestCase):
    def setUp(self):
        self.services = manifests.load(FILE)["services"]
        self.servers = {name: service for name, service in self.services.items()
                        if name.startswith("server-")}

    def test_compose_takes_the_file(self):
        check_file(self, FILE)

    def test_services_are_known_and_their_images_have_a_version(self):
        self.assertEqual(set(self.services), {"server-1", "server-2", "server-3", "valkey", "envoy",
                                              "text", "prometheus"})
        for name, service in self.services.items():
            if name in (*self.servers, "text"):
                self.assertEqual(service["image"], "lintel")
            else:
                self.assertRegex(service["image"], r":v?\d+\.\d+\.\d+$")
            for other in service.get("depends_on", []):
                self.assertIn(other, self.services)

    def test_nothing_is_published_beyond_this_machine_and_no_port_twice(self):
        published = [port for service in self.services.values() for port in service.get("ports", [])]
        for port in published:
            self.assertTrue(port.startswith("127.0.0.1:"), port)
        here = [port.split(":")[1] for port in published]
        self.assertEqual(len(here), len(set(here)))

    def test_no_service_has_privileges(self):
        for name, service in self.services.items():
            with self.subTest(name):
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertEqual(service["security_opt"], ["no-new-privileges:true"])
                self.assertIs(service["read_only"], True)

    def test_mounted_files_exist(self):
        for name, service in self.services.items():
            for volume in service.get("volumes", []):
                source, _, *mode = volume.split(":")
                if source.startswith("."):
                    self.assertEqual(mode, ["ro"], f"{name}: {volume}")
                    self.assertTrue(os.path.isfile(os.path.join(DOCKER, source)), volume)
                else:
                    self.assertIn(source, manifests.load(FILE)["volumes"])

    def test_the_servers_share_a_store_and_have_host_names_of_their_own(self):
        stores = {flags(server["command"])["--session-store"] for server in self.servers.values()}
        self.assertEqual(stores, {"redis://valkey:6379"})
        for name, server in self.servers.items():
            self.assertEqual(server["hostname"], name)  # --replica-id's default
            self.assertEqual(server["healthcheck"]["test"],
                             ["CMD", *Dockerfile().health_command()])
            self.assertGreater(serving.seconds(server["stop_grace_period"]),
                               serving.seconds(flags(server["command"])["--drain-timeout"]))
            self.assertLess(serving.seconds(flags(server["command"])["--drain-handover"]),
                            serving.seconds(flags(server["command"])["--drain-timeout"]))

    def test_the_store_forgets_nothing(self):
        command = self.services["valkey"]["command"]
        given = dict(zip(command[1::2], command[2::2]))
        self.assertEqual(given["--maxmemory-policy"], "noeviction")
        self.assertEqual(given["--appendonly"], "yes")

    def test_a_server_takes_their_flags(self):
        given = flags(self.servers["server-1"]["command"])
        for name in ("--listen", "--metrics-listen", "--http-listen"):  # serving() has its own
            del given[name]
        given["--model"] = manifests.ROOT + given["--model"]
        with tempfile.TemporaryDirectory() as directory:
            given["--session-store"] = os.path.join(directory, "sessions")  # here there is no Valkey
            with serving.serving([f"{name}={value}" if value else name
                                  for name, value in given.items()]) as server:
                self.assertEqual(server.get("/readyz")[0], 200)

    def test_prometheus_reads_all_of_them(self):
        (mounted,) = [volume.split(":")[0] for volume in self.services["prometheus"]["volumes"]
                      if volume.split(":")[1] == "/etc/prometheus/prometheus.yml"]
        (job,) = manifests.load(os.path.join(DOCKER, mounted))["scrape_configs"]
        self.assertEqual(job["static_configs"],
                         [{"targets": [f"{name}:9464" for name in sorted(self.servers)]}])

    def test_the_script_names_existing_files(self):
        subprocess.run(["bash", "-n", SCRIPT], check=True)
        self.assertTrue(os.access(SCRIPT, os.X_OK))
        with open(SCRIPT, encoding="utf-8") as file:
            text = file.read()
        for name in (*self.servers, "text", "envoy", "prometheus"):
            self.assertIn(name, text)


if __name__ == "__main__":
    unittest.main()
