# SPDX-License-Identifier: Apache-2.0
"""docker/compose.yaml and what it mounts agree with each other and with the server.

Needs LINTEL_SERVER.
"""

import json
import os
import tempfile
import unittest

import manifests
import serving
from compose import DOCKER, check_file, flags
from dockerfile import Dockerfile

FILE = os.path.join(DOCKER, "compose.yaml")


class ComposeTest(unittest.TestCase):
    def setUp(self):
        self.services = manifests.load(FILE)["services"]
        self.server = self.services["server"]

    def mounts(self, service):
        """{path in the container: path here} of the files a service mounts; volumes are left out."""
        found = {}
        for volume in self.services[service].get("volumes", []):
            source, target, *mode = volume.split(":")
            if source.startswith("."):
                self.assertEqual(mode, ["ro"], volume)
                found[target] = os.path.join(DOCKER, source)
                self.assertTrue(os.path.isfile(found[target]), volume)
        return found

    def test_compose_takes_the_file(self):
        check_file(self, FILE)

    def test_services_are_known_and_their_images_have_a_version(self):
        self.assertEqual(set(self.services), {"server", "demo", "prometheus", "grafana"})
        for name, service in self.services.items():
            if name in ("server", "demo"):
                self.assertEqual(service["image"], "lintel")
            else:
                self.assertRegex(service["image"], r":v?\d+\.\d+\.\d+$")
            for other in service.get("depends_on", []):
                self.assertIn(other, self.services)

    def test_nothing_is_published_beyond_this_machine(self):
        for name, service in self.services.items():
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), f"{name}: {port}")

    def test_no_service_has_privileges(self):
        for name, service in self.services.items():
            with self.subTest(name):
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertEqual(service["security_opt"], ["no-new-privileges:true"])
                if name != "grafana":  # unpacks its plugins
                    self.assertIs(service["read_only"], True)

    def test_the_server_takes_its_flags(self):
        given = flags(self.server["command"])
        for name in ("--listen", "--metrics-listen", "--http-listen"):  # serving() has its own
            del given[name]
        given["--model"] = manifests.ROOT + given["--model"]
        with tempfile.TemporaryDirectory() as directory:
            given["--session-store"] = os.path.join(directory, "sessions")
            with serving.serving([f"{name}={value}" if value else name
                                  for name, value in given.items()]) as server:
                self.assertEqual(server.get("/readyz")[0], 200)
            self.assertTrue(os.path.isfile(os.path.join(given["--session-store"], "sessions.db")))

    def test_sessions_are_on_a_volume_that_the_server_may_write(self):
        (volume,) = self.server["volumes"]
        source, target = volume.split(":")
        self.assertIn(source, manifests.load(FILE)["volumes"])
        self.assertEqual(os.path.dirname(flags(self.server["command"])["--session-store"]), target)
        self.assertIn(f"install -d -o lintel -g lintel -m 0700 {target}\n", Dockerfile().text)

    def test_the_server_builds_from_the_dockerfile(self):
        build = self.server["build"]
        self.assertEqual(self.services["demo"]["build"], build)
        self.assertEqual(os.path.realpath(os.path.join(DOCKER, build["context"])), manifests.ROOT)
        self.assertTrue(os.path.isfile(os.path.join(manifests.ROOT, build["dockerfile"])))
        self.assertEqual(self.server["healthcheck"]["test"],
                         ["CMD", *Dockerfile().health_command()])

    def test_a_drain_has_time_to_end(self):
        self.assertGreater(serving.seconds(self.server["stop_grace_period"]),
                           serving.seconds(flags(self.server["command"])["--drain-timeout"]))

    def test_the_demo_runs_once_and_only_when_asked_for(self):
        demo = self.services["demo"]
        self.assertEqual(demo["profiles"], ["demo"])
        self.assertNotIn("restart", demo)
        self.assertEqual(demo["depends_on"], {"server": {"condition": "service_healthy"}})
        given = flags(demo["command"])
        port = flags(self.server["command"])["--listen"].rpartition(":")[2]
        self.assertEqual(given["--address"], f"server:{port}")
        self.assertTrue(os.path.isfile(manifests.ROOT + given["--images"]))

    def test_prometheus_reads_the_server(self):
        path = flags(self.services["prometheus"]["command"])["--config.file"]
        (job,) = manifests.load(self.mounts("prometheus")[path])["scrape_configs"]
        port = flags(self.server["command"])["--metrics-listen"].rpartition(":")[2]
        self.assertEqual(job["static_configs"], [{"targets": [f"server:{port}"]}])
        self.assertNotIn("metrics_path", job)  # /metrics is its default

    def test_grafana_finds_prometheus_and_the_dashboard(self):
        mounts = self.mounts("grafana")
        provisioning = "/etc/grafana/provisioning"
        (source,) = manifests.load(mounts[f"{provisioning}/datasources/lintel.yaml"])["datasources"]
        (published,) = self.services["prometheus"]["ports"]
        self.assertEqual(source["url"], f"http://prometheus:{published.rpartition(':')[2]}")
        self.assertEqual(source["type"], "prometheus")
        self.assertIs(source["isDefault"], True)
        (provider,) = manifests.load(mounts[f"{provisioning}/dashboards/lintel.yaml"])["providers"]
        home = self.services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        self.assertEqual(os.path.dirname(home), provider["options"]["path"])
        with open(mounts[home], encoding="utf-8") as file:
            self.assertEqual(json.load(file)["title"], "Lintel")


if __name__ == "__main__":
    unittest.main()
