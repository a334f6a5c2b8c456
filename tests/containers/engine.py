"""The container engine that the tests use: the machine's Docker, or a Podman of their own.

Podman's containers run in a network of their own that leads nowhere: `up` needs no registry, and no
port of this machine is taken. Without a registry the base images come from bases.py.
"""

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import bases
from fixtures.wait import wait_for

PROJECT = "semel-test"
"""Compose's name for the containers, so that those of a user stay apart."""

COMMAND_SECONDS = 900
BUILD_SECONDS = 3600
COMPOSE = "github.com/docker/compose/v2@v2.40.3"
HEALTH_SECONDS = 2
"""The pause between two rounds of Podman's health checks, which systemd starts elsewhere."""

PACKAGES = {
    "podman": "podman", "runc": "runc", "iptables": "iptables", "debootstrap": "debootstrap",
    "/usr/lib/podman/netavark": "netavark", "/usr/lib/podman/aardvark-dns": "aardvark-dns",
}  # fmt: skip
"""Debian's packages by the program of each."""

RUN = Path("/run/semel-containers")
"""Podman's files of this boot. Their names must not change while its images exist."""

CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=16384:16384"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
exit_command_delay = 10
runtime = "runc"
tmp_dir = "{run}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{run}/networks"
"""

STORAGE_CONF = """\
[storage]
driver = "overlay"
graphroot = "{folder}/images"
runroot = "{run}/storage"
"""

PROXY = {"httpProxy": "http://127.0.0.1:9", "httpsProxy": "http://127.0.0.1:9"}
"""Docker's proxy for each container. Nothing listens there: the services need no proxy."""


class Docker:
    """The machine's Docker. `project`: the folder of docker-compose.yaml."""

    program = "docker"

    def __init__(self, project: Path) -> None:
        self.project = project
        self.env = dict(os.environ)
        self.compose_command = ["docker", "compose"]

    @staticmethod
    def why_not() -> str | None:
        """Why it cannot be used."""
        for words in (["compose", "version"], ["info"]):
            if not shutil.which("docker") or subprocess.run(
                ["docker", *words], capture_output=True, timeout=60, check=False
            ).returncode:
                return "Docker does not run here"
        return None

    def build(self) -> None:
        """Build the images of docker-compose.yaml."""
        self.compose("build", seconds=BUILD_SECONDS)

    def compose(self, *words: str, seconds: float = COMMAND_SECONDS) -> str:
        """Run `docker compose` to its end. Returns what it prints."""
        return self.run(*self.compose_command, "--project-name", PROJECT, *words, seconds=seconds)

    def run(self, *words: str, seconds: float = COMMAND_SECONDS, **options: Any) -> str:
        result = subprocess.run(
            words, cwd=self.project, env=self.env, stdin=subprocess.DEVNULL, text=True,
            capture_output=True, timeout=seconds, check=False, **options,
        )  # fmt: skip
        output = f"{result.stdout[-6000:]}\n{result.stderr[-6000:]}"
        assert result.returncode == 0, f"{' '.join(words)} exits with {result.returncode}: {output}"
        return result.stdout

    def image_of(self, service: str) -> str:
        """The image of a service."""
        services = json.loads(self.compose("config", "--format", "json"))["services"]
        return services[service]["image"]

    def containers(self) -> dict[str, dict[str, Any]]:
        """The containers as the engine describes them, by service."""
        names = self.objects("ps", "--all")
        found = json.loads(self.run(self.program, "inspect", *names)) if names else []
        return {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in found}

    def objects(self, *words: str) -> list[str]:
        """The ids of containers (`ps`), volumes (`volume ls`) or networks of the project."""
        label = f"label=com.docker.compose.project={PROJECT}"
        return self.run(self.program, *words, "--quiet", "--filter", label).split()

    def crash(self, service: str) -> None:
        """End the main process of a service by SIGKILL, as the kernel does without memory."""
        container = self.containers()[service]
        pid, image = str(container["State"]["Pid"]), self.containers()["spark"]["Config"]["Image"]
        shared = ("run", "--rm", "--pid", "host", "--network", "none", "--user", "0")
        self.run(self.program, *shared, image, "bash", "-c", f"kill -KILL {pid}")


