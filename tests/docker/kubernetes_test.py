# SPDX-License-Identifier: Apache-2.0
"""The manifests agree with themselves, with the image and with what the server serves.

Needs LINTEL_SERVER and LINTEL_CLI, the two binaries. schema/ holds the fields against the API.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
import unittest

import yaml

import manifests
import serving
from dockerfile import Dockerfile

UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "KiB": 1 << 10, "MiB": 1 << 20,
         "GiB": 1 << 30}


def number_of_bytes(text):
    number, unit = re.fullmatch(r"(\d+)(\w*)", text).groups()
    return int(number) * UNITS[unit]


def kustomize_is_recent():
    """Returns whether there is a kubectl that builds one directory on another."""
    if shutil.which("kubectl") is None:
        return False
    done = subprocess.run(["kubectl", "version", "--client", "--output=json"],
                          capture_output=True, text=True, check=False)
    return done.returncode == 0 and "kustomizeVersion" in json.loads(done.stdout)


class Variant:
    """Expectations of a test for one of the kustomizations."""

    def __init__(self, name, workload):
        self.directory = os.path.join(manifests.KUBERNETES, name)
        self.documents = manifests.render(self.directory)
        self.deployment = manifests.one(self.documents, workload)
        self.pod = self.deployment["spec"]["template"]
        (self.container,) = self.pod["spec"]["containers"]
        self.config_path = os.path.join(self.directory, "lintel.toml")
        self.config = tomllib.loads(
            manifests.one(self.documents, "ConfigMap")["data"]["lintel.toml"])
        self.flags = self.expanded_flags()
        self.config |= dict(flag.removeprefix("--").split("=", 1) for flag in self.flags)
        self.tls = "tls-cert" in self.config

    def expanded_flags(self):
        """The flags after --config FILE, with $(NAME) as the container's environment has it."""
        given = {}
        for source in self.container.get("envFrom", []):
            given |= manifests.one(self.documents, "ConfigMap", source["configMapRef"]["name"])["data"]
        return [re.sub(r"\$\((\w+)\)", lambda name: given[name[1]], flag)
                for flag in self.container["args"][2:]]

    def one(self, kind):
        return manifests.one(self.documents, kind)

    def port(self, name_or_number):
        """The container port that a name or number means; fails when there is none."""
        (port,) = [port["containerPort"] for port in self.container["ports"]
                   if name_or_number in (port["name"], port["containerPort"])]
        return port

    def probes(self):
        return {name: self.container[name]
                for name in ("startupProbe", "readinessProbe", "livenessProbe")}


