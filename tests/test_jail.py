"Published ways out of Python sandboxes, tried in the jail and, for comparison, under resource limits alone; canaries stand outside."
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from oaml.prompt2policy.jail import Jail, JailError, missing_jail

pytestmark = pytest.mark.skipif(bool(missing_jail()) or platform.machine() != "x86_64",
                                reason=missing_jail() or "the escapes use system call numbers of x86_64")

# Each is the body of a function. D: a folder with the files secret, victim; PID, ADDRESS: a process that holds the secret; TCP, UDP: ports.
# The word ESCAPED in the answer is a capability that was gained (memory that runs, a namespace) and leaves no trace outside.
ESCAPES = dict(
    subclasses_popen="[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen'][0](['mkdir', D+'/x']).wait()",
    warnings_builtins="[c for c in ().__class__.__mro__[1].__subclasses__() if c.__name__ == 'catch_warnings'][0]()._module.sys.modules['os'].mkdir(D+'/x')",
    builtin_self="print.__self__.__import__('os').mkdir(D+'/x')",
    frame_globals="import sys; sys._getframe(1).f_globals['os'].mkdir(D+'/x')",
    generator_frame="""
        def g(): yield me.gi_frame.f_back
        me = g()
        for frame in me: break
        while 'os' not in frame.f_globals: frame = frame.f_back
        frame.f_globals['os'].mkdir(D+'/x')""",
    traceback_frame="""
        try: 1/0
        except ZeroDivisionError as e: e.__traceback__.tb_frame.f_back.f_globals['os'].symlink(D, D+'/x')""",
    gc_objects="import gc; [o for o in gc.get_objects() if getattr(o, '__name__', '') == 'posix'][0].mkdir(D+'/x')",
    format_traversal="""
        class T:
            def __format__(self, spec): return str(__import__('os').mkdir(spec))
        '{0:{1}}'.format(T(), D+'/x')""",
    pickle_reduce="""
        import os, pickle
        class P:
            def __reduce__(self): return os.mkdir, (D+'/x',)
        pickle.loads(pickle.dumps(P()))""",
    numpy_pickle="""
        import os, io, pickle
        class P:
            def __reduce__(self): return os.mkdir, (D+'/x',)
        f = io.BytesIO(); np.save(f, np.array([P()], object), allow_pickle=True); f.seek(0); np.load(f, allow_pickle=True)""",
    ctypes_mkdir="import ctypes; ctypes.CDLL(None).mkdir((D+'/x').encode(), 0o777)",
    ctypes_system="import ctypes; ctypes.CDLL(None).system(('mkdir ' + D + '/x').encode())",
    ctypes_syscall="import ctypes; ctypes.CDLL(None).syscall(83, (D+'/x').encode(), 0o777)",
    ctypes_pythonapi="import ctypes; ctypes.pythonapi.PyRun_SimpleString(('import os; os.mkdir(%r)' % (D+'/x')).encode())",
    numpy_memmap="np.memmap(D+'/x', mode='w+', shape=(1,))",
    open_write="open(D+'/x', 'w')",
    open_read="return open(D+'/secret').read()",
    openat="import os; return os.read(os.open(D+'/secret', os.O_RDONLY), 99).decode()",
    list_folder="import os; return os.listdir(D)",
    stat_file="import os; return 'ESCAPED' if os.stat(D+'/secret').st_size else 0",
    unlink="import os; os.unlink(D+'/victim')",
    rename="import os; os.rename(D+'/victim', D+'/x')",
    chmod="import os; os.chmod(D+'/victim', 0o777)",
    truncate="import os; os.truncate(D+'/victim', 0)",
    hard_link="import os; os.link(D+'/secret', D+'/x')",
    fifo="import os; os.mkfifo(D+'/x')",
    proc_environ="return open('/proc/%d/environ' % PID).read()",
    proc_cmdline="return open('/proc/%d/cmdline' % PID).read()",
    proc_mem="f = open('/proc/%d/mem' % PID, 'rb', 0); f.seek(ADDRESS); return f.read(40).decode()",
    proc_self_mem="f = open('/proc/self/mem', 'r+b', 0); return 'ESCAPED'",
    process_vm_readv="""
        import ctypes
        class V(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
        b = ctypes.create_string_buffer(40)
        ctypes.CDLL(None).process_vm_readv(PID, ctypes.byref(V(ctypes.addressof(b), 40)), 1, ctypes.byref(V(ADDRESS, 40)), 1, 0)
        return b.raw.decode()""",
    ptrace="import ctypes; ctypes.CDLL(None).ptrace(16, PID, 0, 0)",
    kill="import os; os.kill(PID, 9)",
    pidfd_kill="import os, signal; signal.pidfd_send_signal(os.pidfd_open(PID), 9)",
    renice="import os; os.setpriority(os.PRIO_PROCESS, PID, 7)",
    fork="""
        import os
        if not os.fork(): os.mkdir(D+'/x'); os._exit(0)
        os.wait()""",
    fork_flood="""
        import os
        for k in range(8):
            if not os.fork(): os.mkdir(D+'/%d' % k); os._exit(0)
        for k in range(8): os.wait()""",
    forkpty="""
        import os
        child, fd = os.forkpty()
        if not child: os.mkdir(D+'/x'); os._exit(0)
        os.waitpid(child, 0)""",
    posix_spawn="import os; os.waitpid(os.posix_spawn('/bin/mkdir', ['mkdir', D+'/x'], {}), 0)",
    execv="import os; os.execv('/bin/mkdir', ['mkdir', D+'/x'])",
    thread="import threading, os; t = threading.Thread(target=os.mkdir, args=(D+'/x',)); t.start(); t.join()",
    tcp_connect="import socket; socket.create_connection(('127.0.0.1', TCP)).sendall(b'out')",
    udp_send="import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'out', ('127.0.0.1', UDP))",
    unix_socket="import socket; socket.socket(socket.AF_UNIX).bind(D+'/x')",
    io_uring="import ctypes; b = ctypes.create_string_buffer(120); return 'ESCAPED' if ctypes.CDLL(None).syscall(425, 1, b) >= 0 else 0",
    executable_mmap="""
        import mmap, ctypes
        m = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex('b82a000000c3'))
        if ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))() == 42: return 'ESCAPED'""",
    executable_mprotect="""
        import mmap, ctypes
        m = mmap.mmap(-1, 4096, prot=3); m.write(bytes.fromhex('b82a000000c3')); a = ctypes.addressof(ctypes.c_char.from_buffer(m))
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(a), 4096, 5) == 0 and ctypes.CFUNCTYPE(ctypes.c_int)(a)() == 42: return 'ESCAPED'""",
    memfd_exec="import os; fd = os.memfd_create('x'); return 'ESCAPED'",
    unshare="import ctypes; return 'ESCAPED' if ctypes.CDLL(None).unshare(0x10000000) == 0 or ctypes.CDLL(None).unshare(0x20000) == 0 else 0",
    shared_memory="import ctypes; c = ctypes.CDLL(None); i = c.shmget(0, 4096, 0o1600); c.shmctl(i, 0, 0); return 'ESCAPED' if i >= 0 else 0",
    raise_memory_limit="""
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); bytearray(3 << 30); return 'ESCAPED'""",
    memory_flood="bytearray(3 << 30); return 'ESCAPED'",
    answer_flood="import os\nwhile True: os.write(1, b'x'*65536)",
    forged_answer="import os; os.write(1, b'J' + (2**31).to_bytes(4, 'little')); return 'x'",
    deep_answer="d = []\nfor _ in range(900): d = [d]\nreturn d",
    endless_loop="while True: pass",
)
assert len(ESCAPES) >= 40


