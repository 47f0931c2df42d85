"""RabbitMQ for tests.

`PERDURE_TEST_RABBITMQ` names a broker that we were given: only what begins with a prefix of our own is made there, and
its empty queues stay. Otherwise, and for tests that stop a broker or take its data away, a private one is started from
`rabbitmq-server` on the PATH, or from Debian's packages, which are fetched into a cache of the user's and only unpacked
there: nothing is installed, and no rights are needed. Rules kept here: only what was started here is ended, also when
the tests are killed; a broker that cannot be had is an error that says what to do.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from types import TracebackType

from perdure.testing.servers import debian
from perdure.testing.servers.ports import free_port

GIVEN = "PERDURE_TEST_RABBITMQ"
#: How long a broker may take to start, in seconds; it takes 4 to 18.
PATIENCE = 60.0
#: Where Debian has the script itself; the one on its PATH wants to be root and to become somebody else.
DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
PACKAGES = (
    "rabbitmq-server",
    *(
        f"erlang-{part}"
        for part in (
            *("asn1", "base", "crypto", "eldap", "inets", "mnesia", "os-mon", "parsetools", "public-key"),
            *("runtime-tools", "ssl", "syntax-tools", "tools", "xmerl"),
        )
    ),
)

#: Runs the broker and the daemon that it registers with, until its input ends, which it does however this process ends.
_WARDEN = (
    'epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 & "$1" < /dev/null & cat > /dev/null; rm -rf "$2"; kill -9 -$$'
)
#: Debian's own has its place written in it.
_ERL = """#!/bin/sh
ROOTDIR=$(dirname "$(dirname "$(readlink -f "$0")")")/usr/lib/erlang
BINDIR=$(echo "$ROOTDIR"/erts-*/bin); EMU=beam; PROGNAME=erl
export ROOTDIR BINDIR EMU PROGNAME
exec "$BINDIR/erlexec" "$@"
"""
_CONFIG = """listeners.tcp.1 = 127.0.0.1:{port}
disk_free_limit.absolute = 1MB
log.console = false
log.file.level = warning
"""
_TLS = """listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.certfile = {certificate}
ssl_options.keyfile = {key}
ssl_options.verify = verify_none
"""


class NoServer(RuntimeError):
    """There is no RabbitMQ here, and no way to get one."""


class RabbitServer:
    """A private broker on a loopback port; it can be paused, killed and started again.

    With a certificate and its key it takes TLS as well.
    """

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        self.port = free_port(beside=4)
        self.certificate = certificate
        self._folder = Path(tempfile.mkdtemp(prefix="perdure-rabbitmq-"))
        self._warden: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def tls_url(self) -> str:
        return f"amqps://guest:guest@127.0.0.1:{self.port + 3}/"

    def __enter__(self) -> RabbitServer:
        try:
            self.start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Also again after `kill`, on the same port."""
        script, path = find_server()
        config = _CONFIG.format(port=self.port)
        if self.certificate is not None:
            certificate, key = self.certificate
            config += _TLS.format(port=self.port + 3, certificate=certificate, key=key)
        (self._folder / "rabbitmq.conf").write_text(config)
        with (self._folder / "output").open("ab") as output:
            self._warden = subprocess.Popen(
                ["/bin/sh", "-c", _WARDEN, "warden", script, str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=self._environment(path),
                start_new_session=True,  # Ctrl-C is for the tests, and all of it can be ended at once
            )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if time.monotonic() > deadline:
                self.kill()
                raise NoServer(f"RabbitMQ did not start: {self.log()[-3000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        warden, self._warden = self._warden, None
        if warden is not None:
            os.killpg(warden.pid, signal.SIGKILL)
            warden.communicate()

    def forget(self) -> None:
        """Take all data away from a broker that was killed."""
        shutil.rmtree(self._folder / "data", ignore_errors=True)

    def pause(self) -> None:
        """From now on it takes connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def do(self, *words: str) -> str:
        """Let `rabbitmqctl` do something, which takes a second or two."""
        script, path = find_server()
        tool = Path(script).parent / "rabbitmqctl"
        done = subprocess.run(
            [str(tool), "--quiet", *words],
            check=True,
            capture_output=True,
            text=True,
            cwd=self._folder,
            env=self._environment(path),
        )
        return done.stdout

    def log(self) -> str:
        """What it wrote into its logs."""
        files = [self._folder / "output", *sorted((self._folder / "log").glob("*.log"))]
        return "\n".join(file.read_text(errors="replace") for file in files if file.exists())

    def _answers(self) -> bool:
        """Whether it speaks AMQP; its port is open a little earlier."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as line:
                line.sendall(b"AMQP\0\0\x09\x01")
                return line.recv(1) == b"\x01"
        except OSError:
            return False

    def _signal(self, number: int) -> None:
        if self._warden is not None:
            os.killpg(self._warden.pid, number)

    def _environment(self, path: str) -> dict[str, str]:
        """Nothing of it depends on the name of this host, or on what else runs here."""
        folder = self._folder
        theirs = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        return {
            **theirs,
            "HOME": str(folder),  # where the cookie lies
            "PATH": path,
            "ERL_EPMD_PORT": str(self.port + 2),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"perdure{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self.port + 1),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }


def new_prefix() -> str:
    """A prefix that is nobody else's."""
    return f"test-{uuid.uuid4().hex[:12]}"


def find_server() -> tuple[str, str]:
    """The script that starts a broker, and the PATH on which it finds Erlang."""
    path = os.environ.get("PATH", os.defpath)
    if DEBIAN.exists():
        return str(DEBIAN), path
    if found := shutil.which("rabbitmq-server"):
        return found, path
    return unpacked(debian.cache("rabbitmq"))


def unpacked(home: Path) -> tuple[str, str]:
    """A broker from Debian's packages in that directory; fetched once, also by those who ask at the same time."""
    with debian.once(home) as empty:
        if empty:
            _fetch(home)
    [script] = home.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
    [erts] = home.glob("usr/lib/erlang/erts-*/bin")
    return str(script), f"{home / 'bin'}:{erts}:{os.environ.get('PATH', os.defpath)}"


def _fetch(home: Path) -> None:
    try:
        debian.unpack(home, PACKAGES)
    except debian.NoPackages as error:
        raise NoServer(
            f"RabbitMQ could not be fetched for the tests ({error}): set {GIVEN} to the address of a broker, or put"
            " rabbitmq-server on the PATH"
        ) from error
    (home / "bin").mkdir(exist_ok=True)
    (home / "bin" / "erl").write_text(_ERL)
    (home / "bin" / "erl").chmod(0o755)
