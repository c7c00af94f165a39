# SPDX-License-Identifier: Apache-2.0
"""The image as it is run: what is in it, who it is, how it serves and stops.

scripts/container_test.sh sets LINTEL_ENGINE (docker or podman), LINTEL_IMAGE and LINTEL_BASE.
A container has no network but its own loopback; clients join it there, so no port is taken.
"""

import contextlib
import json
import os
import subprocess
import tempfile
import time
import unittest
import uuid

import manifests
import serving
from dockerfile import Dockerfile

ENGINE = os.environ["LINTEL_ENGINE"]
IMAGE = os.environ["LINTEL_IMAGE"]
BASE = os.environ["LINTEL_BASE"]
MAX_BYTES_BEYOND_BASE = 120_000_000
UNPRIVILEGED = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
BUILD_TOOLS = ["cc", "c++", "gcc", "g++", "gcc-12", "g++-12", "clang", "as", "ld", "mold", "make",
               "cmake", "ninja", "ccache", "protoc", "git", "python3"]
PATIENCE_SECONDS = 120  # a busy machine is no failure


def engine(*arguments, check=True):
    done = subprocess.run([ENGINE, *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{ENGINE} {' '.join(arguments)}: {done.returncode}\n"
                             f"{done.stdout}{done.stderr}")
    return done


def inspect(*arguments):
    (found,) = json.loads(engine("inspect", *arguments).stdout)
    return found


def eventually(condition):
    """Waits until it holds; returns whether it ever did."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


class Container:
    """A running container of the image."""

    def __init__(self, name):
        self.name = name

    def run_inside(self, *command, check=True):
        return engine("exec", self.name, *command, check=check)

    def lintel(self, *arguments, check=True):
        """The image's own client, in a container of its own that shares only the network."""
        return engine("run", "--rm", "--network", f"container:{self.name}", *UNPRIVILEGED,
                      "--entrypoint", "lintel", IMAGE, *arguments, check=check)

    def http_status(self, path, port):
        """The status of GET on loopback. The image has no HTTP client, but bash."""
        request = (f"exec 3<>/dev/tcp/127.0.0.1/{port} && "
                   f"printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3")
        return int(self.run_inside("bash", "-c", request).stdout.split()[1])

    def healthy(self):
        """Returns whether the image's HEALTHCHECK succeeds."""
        if ENGINE == "podman":  # runs it by a timer of systemd, which may be missing
            return engine("healthcheck", "run", self.name, check=False).returncode == 0
        return inspect(self.name)["State"]["Health"]["Status"] == "healthy"

    def running(self):
        return inspect(self.name)["State"]["Running"]

    def logs(self):
        done = engine("logs", self.name)
        return done.stdout + done.stderr

    def stop(self):
        """SIGTERM, and the exit status; SIGKILL (137) when the drain has had its time."""
        engine("stop", "-t", "60", self.name)
        return inspect(self.name)["State"]["ExitCode"]


@contextlib.contextmanager
def started(*arguments, options=()):
    """A container that serves; `arguments` in place of the image's own."""
    name = f"lintel-test-{uuid.uuid4().hex[:8]}"
    engine("run", "--detach", "--name", name, "--network", "none", *UNPRIVILEGED, *options, IMAGE,
           *arguments)
    container = Container(name)
    try:
        if not eventually(lambda: container.healthy() or not container.running()):
            raise AssertionError(f"never healthy:\n{container.logs()}")
        if not container.running():
            raise AssertionError(f"ended early:\n{container.logs()}")
        yield container
    finally:
        engine("rm", "--force", name, check=False)


class ImageTest(unittest.TestCase):
    def setUp(self):
        self.image = inspect("--type", "image", IMAGE)

    @staticmethod
    def shell(script, options=tuple(UNPRIVILEGED)):
        return engine("run", "--rm", "--network", "none", *options, "--entrypoint", "sh", IMAGE,
                      "-c", script).stdout

    def test_it_is_at_most_120_mb_more_than_its_base(self):
        beyond = self.image["Size"] - inspect("--type", "image", BASE)["Size"]
        print(f"{beyond / 1e6:.1f} MB beyond the base ... ", end="", flush=True)
        self.assertGreater(beyond, 1_000_000)
        self.assertLessEqual(beyond, MAX_BYTES_BEYOND_BASE)

    def test_it_has_labels(self):
        labels = self.image["Config"]["Labels"]
        prefix = "org.opencontainers.image."
        self.assertEqual(labels[prefix + "title"], "lintel")
        self.assertEqual(labels[prefix + "version"], Dockerfile.project_version())
        self.assertEqual(labels[prefix + "base.name"], BASE)
        self.assertTrue(labels[prefix + "description"])
        self.assertRegex(labels[prefix + "created"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertRegex(labels[prefix + "revision"], r"^([0-9a-f]{40}|unknown)$")

    def test_its_health_check_is_lintel_without_a_shell(self):
        check = self.image["Config"].get("Healthcheck") or self.image["Healthcheck"]  # or: podman's
        self.assertEqual(check["Test"], ["CMD", "lintel", "health", "--deadline", "3"])

    def test_it_runs_as_a_user_that_can_write_nothing_but_sessions(self):
        self.assertEqual(self.image["Config"]["User"], "10001:10001")
        self.assertEqual(self.shell("id -u; id -g").split(), ["10001", "10001"])
        # Even where the root file system is not read-only, and not the folders that Debian has for
        # all users. /var/lib/lintel is there for a volume.
        writable = self.shell("find / -xdev -not -type l -writable 2>/dev/null || true",
                              options=()).split()
        self.assertLessEqual(set(writable), {"/tmp", "/var/tmp", "/run/lock", "/var/lock", "/var/lib/lintel"})

    def test_it_has_no_compiler(self):
        self.assertEqual(self.shell(f"for tool in {' '.join(BUILD_TOOLS)}; do "
                                    "command -v $tool; done; true"), "")
        packages = self.shell("dpkg-query -W -f='${Package}\\n'").split()
        self.assertIn("libgrpc++1.51", packages)
        self.assertEqual([name for name in packages if name.endswith("-dev")], [])

    def test_it_has_the_models_and_its_three_programs(self):
        self.shell("test -r /weights/mnist-linear-small/model.safetensors && "
                   "test -r /weights/demo-digits.png && lintel-server --version && "
                   "lintel --help && lintel-convert --help")


class ContainerTest(unittest.TestCase):
    def test_it_serves_without_privileges_and_stops_when_asked_to(self):
        with started() as container:
            root = container.run_inside("cat", "/proc/1/mounts").stdout.splitlines()[0].split()
            self.assertEqual(root[1], "/")
            self.assertIn("ro", root[3].split(","))
            status = container.run_inside("cat", "/proc/1/status").stdout
            self.assertRegex(status, r"\nUid:\t10001\t10001\t10001\t10001\n")
            self.assertRegex(status, r"\nCapEff:\t0+\n")
            self.assertRegex(status, r"\nNoNewPrivs:\t1\n")

            self.assertEqual(container.lintel("health").stdout, "serving\n")
            self.check_completion(container)
            self.assertEqual(container.stop(), 0)
            self.assertIn("stopped", container.logs())
            self.assertNotIn("cut short", container.logs())

    def check_completion(self, container):
        results = json.loads(container.lintel(
            "complete", "--images", "/weights/demo-digits.png", "--index", "0-1", "--occlude",
            "bottom:14", "--samples", "2", "--seed", "1", "--json", "-").stdout)
        self.assertEqual(results["model"], "mnist-linear-small")
        self.assertEqual([image["index"] for image in results["images"]], [0, 1])
        for image in results["images"]:
            self.assertEqual(image["hidden_pixels"], 14 * 28)
            first, second = (sample["tokens"] for sample in image["samples"])
            self.assertEqual(len(first), 28 * 28)
            self.assertEqual(first[:14 * 28], second[:14 * 28])
            self.assertNotEqual(first, second)

    def test_compose_s_server_and_demo(self):
        services = manifests.load(os.path.join(manifests.ROOT, "docker", "compose.yaml"))["services"]
        with started(*services["server"]["command"],
                     options=["--add-host", "server:127.0.0.1",
                              "--volume", "/var/lib/lintel"]) as container:
            self.assertEqual(container.http_status("/metrics", 9464), 200)
            self.assertEqual(services["demo"]["entrypoint"], ["lintel"])
            # Inside, where `server` has an address: it is a name of Compose's network.
            shown = container.run_inside("lintel", *services["demo"]["command"]).stdout
            self.assertRegex(shown.splitlines()[-1], r"images/s")
            self.assertEqual(container.stop(), 0)

    def test_the_pods_of_kubernetes(self):
        # Variants that need neither a volume nor a store beside them.
        for variant in ("base", "tls"):
            with self.subTest(variant), tempfile.TemporaryDirectory() as secrets:
                self.check_pod(variant, secrets)

    def check_pod(self, variant, secrets):
        directory = os.path.join(manifests.KUBERNETES, variant)
        pod = manifests.one(manifests.render(directory), "Deployment")["spec"]["template"]["spec"]
        (spec,) = pod["containers"]
        options = ["--volume", f"{directory}/lintel.toml:/etc/lintel/lintel.toml:ro"]
        if variant == "tls":
            serving.make_certificate(secrets)
            self.make_tokens(secrets)
            for name in os.listdir(secrets):
                os.chmod(os.path.join(secrets, name), 0o444)  # fsGroup does that in a cluster
            os.chmod(secrets, 0o755)
            options += ["--volume", f"{secrets}:/etc/lintel-tls:ro", "--volume",
                        f"{secrets}:/etc/lintel-tokens:ro", "--env",
                        "LINTEL_TLS_CA=/etc/lintel-tls/tls.crt", "--env",
                        "LINTEL_ADDRESS=localhost:50051"]
        context = pod["securityContext"]
        user = f"{context['runAsUser']}:{context['runAsGroup']}"
        with started(*spec["args"], options=[*options, "--user", user]) as container:
            for name in ("startupProbe", "readinessProbe", "livenessProbe"):
                if "httpGet" in spec[name]:
                    path = spec[name]["httpGet"]["path"]
                    self.assertEqual(container.http_status(path, 9464), 200, name)
            command = spec["lifecycle"]["preStop"]["exec"]["command"]
            container.run_inside(command[0], "0")
            self.assertEqual(container.stop(), 0)

    @staticmethod
    def make_tokens(directory):
        shown = engine("run", "--rm", "--network", "none", "--entrypoint", "lintel", IMAGE,
                       "token", "new", "alice").stdout
        with open(os.path.join(directory, "tokens"), "w", encoding="utf-8") as file:
            file.write(shown.splitlines()[-1] + "\n")  # the first is the token


if __name__ == "__main__":
    unittest.main()