class LimitsOnly(Jail):
    "The same process with its resource limits and without the filter, for comparison; exists in this test only."
    def _command(self):
        code = ("import importlib.util, sys; s = importlib.util.spec_from_file_location('jail', sys.argv[1]); "
                "m = importlib.util.module_from_spec(s); s.loader.exec_module(m); sys.modules['jail'] = m; "
                "m.lock_jail = lambda: None; m.jail_leaks = lambda: []; m.run_inmate()")
        return [sys.executable, "-I", "-B", "-c", code, super()._command()[-1]]


VICTIM = """
import ctypes, sys, time
secret = ctypes.create_string_buffer(sys.argv[1].encode())
print(ctypes.addressof(secret), flush=True)
time.sleep(600)
"""


class World:
    "What lies outside: files, a process, two ports, a secret in all of them; and what has changed."
    def __init__(self, folder):
        self.folder, self.secret = folder, secrets.token_hex(20)
        folder.mkdir()
        (folder/"secret").write_text(self.secret)
        (folder/"victim").write_text("whole")
        self.name = secrets.token_hex(8)  # of a file that no escape is told
        (folder/self.name).touch()
        self.process = subprocess.Popen([sys.executable, "-I", "-S", "-c", VICTIM, self.secret], stdout=subprocess.PIPE,
                                        text=True, env=dict(SECRET=self.secret))
        self.address = int(self.process.stdout.readline())
        self.tcp, self.udp = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.before = self.files()

    def files(self): return sorted((p.name, p.lstat().st_mode, p.lstat().st_size, p.lstat().st_nlink) for p in self.folder.iterdir())

    def received(self, sock):
        sock.settimeout(0.)
        try: return sock is self.tcp and sock.accept()[0].close() is None or bool(sock.recvfrom(9))
        except BlockingIOError: return False

    def tracer(self):
        with open(f"/proc/{self.process.pid}/status") as f: return "TracerPid:\t0\n" not in f.read()

    def escaped(self, answer):
        "The canaries that were touched."
        try: self.process.wait(.2)
        except subprocess.TimeoutExpired: pass
        touched = dict(files=self.files() != self.before, secret=self.secret in answer, gained="ESCAPED" in answer,
                       listing=self.name in answer, tcp=self.received(self.tcp), udp=self.received(self.udp),
                       process=self.process.poll() is not None or os.getpriority(os.PRIO_PROCESS, self.process.pid) == 7)
        return [k for k, v in touched.items() if v] + (["tracer"] if not touched["process"] and self.tracer() else [])

    def close(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.tcp.close()
        self.udp.close()


def attempt(kind, name, folder):
    "Run one escape in a process of `kind`; the canaries that it touched, and what it answered."
    world = World(folder)
    facts = dict(D=str(folder), PID=world.process.pid, ADDRESS=world.address, TCP=world.tcp.getsockname()[1], UDP=world.udp.getsockname()[1])
    source = f"globals().update({facts!r})\ndef f():\n" + textwrap.indent(textwrap.dedent(ESCAPES[name]).strip("\n"), "    ")
    try:
        with kind(timeout_s=5. if name in ("endless_loop", "answer_flood") else 60.) as jail:
            try: answer = str(jail.call(source, "f"))
            except JailError as e: answer = f"error: {e}"
            touched = world.escaped(answer)  # while the process lives: what it traces is let go with it
        return touched, answer
    finally: world.close()


@pytest.mark.parametrize("name", ESCAPES)
def test_the_jail_holds(name, tmp_path):
    touched, answer = attempt(Jail, name, tmp_path/"world")
    assert not touched, answer
    assert "SyntaxError" not in answer and "IndentationError" not in answer and "NameError" not in answer, answer


def test_limits_alone_do_not(tmp_path):
    "The canaries work: without the filter the same list touches them, 20 times at least."
    escaped = {name: found for name in ESCAPES if (found := attempt(LimitsOnly, name, tmp_path/name)[0])}
    print(f"{len(escaped)} of {len(ESCAPES)} escape resource limits alone:", escaped)
    assert len(escaped) >= 20, escaped


def test_an_open_jail_refuses():
    "A filter that lets something through is noticed by the process itself, before any code runs in it."
    class Open(LimitsOnly):
        def _command(self): return [c.replace("m.jail_leaks = lambda: []; ", "") for c in super()._command()]
    with pytest.raises(JailError, match="the jail is open .*open, socket.*Docker, or WSL"): Open()


def test_nothing_is_left_of_a_jail_whose_owner_was_killed():
    "kill -9 of the owner while code loops: the limit on processor time ends the loop."
    code = ("from oaml.prompt2policy.jail import Jail\nj = Jail(timeout_s=2.)\nprint(j.process.pid, flush=True)\n"
            "j.call('def f():\\n while True: pass', 'f')")
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(owner.stdout.readline())
    time.sleep(.3)
    owner.kill()
    owner.wait()
    until = time.monotonic() + 180
    while time.monotonic() < until and alive(pid): time.sleep(.5)
    owner.stdout.close()
    assert not alive(pid)


def alive(pid):
    "Whether the process runs (a zombie of somebody else does not)."
    try:
        with open(f"/proc/{pid}/stat") as f: return f.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError: return False


def test_a_crowded_machine_is_no_loop():
    "Half a second of work takes its time where five others want the same core, and is answered; a loop there is ended."
    core, began = {min(os.sched_getaffinity(0))}, time.process_time()
    for _ in range(10**6): pass
    rounds = int(.5e6/(time.process_time() - began))
    def count(n): return f"def work():\n    for _ in range({n}): pass\n    return 1.0"
    with Jail(timeout_s=1.) as jail:
        os.sched_setaffinity(jail.process.pid, core)
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) for _ in range(5)]
        try:
            for p in others: os.sched_setaffinity(p.pid, core)
            began = time.monotonic()
            assert jail.call(count(rounds), "work") == 1.
            assert time.monotonic() - began > 1.
            with pytest.raises(JailError, match="no answer within 1 s"): jail.call(count(10**15), "work")
        finally:
            for p in others:
                p.kill()
                p.wait()


def test_no_thread_of_numpy_stands_behind_the_door():
    "Of such a thread, which its library starts by itself, a jail died twice in a day: abort() in the thread, which then may not even raise."
    with Jail() as jail: given = Path(f"/proc/{jail.process.pid}/environ").read_text().strip("\0").split("\0")
    count = "import os, numpy.linalg; print(len(os.listdir('/proc/self/task')))"
    env = dict(pair.split("=", 1) for pair in given if pair)
    assert subprocess.run([sys.executable, "-I", "-c", count], env=env, capture_output=True, text=True, check=True).stdout == "1\n"