class ManifestTests:
    """Tests of one variant: the classes below name it."""

    name = None
    workload = "Deployment"
    kinds = ["ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy",
             "PodDisruptionBudget", "Service"]

    def setUp(self):
        self.variant = Variant(self.name, self.workload)

    def test_the_kinds_that_it_needs_are_there_once(self):
        ours = [document for document in self.variant.documents
                if document["metadata"]["name"] == "lintel"]
        self.assertEqual(sorted(document["kind"] for document in ours), self.kinds)

    def test_kubectl_builds_the_same(self):
        if not kustomize_is_recent():
            self.skipTest("no kubectl, or one before 1.25")
        variant = self.variant
        done = subprocess.run(["kubectl", "kustomize", variant.directory],
                              capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        # A ConfigMap's name ends with a hash of its data, so that a change restarts the pods.
        built = list(yaml.safe_load_all(re.sub(r"name: (lintel(?:-values)?)-[a-z0-9]{10}\n",
                                               r"name: \1\n", done.stdout)))
        def order(document):  # any, for both
            return json.dumps(document, sort_keys=True)

        self.assertEqual(sorted(built, key=order), sorted(variant.documents, key=order))

    def test_selectors_match_the_labels_of_the_pod(self):
        variant = self.variant
        labels = variant.pod["metadata"]["labels"].items()
        selectors = [variant.deployment["spec"]["selector"]["matchLabels"],
                     variant.one("Service")["spec"]["selector"],
                     variant.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
                     variant.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"]]
        for spread in variant.pod["spec"]["topologySpreadConstraints"]:
            selectors.append(spread["labelSelector"]["matchLabels"])
        for selector in selectors:
            self.assertTrue(selector)
            self.assertLessEqual(selector.items(), labels)

    def test_ports_are_those_that_the_server_listens_on(self):
        variant = self.variant
        listen, metrics, http = (int(variant.config[key].rpartition(":")[2])
                                 for key in ("listen", "metrics-listen", "http-listen"))
        self.assertEqual(variant.port("grpc"), listen)
        self.assertEqual(variant.port("metrics"), metrics)
        self.assertEqual(variant.port("http"), http)
        served = [variant.port(port["targetPort"])
                  for port in variant.one("Service")["spec"]["ports"]]
        self.assertEqual(served, [listen, http])
        allowed = [port["port"] for rule in variant.one("NetworkPolicy")["spec"]["ingress"]
                   for port in rule["ports"]]
        self.assertEqual(allowed, [listen, http, metrics])
        annotations = variant.pod["metadata"]["annotations"]
        self.assertEqual(int(annotations["prometheus.io/port"]), metrics)
        for name, probe in variant.probes().items():
            wanted = listen if "grpc" in probe else metrics
            (action,) = [probe[kind] for kind in ("grpc", "httpGet") if kind in probe]
            self.assertEqual(variant.port(action["port"]), wanted, name)

    def test_grpc_probes_speak_to_plain_text_only(self):
        variant = self.variant
        for name in ("startupProbe", "readinessProbe"):
            self.assertEqual("grpc" in variant.probes()[name], not variant.tls)
        # Health turns during a drain; a liveness probe by it would end the drain.
        self.assertEqual(variant.container["livenessProbe"]["httpGet"]["path"], "/healthz")

    def test_the_server_takes_the_configuration_and_serves_what_is_asked_of_it(self):
        variant = self.variant
        self.assertEqual(variant.container["args"][:2], ["--config", "/etc/lintel/lintel.toml"])
        with tempfile.TemporaryDirectory() as directory:
            # Paths of the container, here: flags win over the file.
            arguments = ["--config", variant.config_path, "--model", serving.MODEL, *variant.flags]
            if "session-store" in variant.config:
                arguments += ["--session-store", os.path.join(directory, "sessions")]
            if "models" in variant.config:
                arguments += ["--models", directory]
            if variant.tls:
                certificate, key = serving.make_certificate(directory)
                tokens = serving.make_tokens(directory, os.environ["LINTEL_CLI"])
                arguments += ["--tls-cert", certificate, "--tls-key", key, "--auth-tokens",
                              tokens]
            with serving.serving(arguments) as server:
                for name, probe in variant.probes().items():
                    if "httpGet" in probe:
                        self.assertEqual(server.get(probe["httpGet"]["path"])[0], 200, name)
                path = variant.pod["metadata"]["annotations"]["prometheus.io/path"]
                status, exported = server.get(path)
                self.assertEqual(status, 200)
                scaled = (variant.one("HorizontalPodAutoscaler")["spec"]["metrics"]
                          if "HorizontalPodAutoscaler" in self.kinds else [])
                for metric in scaled:
                    name = metric["pods"]["metric"]["name"]
                    self.assertIn(f"\n# TYPE {name} gauge\n", exported)

    def test_the_autoscaler_scales_the_deployment(self):
        variant = self.variant
        if self.workload != "Deployment":
            self.assertNotIn("HorizontalPodAutoscaler", self.kinds)
            return
        spec = variant.one("HorizontalPodAutoscaler")["spec"]
        self.assertEqual(spec["scaleTargetRef"], {
            "apiVersion": variant.deployment["apiVersion"], "kind": "Deployment",
            "name": variant.deployment["metadata"]["name"]})
        self.assertNotIn("replicas", variant.deployment["spec"])
        self.assertLess(spec["minReplicas"], spec["maxReplicas"])
        # One pod may always go: a node can be emptied.
        budget = variant.one("PodDisruptionBudget")["spec"]
        self.assertLess(budget["maxUnavailable"], spec["minReplicas"])

    def test_a_drain_has_time_to_end(self):
        variant = self.variant
        sleep, before = variant.container["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual(sleep, "sleep")
        self.assertGreater(variant.pod["spec"]["terminationGracePeriodSeconds"],
                           int(before) + serving.seconds(variant.config["drain-timeout"]))

    def test_the_server_stays_within_its_resources(self):
        variant = self.variant
        limits = variant.container["resources"]["limits"]
        self.assertEqual(variant.container["resources"]["requests"], limits)
        self.assertEqual(int(variant.config["workers"]), int(limits["cpu"]))
        # Sessions have what the plan leaves of the pod's limit.
        self.assertEqual(variant.config.get("session-memory", "auto"), "auto")
        self.assertLessEqual(number_of_bytes(variant.config.get("model-memory", "0")),
                             number_of_bytes(limits["memory"]) // 2)

    def test_pods_have_no_privileges(self):
        variant = self.variant
        user, group = map(int, Dockerfile().user().split(":"))
        pod = variant.pod["spec"]
        self.assertEqual(pod["securityContext"], {
            "runAsNonRoot": True, "runAsUser": user, "runAsGroup": group, "fsGroup": group,
            "seccompProfile": {"type": "RuntimeDefault"}})
        self.assertIs(pod["automountServiceAccountToken"], False)
        self.assertEqual(variant.container["securityContext"], {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]}})

    def test_files_that_the_configuration_names_are_mounted(self):
        variant = self.variant
        volumes = {volume["name"]: volume for volume in variant.pod["spec"]["volumes"]}
        claimed = {claim["metadata"]["name"]
                   for claim in variant.deployment["spec"].get("volumeClaimTemplates", [])}
        mounts = {mount["mountPath"]: volumes.pop(mount["name"])
                  for mount in variant.container["volumeMounts"] if mount["name"] not in claimed}
        self.assertEqual(volumes, {}, "a volume is not mounted")
        config_map = mounts.pop("/etc/lintel")["configMap"]["name"]
        self.assertEqual(config_map, variant.one("ConfigMap")["metadata"]["name"])
        if "models" in variant.config:
            claim = mounts.pop(variant.config["models"])["persistentVolumeClaim"]["claimName"]
            manifests.one(variant.documents, "PersistentVolumeClaim", claim)
        named = {os.path.dirname(variant.config[key])
                 for key in ("tls-cert", "tls-key", "auth-tokens") if key in variant.config}
        self.assertEqual(set(mounts), named)
        for mount in mounts.values():
            self.assertEqual(mount["secret"]["defaultMode"], 0o440)
        for model in variant.config.get("model", []):
            self.assertTrue(os.path.exists(manifests.ROOT + model + "/config.json"))

    def test_plain_text_is_subject_to_the_network_policy(self):
        variant = self.variant
        self.assertEqual(variant.config.get("insecure-public", False), not variant.tls)
        policy = variant.one("NetworkPolicy")["spec"]
        self.assertEqual(policy["policyTypes"], ["Ingress", "Egress"])
        self.check_egress(policy["egress"])
        self.assertTrue(all(rule["from"] for rule in policy["ingress"]))

    def check_egress(self, rules):
        self.assertEqual(rules, [])

    def test_the_image_has_the_version_of_the_project(self):
        version = Dockerfile().project_version()
        self.assertEqual(Dockerfile().argument("VERSION"), version)
        variant = self.variant
        self.assertEqual(variant.container["image"], f"lintel:{version}")


class BaseTest(ManifestTests, unittest.TestCase):
    name = "base"


class TlsTest(ManifestTests, unittest.TestCase):
    name = "tls"


class HubTest(ManifestTests, unittest.TestCase):
    name = "hub"

    def check_egress(self, rules):
        self.assertEqual({allowed["port"] for rule in rules for allowed in rule["ports"]}, {53, 443})

    def test_a_pod_pulls_the_model_of_the_values_to_where_the_server_looks(self):
        (pull,) = self.variant.pod["spec"]["initContainers"]
        self.assertEqual(pull["command"], ["lintel", "pull", "--if-missing", "$(MODEL)"])
        (source,) = pull["envFrom"]
        values = manifests.one(self.variant.documents, "ConfigMap",
                               source["configMapRef"]["name"])["data"]
        self.assertRegex(values["MODEL"], r"^[\w.-]+/[\w.-]+(:\w+)?$")
        given = {each["name"]: each for each in pull["env"]}
        self.assertEqual(given["HF_HUB_CACHE"]["value"], self.variant.config["models"])
        self.assertTrue(given["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["optional"])
        self.assertEqual(pull["image"], self.variant.container["image"])
        self.assertEqual(pull["securityContext"], self.variant.container["securityContext"])
        (mount,) = pull["volumeMounts"]
        self.assertEqual(mount["mountPath"], self.variant.config["models"])

    def test_the_values_decide_image_and_sizes(self):
        with tempfile.TemporaryDirectory() as directory:
            shutil.copytree(manifests.KUBERNETES, directory, dirs_exist_ok=True)
            path = os.path.join(directory, "hub", "values.env")
            values = {"IMAGE": "registry.example/lintel:1", "MODEL": "one/other", "STORAGE": "77Gi",
                      "CPU": "9", "MEMORY": "88Gi", "MODEL_MEMORY": "55GiB",
                      "SESSION_MEMORY": "11GiB"}
            with open(path, encoding="utf-8") as file:
                text = file.read()
            self.assertEqual(re.findall(r"^(\w+)=", text, re.MULTILINE), list(values))
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(f"{name}={value}\n" for name, value in values.items())
            variant = Variant(os.path.join(directory, "hub"), "Deployment")
        (pull,) = variant.pod["spec"]["initContainers"]
        self.assertEqual([pull["image"], variant.container["image"]], [values["IMAGE"]] * 2)
        sizes = {"cpu": "9", "memory": "88Gi"}
        self.assertEqual(variant.container["resources"], {"requests": sizes, "limits": sizes})
        claim = manifests.one(variant.documents, "PersistentVolumeClaim", "lintel-models")
        self.assertEqual(claim["spec"]["resources"]["requests"]["storage"], "77Gi")
        self.assertEqual(variant.flags, ["--workers=9", "--model-memory=55GiB",
                                         "--session-memory=11GiB"])


class ServingRuntimeTest(unittest.TestCase):
    def test_the_server_takes_its_flags_and_answers_its_probes(self):
        runtime = manifests.load(os.path.join(manifests.KUBERNETES, "kserve",
                                              "serving-runtime.yaml"))["spec"]
        (container,) = runtime["containers"]
        given = container["args"]
        self.assertEqual(container["image"], f"lintel:{Dockerfile().project_version()}")
        self.assertEqual(given[given.index("--model") + 1], "{{.Name}}=/mnt/models")
        ports = {flag: given[given.index(flag) + 1].rpartition(":")[2]
                 for flag in ("--http-listen", "--metrics-listen")}
        (port,) = container["ports"]
        self.assertEqual(str(port["containerPort"]), ports["--http-listen"])
        # Starts it as KServe does, with a model that is here and ports that are free.
        arguments = ["--model", "mine=" + serving.MODEL]
        arguments += [each for each in given[given.index("--insecure-public"):]]
        with serving.serving(arguments) as server:
            for name in ("readinessProbe", "livenessProbe"):
                probe = container[name]["httpGet"]
                self.assertEqual(str(probe["port"]), ports["--metrics-listen"])
                self.assertEqual(server.get(probe["path"])[0], 200, name)


class SharedStoreTest(ManifestTests, unittest.TestCase):
    name = "shared-store"

    def check_egress(self, rules):
        store = manifests.one(self.variant.documents, "StatefulSet", "lintel-store")
        service = manifests.one(self.variant.documents, "Service", "lintel-store")
        host, _, port = self.variant.config["session-store"].removeprefix("redis://").partition(":")
        self.assertEqual(service["metadata"]["name"], host)
        self.assertEqual([served["port"] for served in service["spec"]["ports"]], [int(port)])
        labels = store["spec"]["template"]["metadata"]["labels"]
        to_store, to_names = rules
        (peer,) = to_store["to"]
        self.assertEqual(peer["podSelector"]["matchLabels"], labels)
        self.assertEqual(service["spec"]["selector"], labels)
        self.assertEqual([allowed["port"] for allowed in to_store["ports"]], [int(port)])
        self.assertEqual({allowed["port"] for allowed in to_names["ports"]}, {53})

    def test_none_but_the_servers_reach_the_store(self):
        policy = manifests.one(self.variant.documents, "NetworkPolicy", "lintel-store")["spec"]
        (rule,) = policy["ingress"]
        (peer,) = rule["from"]
        self.assertEqual(peer["podSelector"]["matchLabels"],
                         self.variant.pod["metadata"]["labels"])
        self.assertEqual(policy["egress"], [])

    def test_the_store_forgets_nothing_and_acknowledges_what_is_on_its_disk(self):
        store = manifests.one(self.variant.documents, "StatefulSet", "lintel-store")
        (container,) = store["spec"]["template"]["spec"]["containers"]
        arguments = container["args"]
        given = dict(zip(arguments[1::2], arguments[2::2]))
        self.assertEqual(given["--maxmemory-policy"], "noeviction")
        self.assertEqual((given["--appendonly"], given["--appendfsync"]), ("yes", "always"))
        (mount,) = container["volumeMounts"]
        self.assertEqual(mount["mountPath"], given["--dir"])

    def test_no_pod_is_a_sessions_and_an_upgrade_hands_calls_over(self):
        service = self.variant.one("Service")["spec"]
        self.assertEqual(service["sessionAffinity"], "None")
        self.assertNotIn("sessionAffinityConfig", service)
        rolling = self.variant.deployment["spec"]["strategy"]["rollingUpdate"]
        self.assertEqual(rolling["maxUnavailable"], 0)
        self.assertLess(serving.seconds(self.variant.config["drain-handover"]),
                        serving.seconds(self.variant.config["drain-timeout"]))


class EmbeddedStoreTest(ManifestTests, unittest.TestCase):
    name = "embedded-store"
    workload = "StatefulSet"
    kinds = ["ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "StatefulSet"]

    def test_sessions_are_on_a_volume_of_each_pods_own(self):
        (claim,) = self.variant.deployment["spec"]["volumeClaimTemplates"]
        self.assertEqual(claim["spec"]["accessModes"], ["ReadWriteOncePod"])
        (mount,) = [mount for mount in self.variant.container["volumeMounts"]
                    if mount["name"] == claim["metadata"]["name"]]
        self.assertEqual(os.path.dirname(self.variant.config["session-store"]), mount["mountPath"])

    def test_pods_have_names_that_clients_may_come_back_to(self):
        name = self.variant.deployment["spec"]["serviceName"]
        service = manifests.one(self.variant.documents, "Service", name)["spec"]
        self.assertEqual(service["clusterIP"], "None")
        self.assertLessEqual(service["selector"].items(),
                             self.variant.pod["metadata"]["labels"].items())


if __name__ == "__main__":
    unittest.main()
