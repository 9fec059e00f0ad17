"""Flower's real processes on this computer, for tests: a SuperLink, SuperNodes, and the `flwr` command."""

import datetime
import ipaddress
import json
import os
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PATIENCE = 1200
"""Seconds after which whatever is waited for fails the test; a busy computer takes long to start twenty processes."""


class Lab:
    """A SuperLink and SuperNodes, which all know each other by their folder; leaving it ends them all."""

    def __init__(self, folder, tls=False):
        self.folder, self.tls = Path(folder), tls
        self.home, self.state = self.folder / "home", self.folder / "state"
        self.home.mkdir(parents=True)
        self.port = free_port()
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "DAGC_STATE": str(self.state),
            "OMP_NUM_THREADS": "1",
        }
        secure = f'root-certificates = "{self.folder}/ca.crt"' if tls else "insecure = true"
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "127.0.0.1:{self.port}"\n{secure}\n'
        )
        self.started = {}
        if tls:
            certificates(self.folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.started.values():
            process.kill()
        for process in self.started.values():
            process.wait()
        for _ in range(100):  # what they have started is not in their groups: Flower gives each its own session
            left = self.descendants()
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.1)
        raise AssertionError(f"processes {self.descendants()} cannot be ended")

    def descendants(self):
        """Processes that have our folder in their environment."""
        mark, found = f"FLWR_HOME={self.home}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                variables = (folder / "environ").read_bytes().split(b"\0")
                dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if mark in variables and not dead:
                found.append(int(folder.name))
        return found

    def start(self, name, *command):
        """Start a process in the background; what it says goes to a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.started[name] = subprocess.Popen(
                list(map(str, command)), env=self.environment, stdout=log, stderr=log, cwd=self.folder
            )

    def link(self, *options):
        """Start the SuperLink and wait until it answers."""
        ours = self.folder
        secure = (
            ["--ssl-certfile", ours / "link.crt", "--ssl-keyfile", ours / "link.key", "--ssl-ca-certfile",
             ours / "ca.crt", "--enable-supernode-auth"]
            if self.tls
            else ["--insecure"]
        )  # fmt: skip
        where = ["--host", "127.0.0.1", "--port", self.port, "--disable-runtime-dependency-installation"]
        self.start("link", "flower-superlink", *secure, *where, *options)
        url = f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/health"
        context = ssl.create_default_context(cafile=str(ours / "ca.crt")) if self.tls else None

        def healthy():
            assert self.started["link"].poll() is None, self.log("link")
            try:
                with urllib.request.urlopen(url, context=context, timeout=5) as answer:
                    return answer.status == 200
            except OSError:
                return False

        wait_for(healthy, "the SuperLink to be healthy")

    def node(self, number, of):
        """Start a SuperNode."""
        ours = self.folder
        secure = ["--insecure"]
        if self.tls:
            secure = ["--root-certificates", ours / "ca.crt", "--auth-supernode-private-key", ours / f"node-{number}"]
        where = ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", free_port()]
        about = ["--node-config", f"partition-id={number} num-partitions={of}"]
        self.start(f"node-{number}", "flower-supernode", *secure, *where, *about)

    def kill(self, name):
        """As if the plug were pulled: the process and whatever it has started."""
        process = self.started.pop(name)
        below = children(process.pid)
        for pid in (process.pid, *below):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()
        (self.folder / f"{name}.log").rename(self.folder / f"{name}.{process.pid}.log")

    def flwr(self, *command):
        """The `flwr` command; its answer as JSON."""
        done = subprocess.run(
            ["flwr", *map(str, command), "--format", "json"],
            env=self.environment, capture_output=True, text=True, timeout=PATIENCE, cwd=self.folder,
        )  # fmt: skip
        try:
            answer = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            raise AssertionError(f"flwr {shlex.join(map(str, command))}: {done.stdout}{done.stderr}") from None
        assert answer["success"], answer
        return answer

    def run(self, app, *, federation=None, **config):
        """Start a run; its number."""
        given = " ".join(f"{name.replace('_', '-')}={json.dumps(value)}" for name, value in config.items())
        more = ["--federation-config", federation] if federation else []
        return self.flwr("run", app, "lab", "--run-config", given, *more)["run-id"]

    def about(self, run):
        """What `flwr ls` says about a run."""
        return next(one for one in self.flwr("ls", "lab")["runs"] if one["run-id"] == run)

    def wait(self, run, name, rounds):
        """Wait until a run has done all its rounds and has ended; what `flwr ls` says about it then."""
        wait_for(lambda: len(self.rounds(name)) >= rounds, f"round {rounds}; {self.log('link')}")
        return self.ended(run)

    def ended(self, run):
        """Wait until a run has ended as it should; what `flwr ls` says about it then."""
        about = {}

        def ended():
            about.update(self.about(run))
            return about["status"].startswith("finished")

        wait_for(ended, f"the run to end; {self.log('link')}", every=5)
        assert about["status"] == "finished:completed", f"{about}\n{self.log('link')}"
        return about

    def said(self, run):
        """What the app on the server has said in a run: it is not in the SuperLink's log."""
        command = ["flwr", "log", str(run), "lab"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def with_nodes(self, count):
        """Start the SuperLink and SuperNodes and wait for them."""
        self.link()
        for number in range(count):
            if self.tls:
                self.flwr("supernode", "register", node_key(self.folder, number), "lab")
            self.node(number, count)
        for number in range(count):
            wait_for(lambda number=number: self.online(number), f"node {number}")

    def online(self, number):
        """Whether a SuperNode has found the SuperLink."""
        assert self.started[f"node-{number}"].poll() is None, self.log(f"node-{number}")
        return "SuperNode ID" in self.log(f"node-{number}")

    def rounds(self, name):
        """The lines of the server's metrics so far."""
        path = self.state / "runs" / name / "metrics.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def log(self, name):
        """What a process has said."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-6000:] if path.exists() else ""


def wait_for(condition, what, every=0.5):
    """Ask again and again until it is so."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE} seconds for {what}"
        time.sleep(every)


def children(pid):
    """All processes below one."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def certificates(folder):
    """An authority of our own, and a certificate of it for 127.0.0.1."""
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab")])
    authority = ec.generate_private_key(ec.SECP384R1())

    def certificate(key, subject):
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    root = (
        certificate(authority, name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority, hashes.SHA384())
    )
    key = ec.generate_private_key(ec.SECP384R1())
    address = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    )
    own = (
        certificate(key, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")]))
        .add_extension(address, critical=False)
        .sign(authority, hashes.SHA384())
    )
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "link.crt").write_bytes(own.public_bytes(serialization.Encoding.PEM))
    (folder / "link.key").write_bytes(private(key))


def node_key(folder, number):
    """A SuperNode's keys; the public one's path."""
    key = ec.generate_private_key(ec.SECP384R1())
    plain = serialization.NoEncryption()
    (folder / f"node-{number}").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, plain)
    )
    public = folder / f"node-{number}.pub"
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return public


def private(key):
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