class Podman(Docker):
    """A Podman whose images are in `folder`, with Docker's compose program.

    Its containers end with the block `with Podman.running(...)`; its images stay for the next run.
    """

    program = "podman"

    def __init__(self, project: Path, folder: Path) -> None:
        super().__init__(project)
        self.folder, self.compose_command = folder, [str(_compose_program(folder))]
        run = RUN / hashlib.sha256(bytes(folder)).hexdigest()[:8]
        run.mkdir(parents=True, exist_ok=True)
        self.socket = run / "socket"
        socket = f"unix://{self.socket}"
        for name, text in {"containers": CONTAINERS_CONF, "storage": STORAGE_CONF}.items():
            # Podman's own defaults may be higher than this process may set.
            files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            values = {"folder": folder, "run": run, "files": files}
            (run / f"{name}.conf").write_text(text.format(**values))
        (run / "config.json").write_text(json.dumps({"proxies": {"default": PROXY}}))
        self.env |= {
            "CONTAINERS_CONF": f"{run}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{run}/storage.conf",
            "DOCKER_CONFIG": str(run),
            "DOCKER_HOST": socket,
        }
        self.service = ["podman", "system", "service", "--time", "0", socket]

    @staticmethod
    def why_not() -> str | None:
        missing = [name for program, name in PACKAGES.items() if not shutil.which(program)]
        if os.getuid() != 0 or missing or not shutil.which("go"):
            return f"nor, as root, Go and Debian's packages {' '.join(missing or PACKAGES.values())}"
        return None

    @classmethod
    @contextmanager
    def running(cls, project: Path, folder: Path) -> Iterator["Podman"]:
        """It, with its API and its health checks, for a block."""
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            engine = cls(project, folder)
            engine.socket.unlink(missing_ok=True)
            # Its own network has nothing but a loopback address.
            server = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh",
                 *engine.service],
                env=engine.env, stdin=subprocess.DEVNULL, start_new_session=True,
                stdout=stack.enter_context((folder / "podman.log").open("w")),
                stderr=subprocess.STDOUT,
            )  # fmt: skip
            stack.callback(_end, server)
            wait_for(engine.socket.exists, "Podman's API")
            engine.remove_containers()  # Of a run that was killed.
            stack.callback(engine.remove_containers)
            ended = threading.Event()
            checks = threading.Thread(target=engine.check_health, args=(ended,))
            checks.start()
            stack.callback(checks.join)
            stack.callback(ended.set)
            yield engine

    def build(self) -> None:
        """The same targets and arguments by `podman build`, with a network."""
        bases.make(self)
        services = json.loads(self.compose("config", "--format", "json"))["services"]
        for service in services.values():
            if "build" not in service:
                continue
            build = service["build"]
            self.podman_build(
                service["image"], build["context"], "--target", build["target"],
                *(f"--build-arg={name}={value}" for name, value in build["args"].items()),
            )  # fmt: skip

    def podman_build(self, image: str, context: str, *options: str) -> None:
        """Build an image with this machine's network, for the package registries."""
        self.run(
            "podman", "build", "--isolation", "chroot", "--network", "host", "--pull-never",
            "--format", "docker", "--tag", image, *options, context, seconds=BUILD_SECONDS,
        )  # fmt: skip

    def remove_containers(self) -> None:
        """Remove all, by the API, whose network they are in."""
        remote = ("podman", "--url", self.env["DOCKER_HOST"])
        self.run(*remote, "rm", "--all", "--force", "--time", "0")
        self.run(*remote, "volume", "rm", "--all", "--force")
        self.run(*remote, "network", "prune", "--force")

    def check_health(self, ended: threading.Event) -> None:
        """Run the health check of each container, as systemd's timers do, until `ended`."""
        while not ended.wait(HEALTH_SECONDS):
            listed = ["podman", "ps", "--quiet"]
            for words in (
                ["podman", "healthcheck", "run", container]
                for container in subprocess.run(
                    listed, env=self.env, capture_output=True, text=True, check=False
                ).stdout.split()
            ):
                subprocess.run(words, env=self.env, check=False, capture_output=True)


def _end(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(60)


def _compose_program(folder: Path) -> Path:
    """`docker compose`, which Go builds once from its module."""
    program = folder / COMPOSE.replace("/", "_")
    if not program.exists():
        # `go install` refuses a module with directives such as `exclude`.
        download = ["go", "mod", "download", "-json", COMPOSE]
        module = json.loads(subprocess.run(download, capture_output=True, check=True).stdout)
        with tempfile.TemporaryDirectory(dir=folder) as new:
            build = ["go", "build", "-C", module["Dir"], "-o", f"{new}/compose", "./cmd"]
            subprocess.run(build, check=True, timeout=BUILD_SECONDS)
            Path(new, "compose").rename(program)
    return program
