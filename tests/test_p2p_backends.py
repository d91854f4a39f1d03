"Sessions on another machine (a real SSH server of the test's own) and on a Ray cluster leave the records that they leave here."
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from oaml.prompt2policy.backends import RayBackend, SSHBackend, SSH_TRIES, new_job, run_job
from oaml.prompt2policy.contracts import StartSessionRequest
from oaml.prompt2policy.jail import missing_jail
from oaml.prompt2policy.loop import new_session, run_session_folder
from test_p2p import contents

pytestmark = pytest.mark.skipif(missing_jail() is not None, reason=f"no jail: {missing_jail()}")
SSHD = shutil.which("sshd") or next(filter(os.path.exists, ["/usr/sbin/sshd"]), None)
needs_sshd = pytest.mark.skipif(not (SSHD and shutil.which("ssh") and shutil.which("ssh-keygen")),
                                reason="there is no sshd, ssh or ssh-keygen; apt-get install openssh-server")
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="there is no ray; pip install 'oaml[scale]'")
REQUEST = StartSessionRequest(prompt="go right", env_id="line", llm="scripted", max_iterations=2)
WAIT_S = 240  # seconds, for what takes ten on an idle machine


class Node:
    "An SSH server on a free port of this machine, with keys of its own."
    def __init__(self, folder):
        self.folder, key, host_key = folder, folder/"key", folder/"host"
        for path in (key, host_key): subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        shutil.copy(f"{key}.pub", folder/"authorized")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        (folder/"config").write_text(f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {host_key}\nAuthorizedKeysFile {folder}/authorized\n"
                                     f"StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile {folder}/pid\nPermitRootLogin yes\n")
        Path("/run/sshd").mkdir(exist_ok=True)  # where Debian's sshd goes to drop its privileges
        self.server = subprocess.Popen([SSHD, "-D", "-f", str(folder/"config")], stderr=subprocess.DEVNULL, start_new_session=True)
        self.ssh = ["ssh", "-F", "none", "-p", str(port), "-i", str(key), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o",
                    f"UserKnownHostsFile={folder}/known", "-o", "ConnectTimeout=10", "-o", "LogLevel=ERROR"]
        self.backend = SSHBackend(f"{getpass.getuser()}@127.0.0.1", sys.executable, str(folder/"there"), self.ssh)
        wait_until(lambda: subprocess.run([*self.ssh, self.backend.host, "true"], capture_output=True).returncode == 0, "the server answers")

    def end(self):
        "The node is gone: the server and the connections that it holds."
        try: os.killpg(self.server.pid, signal.SIGKILL)
        except ProcessLookupError: pass
        self.server.wait()


def wait_until(holds, what):
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, f"still not: {what}"
        time.sleep(.1)


def ran(backend, runs_dir):
    "A session of a job, run to its end by a backend."
    job = new_job(runs_dir, [REQUEST])
    run_job(job, backend)
    [session] = job.sessions()
    return session


@pytest.fixture(scope="module")
def here(tmp_path_factory): return comparable(ran(None, tmp_path_factory.mktemp("here")))


@pytest.fixture
def node(tmp_path):
    (tmp_path/"node").mkdir()
    node = Node(tmp_path/"node")
    yield node
    node.end()


def comparable(session):
    assert session.read_status().status == "completed", session.read_status()
    return {name: what for name, what in contents(session).items() if not name.endswith(".lock")}  # an open file, no record


def processes_of(session):
    "The command lines of all processes that name the session."
    lines = subprocess.run(["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if session.session_id in line and "run_session" in line]


@needs_sshd
def test_the_same_records_by_ssh(node, here, tmp_path):
    assert comparable(ran(node.backend, tmp_path)) == here


@needs_ray
def test_the_same_records_by_ray(here, tmp_path):
    backend = RayBackend(cpus=1)
    try: assert comparable(ran(backend, tmp_path)) == here
    finally: backend.ray.shutdown()


@needs_sshd
def test_what_is_stopped_leaves_no_process_on_the_node(node, tmp_path):
    session = new_session(tmp_path, REQUEST.model_copy(update=dict(total_timesteps=10_000_000)))
    node.backend.submit(session)
    wait_until(lambda: processes_of(session), "it runs there")
    assert node.backend.status(session).status == "running"
    node.backend.stop(session)
    wait_until(lambda: not processes_of(session), "it is gone")


@needs_sshd
def test_a_node_that_dies_is_an_error_and_the_session_goes_on_elsewhere(node, here, tmp_path):
    session = new_session(tmp_path, REQUEST)
    node.backend.submit(session)
    node.end()
    answers = [node.backend.status(session) for _ in range(SSH_TRIES)]
    assert [a.status for a in answers] == ["running"]*(SSH_TRIES - 1) + ["error"]
    assert "does not answer" in answers[-1].error and "resume" in answers[-1].error
    for line in processes_of(session): os.kill(int(line.split()[0]), signal.SIGKILL)  # what a dead machine's processes are
    run_session_folder(session)
    assert comparable(session) == here
