# SPDX-License-Identifier: Apache-2.0
"""The alert rules, the dashboard and the Prometheus Operator's objects ask for what there is.

Needs LINTEL_SERVER and LINTEL_CLI. promtool, where it is, reads the rules as Prometheus does.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import manifests
import serving

DOCKER = os.path.join(manifests.ROOT, "docker")
RULES = os.path.join(DOCKER, "monitoring", "rules.yml")
MONITORING = os.path.join(manifests.KUBERNETES, "monitoring")
# Labels that Prometheus adds to what it reads, and that histograms have.
OF_PROMETHEUS = {"job", "instance", "le"}
METRIC = re.compile(r"\b(?:lintel|process)_[a-z_]+")


def promtool():
    return shutil.which("promtool") or os.environ.get("PROMTOOL")


def rules():
    return [rule for group in manifests.load(RULES)["groups"] for rule in group["rules"]]


def dashboard_queries():
    with open(os.path.join(DOCKER, "grafana-dashboard.json"), encoding="utf-8") as file:
        dashboard = json.load(file)
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


class MonitoringTest(unittest.TestCase):
    def test_every_metric_and_label_that_is_asked_for_is_exported(self):
        with tempfile.TemporaryDirectory() as directory, serving.serving(
                ["--model", serving.MODEL, "--insecure-public", "--session-store",
                 os.path.join(directory, "sessions")]) as server:
            subprocess.run(
                [os.environ["LINTEL_CLI"], "generate", "--address", server.address,
                 "--prompt-tokens", "0", "--max-new-tokens", "2"], check=True, capture_output=True)
            exported = server.get("/metrics")[1]
        names = set(re.findall(r"^([a-z_]+)[{ ]", exported, re.MULTILINE))
        labels = set(re.findall(r'[{,]([a-z_]+)="', exported)) | OF_PROMETHEUS
        queries = [rule["expr"] for rule in rules()] + dashboard_queries()
        self.assertGreater(len(queries), 20)
        for query in queries:
            with self.subTest(query):
                if not query.startswith("up{"):
                    self.assertTrue(METRIC.search(query))
                self.assertLessEqual(set(METRIC.findall(query)), names)
                asked = re.findall(r"([a-z_]+)(?:=~|!~|!=|=)\"", query)
                for group in re.findall(r"\b(?:by|on) ?\(([^)]*)\)", query):
                    asked += re.findall(r"[a-z_]+", group)
                self.assertLessEqual(set(asked), labels)

    def test_codes_and_reasons_of_the_rules_are_the_server_s(self):
        with open(os.path.join(manifests.ROOT, "proto", "google", "rpc", "code.proto"), encoding="utf-8") as file:
            known = set(re.findall(r"^ +([A-Z_]+) = \d+;", file.read(), re.MULTILINE))
        asked = [code for rule in rules() for codes in re.findall(r'code=~"([^"]+)"', rule["expr"])
                 for code in codes.split("|")]
        self.assertIn("RESOURCE_EXHAUSTED", asked)
        self.assertLessEqual(set(asked), known)

    def test_flags_that_the_rules_name_are_the_server_s(self):
        shown = subprocess.run([os.environ["LINTEL_SERVER"], "--help-all"], check=True,
                               capture_output=True, text=True).stdout
        with open(RULES, encoding="utf-8") as file:
            named = set(re.findall(r"--[a-z-]+", file.read()))
        self.assertGreater(len(named), 2)
        self.assertLessEqual(named, set(re.findall(r"--[a-z-]+", shown)))

    def test_every_alert_has_a_name_of_its_own_a_severity_and_a_text(self):
        names = [rule["alert"] for rule in rules()]
        self.assertEqual(len(names), len(set(names)))
        for rule in rules():
            with self.subTest(rule["alert"]):
                self.assertRegex(rule["alert"], "^Lintel[A-Z]")
                self.assertIn(rule["labels"]["severity"], ("critical", "warning"))
                self.assertEqual(set(rule["annotations"]), {"summary", "description"})
                self.assertIn('job="lintel"', rule["expr"])

    def test_compose_s_prometheus_reads_the_rules(self):
        services = manifests.load(os.path.join(DOCKER, "compose.yaml"))["services"]
        config = manifests.load(os.path.join(DOCKER, "monitoring", "prometheus.yml"))
        self.assertEqual(config["rule_files"], ["/etc/prometheus/rules.yml"])
        self.assertIn("./monitoring/rules.yml:/etc/prometheus/rules.yml:ro",
                      services["prometheus"]["volumes"])
        (job,) = config["scrape_configs"]
        self.assertEqual(job["job_name"], "lintel")

    def test_promtool_takes_the_rules_and_they_fire_when_they_should(self):
        if promtool() is None:
            self.skipTest("no promtool (Debian's package prometheus has it)")
        here = os.path.dirname(os.path.abspath(__file__))
        for command in (["check", "rules", RULES],
                        ["test", "rules", os.path.join(here, "alerts_test.yaml")]):
            done = subprocess.run([promtool(), *command], capture_output=True, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class OperatorTest(unittest.TestCase):
    def setUp(self):
        self.documents = manifests.render(MONITORING)
        self.service = manifests.one(self.documents, "Service", "lintel-metrics")
        self.monitor = manifests.one(self.documents, "ServiceMonitor")

    def test_the_rule_is_that_of_compose(self):
        rule = manifests.one(self.documents, "PrometheusRule")
        self.assertEqual(rule["spec"]["groups"], manifests.load(RULES)["groups"])

    def test_every_file_is_a_resource(self):
        files = {os.path.basename(path) for path in glob.glob(os.path.join(MONITORING, "*.yaml"))}
        kustomization = manifests.load(os.path.join(MONITORING, "kustomization.yaml"))
        self.assertEqual(set(kustomization["resources"]), files - {"kustomization.yaml"})

    def test_the_monitor_finds_the_pods_of_every_variant(self):
        wanted = self.monitor["spec"]["selector"]["matchLabels"].items()
        self.assertLessEqual(wanted, self.service["metadata"]["labels"].items())
        (endpoint,) = self.monitor["spec"]["endpoints"]
        (port,) = self.service["spec"]["ports"]
        self.assertEqual(endpoint["port"], port["name"])
        # The job's name is a label of the Service.
        self.assertEqual(self.service["metadata"]["labels"][self.monitor["spec"]["jobLabel"]],
                         "lintel")
        for variant in manifests.VARIANTS:
            documents = manifests.render(os.path.join(manifests.KUBERNETES, variant))
            workload = next(document for document in documents if document["metadata"]["name"] == "lintel"
                            and document["kind"] in ("Deployment", "StatefulSet"))
            pod = workload["spec"]["template"]
            self.assertLessEqual(self.service["spec"]["selector"].items(),
                                 pod["metadata"]["labels"].items())
            (container,) = pod["spec"]["containers"]
            self.assertIn({"name": port["targetPort"], "containerPort": port["port"]},
                          container["ports"])
            # Clients' Service is another, and the monitor does not take it for one of metrics.
            others = manifests.one(documents, "Service")["metadata"].get("labels", {})
            self.assertFalse(wanted <= others.items())


if __name__ == "__main__":
    unittest.main()
