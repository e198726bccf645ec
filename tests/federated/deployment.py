"""Start and stop a real federation on this machine, with SuperLink, SuperNodes, TLS and keys, for tests."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

APP = Path(__file__).parents[2] / "deploy" / "flower"
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)


def certificates(place: Path) -> None:
    """Write a certificate authority, and a server certificate with its key for 127.0.0.1."""
    now = datetime.datetime.now(datetime.UTC)
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("ca", "server")}
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    for name, key in keys.items():
        subject = issuer if name == "ca" else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["ca"].public_key())
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
            .add_extension(names, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(authority, critical=False)
            .sign(keys["ca"], hashes.SHA256())
        )
        (place / f"{name}.crt").write_bytes(built.public_bytes(serialization.Encoding.PEM))
        (place / f"{name}.key").write_bytes(_pem(key))


def node_key(place: Path, name: str) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, plain)
    (place / f"{name}.node").write_bytes(private)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (place / f"{name}.node.pub").write_bytes(public + b"\n")


def ancestors(process: int) -> set[int]:
    """Return the ids of a process's parent, its parent's parent, and so on."""
    found: set[int] = set()
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        found.add(process)
    return found


class Deployment:
    """The processes of a federation; it ends only processes that it started, by their ids."""

    def __init__(self, place: Path) -> None:
        self.place, self.port = place, free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        source = str(Path(__file__).parents[2] / "src")
        self.environment = os.environ | {
            "FLWR_HOME": str(place / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        certificates(place)
        (place / "flwr").mkdir()
        (place / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "test"\n[superlink.test]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{place / "ca.crt"}"\n'
        )

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.place / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=log, stderr=log, env=self.environment, cwd=self.place, start_new_session=True,
            )  # fmt: skip
        self.processes[name] = process
        return process

    def superlink(self) -> None:
        keys = {"certfile": "server.crt", "keyfile": "server.key", "ca-certfile": "ca.crt"}
        tls = [part for flag, file in keys.items() for part in (f"--ssl-{flag}", str(self.place / file))]
        self.start(
            "superlink", "flower-superlink", *tls, "--enable-supernode-auth", "--host", "127.0.0.1",
            "--port", str(self.port), "--database", str(self.place / "superlink.sqlite"),
        )  # fmt: skip
        self.wait_for(lambda: self.flwr("ls", "test", check=False).returncode == 0, 60, "SuperLink")

    def supernode(self, name: str, config: dict[str, str], register: bool = True) -> None:
        """Start a node; the first time, create and register its key."""
        if not (self.place / f"{name}.node").exists():
            node_key(self.place, name)
            if register:
                self.flwr("supernode", "register", str(self.place / f"{name}.node.pub"), "test")
        settings = [part for key, value in config.items() for part in (f"--{key}", value)]
        self.start(
            name, "gnomon", "site", "--superlink", f"127.0.0.1:{self.port}", "--root-certificates",
            str(self.place / "ca.crt"), "--key", str(self.place / f"{name}.node"), "--port", str(free_port()),
            *settings,
        )  # fmt: skip

    def flwr(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments],
            capture_output=True, text=True, env=self.environment, cwd=self.place, timeout=120, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def run(self, app: Path = APP, **settings: str | float) -> None:
        given = " ".join(
            f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in settings.items()
        )
        self.flwr("run", str(app), "test", "--run-config", given)

    def supernode_again(self, name: str, config: dict[str, str]) -> None:
        """Restart a killed node until it stays up: the SuperLink refuses it while the old one counts as online."""

        def stays() -> bool:
            if name not in self.processes or self.processes[name].poll() is not None:
                self.supernode(name, config)
            time.sleep(8)
            return self.processes[name].poll() is None

        self.wait_for(stays, 150, f"{name} once more")

    def status(self) -> str:
        """Return the status of the newest run."""
        found = json.loads(self.flwr("ls", "test", "--format", "json").stdout)
        return str(found["runs"][0]["status"])

    def wait_for(self, ready, seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if ready():
                return
            time.sleep(1)
        raise AssertionError(f"{what} was not ready after {seconds:.0f} s\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in self.place.glob("*.log")
        )

    def pace(self) -> float:
        """Return how many seconds a site's process takes to start on this machine now."""
        started = time.monotonic()
        command = [sys.executable, "-c", "import gnomon.federated.deployment.flower"]
        subprocess.run(command, check=True, env=self.environment, cwd=self.place)
        return time.monotonic() - started

    def server_app(self) -> int:
        """Return the process id of the server app, which the SuperLink has started."""
        for found in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                named = b"flwr-serverapp" in (found / "cmdline").read_bytes()
                if named and self.processes["superlink"].pid in ancestors(int(found.name)):
                    return int(found.name)
        raise AssertionError(f"no server app is running\n{self.logs()}")

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        process = self.processes.pop(name)
        os.killpg(process.pid, how)  # its own process group: the process and its children
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)

    def stop_all(self) -> None:
        for name in list(self.processes)[::-1]:
            self.stop(name)
