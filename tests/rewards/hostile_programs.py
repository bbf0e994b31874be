"""Programs that try to do harm, to escape or to lie. Each caps itself: 200 processes, 2 GB."""

from dataclasses import dataclass, field

CONTAINED = "contained"


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """One program with its tests and the score that it deserves."""

    name: str
    code: str
    value: float
    tests: object = field(default_factory=lambda: [{"stdin": "", "stdout": CONTAINED}])
    language: str = "python"
    entry: str = ""
    wall_s: float = 40.0
    killed_outside_namespaces: bool = False


def refused(name: str, attempt: str, *, imports: str = "os, sys", **options: object) -> Hostile:
    """A program that says `contained` only if an attempt raises an error of the system."""
    body = "\n".join(f"    {line}" for line in attempt.strip().splitlines())
    ending = "except OSError:\n    print('contained')\nelse:\n    print('escaped')\n"
    code = f"import {imports}\ntry:\n{body}\n{ending}"
    return Hostile(name=name, code=code, value=1.0, **options)  # type: ignore[arg-type]


def endless(name: str, code: str) -> Hostile:
    """A program that does not end by itself in time."""
    return Hostile(name=name, code=code, value=0.0, wall_s=1.0)


def lies(name: str, code: str, tests: object = None, **options: object) -> Hostile:
    """A program whose function `add` pretends to be right."""
    tests = [{"args": [2, 3], "result": 987654}] if tests is None else tests
    return Hostile(name=name, code=code, tests=tests, entry="add", value=0.0, **options)  # type: ignore[arg-type]


_SYSCALL = (
    "number = {'x86_64': %d, 'aarch64': %d}[os.uname().machine]\n"
    "if libc.syscall(number, %s) < 0: raise OSError"
)


def syscall(name: str, x86: int, arm: int, arguments: str = "0, 0, 0, 0, 0, 0") -> Hostile:
    """A system call that must be refused."""
    attempt = "libc = ctypes.CDLL(None)\n" + _SYSCALL % (x86, arm, arguments)
    return refused(name, attempt, imports="ctypes, os")


EXHAUSTION = [
    Hostile(
        name="fork bomb",
        value=0.0,
        wall_s=3,
        code="import os, time\nfor _ in range(200):\n    if os.fork() == 0:\n"
        "        time.sleep(20); os._exit(0)\n"
        "print('contained')",
    ),
    Hostile(
        name="fork bomb that counts",
        value=1.0,
        code="import os, time\nn = 1\nfor _ in range(199):\n    try:\n        child = os.fork()\n"
        "    except OSError:\n"
        "        break\n    if child == 0:\n        time.sleep(20); os._exit(0)\n    n += 1\n"
        "print('contained' if n <= 32 else f'{n} processes')",
    ),
    Hostile(
        name="chain of forks, each in a session of its own",
        value=1.0,
        code="import os, sys, time\nfor depth in range(100):\n    try:\n        child = os.fork()\n"
        "    except OSError:\n"
        "        break\n    if child:\n        os.waitpid(child, 0); os._exit(0)\n    os.setsid()\n"
        "print('contained' if depth <= 32 else depth, flush=True)\nos._exit(0)",
    ),
    Hostile(
        name="threads",
        value=1.0,
        code="import threading, time\nn = 1\ntry:\n    for _ in range(199):\n"
        "        threading.Thread(target=time.sleep, args=(1,), daemon=True).start(); n += 1\n"
        "except RuntimeError:\n    pass\nprint('contained' if n <= 32 else f'{n} threads')",
    ),
    Hostile(
        name="one large allocation", value=0.0, code="x = bytearray(b'z') * (2 * 1024**3)\nprint('contained')"
    ),
    Hostile(
        name="many allocations",
        value=0.0,
        code="x = [bytearray(b'z') * (64 * 1024**2) for _ in range(30)]\nprint('contained')",
    ),
    Hostile(
        name="memory in several processes",
        value=0.0,
        code="import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n"
        "        x = bytearray(b'z') * (200 * 1024**2)\n"
        "        time.sleep(20); os._exit(0)\ntime.sleep(3)\nprint('contained')",
    ),
    Hostile(
        name="shared anonymous memory",
        value=0.0,
        code="import mmap\nm = mmap.mmap(-1, 2 * 1024**3)\n"
        "for i in range(0, len(m), 4096): m[i] = 1\nprint('contained')",
    ),
    Hostile(
        name="recursion without end",
        value=0.0,
        wall_s=3,
        code="import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return [f(n + 1)]\nf(0)\n"
        "print('contained')",
    ),
    Hostile(
        name="disk fill",
        value=1.0,
        code="n = 0\ntry:\n    for i in range(2000):\n"
        "        with open(f'f{i}', 'wb') as f: n += f.write(b'x' * 2**20)\n"
        "except OSError:\n    pass\nprint('contained' if n <= 70 * 2**20 else n)",
        killed_outside_namespaces=True,
    ),
    Hostile(
        name="many files",
        value=1.0,
        code="i = 0\ntry:\n    for i in range(20000): open(f'f{i}', 'w').close()\nexcept OSError:\n    pass\n"
        "print('contained' if i < 10000 else i)",
        killed_outside_namespaces=True,
    ),
    refused("one large file", "with open('f', 'wb') as f:\n    for _ in range(2000): f.write(b'x' * 2**20)"),
    refused("sparse file", "with open('f', 'wb') as f: f.truncate(2**40)"),
    Hostile(name="flood of output", value=0.0, code="while True: print('x' * 10000)"),
    Hostile(name="flood of errors", value=0.0, code="import sys\nwhile True: sys.stderr.write('x' * 10000)"),
    Hostile(
        name="deep directories",
        value=1.0,
        code="import os\ntry:\n    for _ in range(400):\n        os.mkdir('d' * 200); os.chdir('d' * 200)\n"
        "except OSError:\n    pass\nprint('contained')",
    ),
    Hostile(
        name="names and permissions that hinder removal",
        value=1.0,
        code="import os\nfor name in (b'\\xff\\xfe', b'a\\nb', '\\u202egnp.exe'.encode(), b'-rf', b' "
        "', b'*'):\n"
        "    open(name, 'w').close()\nos.makedirs('p/q/r'); open('p/q/r/s', 'w').close()\n"
        "for d in ('p/q/r', 'p/q', 'p'): os.chmod(d, 0)\nos.chmod('.', 0)\nprint('contained')",
    ),
]

ENDLESS = [
    endless("loop", "while True: pass"),
    endless("loop in C code", "import itertools\nsum(itertools.repeat(1))"),
    endless("regular expression", "import re\nre.match('(a+)+$', 'a' * 60 + 'b')"),
    endless("power of powers", "print(9 ** 9 ** 9 % 10)"),
    endless("sleep", "import time\nprint('contained', flush=True)\ntime.sleep(600)"),
    endless(
        "signals ignored",
        "import signal, time\nfor s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "    try: signal.signal(s, signal.SIG_IGN)\n    except OSError: pass\n"
        "print('contained', flush=True)\ntime.sleep(600)",
    ),
    endless(
        "stopped by itself",
        "import os, signal\nprint('contained', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)",
    ),
    endless(
        "exceptions swallowed",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    ),
    endless(
        "waiting thread",
        "import threading, time\nprint('contained', flush=True)\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()",
    ),
    endless(
        "endless exit handler",
        "import atexit\ndef f():\n    while True: pass\natexit.register(f)\nprint('contained', flush=True)",
    ),
    endless(
        "exception that cannot be printed",
        "class E(Exception):\n    def __str__(self):\n        while True: pass\n"
        "print('contained', flush=True)\nraise E",
    ),
]

PROCESSES = [
    Hostile(
        name="daemon by double fork",
        value=1.0,
        code="import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\nprint('contained')",
    ),
    Hostile(
        name="daemon that prints later",
        value=1.0,
        code="import os, time\nif os.fork() == 0:\n"
        "    os.setsid(); time.sleep(1); os.write(1, b'forged'); os._exit(0)\n"
        "print('contained')",
    ),
    Hostile(
        name="zombies",
        value=1.0,
        code="import os\nfor _ in range(20):\n    if os.fork() == 0: os._exit(0)\nprint('contained')",
    ),
    Hostile(
        name="kills everybody",
        value=1.0,
        code="import os, signal\nfor pid in (-1, 1, os.getppid(), 2, 3):\n"
        "    try: os.kill(pid, signal.SIGKILL)\n"
        "    except OSError: pass\nprint('contained')",
    ),
    Hostile(
        name="kills itself",
        value=0.0,
        code="import os\nprint('contained', flush=True)\nos.kill(os.getpid(), 9)",
    ),
    Hostile(name="aborts", value=0.0, code="import os\nprint('contained', flush=True)\nos.abort()"),
    Hostile(
        name="crashes in C code",
        value=0.0,
        code="import ctypes\nprint('contained', flush=True)\nctypes.string_at(0)",
    ),
    syscall("ptrace", 101, 117, "16, os.getppid(), 0, 0"),
    syscall("process_vm_readv", 310, 270, "os.getppid(), 0, 0, 0, 0, 0"),
    refused("memory of the parent", "open(f'/proc/{os.getppid()}/mem', 'rb').read(1)"),
    refused("environment of the parent", "open(f'/proc/{os.getppid()}/environ', 'rb').read(1)"),
    refused("files of the parent", "os.listdir(f'/proc/{os.getppid()}/fd')"),
    refused("higher priority", "os.nice(-10)"),
    refused("real-time scheduling", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))"),
]

ESCAPES = [
    refused("shadow file", "open('/etc/shadow').read()"),
    refused("root's directory", "os.listdir('/root/.ssh')"),
    refused("writing to the system", "open('/usr/hostile', 'w')"),
    refused("writing to /etc", "open('/etc/hostile', 'w')"),
    refused("writing to /dev", "open('/dev/hostile', 'w')"),
    refused("kernel settings", "open('/proc/sys/kernel/hostname', 'w').write('x')"),
    refused("disk device", "open('/dev/vda', 'rb').read(1)"),
    refused("memory device", "open('/dev/mem', 'rb').read(1)"),
    refused(
        "device node", "os.mknod('zero', 0o600 | 0o020000, os.makedev(1, 1)); open('zero', 'rb').read(1)"
    ),
    refused("becoming root", "os.setuid(0)"),
    refused("becoming another group", "os.setgroups([0])"),
    refused("change of root directory", "os.chroot('.')"),
    refused("hard link to the system", "os.link('/usr/bin/env', 'env')"),
    refused("symbolic link to the system", "os.symlink('/usr/bin', 'b'); open('b/hostile', 'w')"),
    refused("change of a file of the system", "os.chmod('/usr/bin/env', 0o777)"),
    syscall("new user namespace", 272, 97, "0x10000000"),
    syscall("clone with new namespaces", 56, 220, "0x10000000 | 17, 0, 0, 0, 0"),
    syscall("mount", 165, 40, "b'none', b'.', b'tmpfs', 0, 0"),
    syscall("bpf", 321, 280),
    syscall("perf_event_open", 298, 241),
    syscall("io_uring", 425, 425),
    syscall("keyctl", 250, 219),
    syscall("shared memory of System V", 29, 194, "0, 4096, 0o1777"),
    syscall("message queue", 68, 186, "0, 0o1777"),
    syscall("memory file", 319, 279, "b'x', 0"),
    syscall("reboot", 169, 142),
    syscall("clock", 227, 112),
    syscall("host name", 170, 161, "b'x', 1"),
    syscall("userfaultfd", 323, 282),
    refused("loopback", "socket.create_connection(('127.0.0.1', 22), 2)", imports="socket"),
    refused("another host", "socket.create_connection(('192.0.2.1', 80), 2)", imports="socket"),
    refused(
        "datagram",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        imports="socket",
    ),
    refused("name server", "socket.getaddrinfo('example.com', 80)", imports="socket"),
    refused("socket of the hypervisor", "socket.socket(40, socket.SOCK_STREAM)", imports="socket"),
    refused("raw packets", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", imports="socket"),
    refused("kernel's routing socket", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", imports="socket"),
    refused("input changed", "os.write(0, b'x')"),
    Hostile(
        name="set-uid copy",
        value=1.0,
        code="import os, shutil, subprocess\nshutil.copy('/usr/bin/id', 'id'); os.chmod('id', 0o4755)\n"
        "uid = subprocess.run(['./id', '-u'], capture_output=True, text=True).stdout.strip()\n"
        "print('contained' if uid == str(os.getuid()) != '0' else uid)",
    ),
    Hostile(
        name="environment",
        value=1.0,
        code="import os\nprint('contained' if 'HOSTILE_SECRET' not in str(os.environ) else 'escaped')",
    ),
    Hostile(
        name="importing the grader",
        value=1.0,
        code="import sys\ntry:\n    import roll_rewards\nexcept ImportError:\n    print('contained')",
    ),
]

_EQUALS_ALL = "class Any:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n"

LIES = [
    lies("exit with success", "import sys\nsys.exit(0)"),
    lies("hard exit with success", "import os\nos._exit(0)"),
    lies("exit in the call", "import os\ndef add(a, b): os._exit(0)"),
    lies("equal to everything", f"{_EQUALS_ALL}def add(a, b): return Any()"),
    lies(
        "answer in every frame",
        "import sys\ndef add(a, b):\n    f = sys._getframe()\n    while f:\n"
        "        for v in [*f.f_locals.values(), *f.f_globals.values()]:\n"
        "            if '987654' in repr(v)[:10**6]: return 987650 + 4\n        f = f.f_back",
    ),
    lies(
        "answer in every object",
        "import gc\ndef add(a, b):\n    for o in gc.get_objects():\n"
        "        if isinstance(o, (list, tuple)):\n            for x in o:\n"
        "                if type(x) is int and 986 * 1000 < x < 988 * 1000: return x",
    ),
    lies(
        "patched built-ins",
        "import builtins, json\nbuiltins.isinstance = lambda *a: True\nbuiltins.all = lambda *a: True\n"
        "json.dumps = lambda *a, **k: '[\"n\"]'\ndef add(a, b): return 0",
    ),
    lies(
        "verdicts written to every file descriptor",
        "import os\nfor fd in range(3, 256):\n"
        '    for text in (b\'{"test": 0, "passed": true}\\n\', b\'["B", true]\'):\n'
        "        try: os.write(fd, text)\n        except OSError: pass\ndef add(a, b): return None",
    ),
    lies(
        "pickle that runs code",
        "class P:\n    def __reduce__(self): return (print, ('x',))\ndef add(a, b): return P()",
    ),
    lies(
        "number that compares as it likes",
        "class I(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\n"
        "def add(a, b): return I(5)",
    ),
    lies(
        "class that pretends",
        "class C:\n    @property\n    def __class__(self): return int\ndef add(a, b): return C()",
    ),
    lies("list within itself", "def add(a, b):\n    x = []; x.append(x); return x"),
    lies(
        "deeply nested list", "def add(a, b):\n    x = []\n    for _ in range(100000): x = [x]\n    return x"
    ),
    lies("huge result", "def add(a, b): return 'x' * (100 * 2**20)"),
    lies("infinite iterator", "def add(a, b):\n    while True: yield 5"),
    lies("asserts: exit with success", "import sys\nsys.exit(0)", ["assert add(2, 3) == 5"]),
    lies(
        "asserts: hard exit in the call", "import os\ndef add(a, b): os._exit(0)", ["assert add(2, 3) == 5"]
    ),
    lies(
        "asserts: equal to everything", f"{_EQUALS_ALL}def add(a, b): return Any()", ["assert add(2, 3) == 5"]
    ),
    lies(
        "asserts: difference of nothing",
        "class N:\n    def __sub__(s, o): return 0\n    def __rsub__(s, o): return 0\n"
        "    def __abs__(s): return 0\n"
        "    def __lt__(s, o): return True\n    def __gt__(s, o): return True\ndef add(a, b): return N()",
        ["assert abs(add(2, 3) - 5) < 1e-6", "assert 5 - add(2, 3) == 0", "assert add(2, 3) > 4"],
    ),
    lies(
        "asserts: methods of a text that is none",
        "class T:\n    def startswith(s, x): return True\n    def count(s, x): return 2\n"
        "    def get(s, *a): return 5\ndef add(a, b): return T()",
        [
            "assert add(2, 3).startswith('5')",
            "assert add(2, 3).count('5') == 2",
            "assert add(2, 3).get('k') == 5",
        ],
    ),
    lies(
        "asserts: errors turned off",
        "import builtins, sys\nbuiltins.AssertionError = type('E', (BaseException,), {})\n"
        "sys.excepthook = lambda *a: None\ndef add(a, b): return 0",
        ["assert add(2, 3) == 5"],
    ),
    lies(
        "asserts: verdict sent to the judge",
        "import os\nfor fd in range(3, 256):\n"
        '    try: os.write(fd, b\'\\0\\0\\0\\x16["ok", ["B", true], ""]\')\n'
        "    except OSError: pass\ndef add(a, b): return 0",
        ["assert add(2, 3) == 5"],
    ),
    lies(
        "asserts: nonsense sent to the judge",
        "import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'\\xff' * 1000)\n"
        "    except OSError: pass\n"
        "def add(a, b): return 5",
        ["assert add(2, 3) == 5"],
    ),
    lies(
        "pytest: forged report and configuration",
        "import os\nfor name in ('conftest.py', 'pytest.ini', 'report.xml', 'junit.xml', "
        "'test_solution.py'):\n"
        "    open(name, 'w').write('<testsuite tests=\"1\" failures=\"0\"/>')\nprint('1 passed')\n"
        "os._exit(0)",
        "from solution import add\ndef test_add(): assert add(2, 3) == 5\n",
    ),
    lies(
        "pytest: skipped by the program",
        "import unittest\ndef add(a, b): raise unittest.SkipTest('no need')",
        "from solution import add\ndef test_add(): assert add(2, 3) == 5\n",
    ),
    lies(
        "pytest: patched from inside",
        "import sys\ntry:\n    import _pytest.runner as r\n"
        "    r.pytest_runtest_call = lambda item: None\nexcept ImportError:\n"
        "    pass\ndef add(a, b): return 0",
        "from solution import add\ndef test_add(): assert add(2, 3) == 5\n",
    ),
]

TEXTS = [
    Hostile(
        name="digits of another script", value=0.0, code="print('５')", tests=[{"stdin": "", "stdout": "5"}]
    ),
    Hostile(
        name="invisible character", value=0.0, code="print('5\\u200b')", tests=[{"stdin": "", "stdout": "5"}]
    ),
    Hostile(
        name="direction override", value=0.0, code="print('\\u202e21')", tests=[{"stdin": "", "stdout": "12"}]
    ),
    Hostile(name="lone surrogate", value=0.0, code="print('\\udc80')", tests=[{"stdin": "", "stdout": "5"}]),
    Hostile(name="null bytes in the source", value=0.0, code="print('contained')\x00"),
    Hostile(name="nested parentheses", value=0.0, code="(" * 100000 + ")" * 100000),
    Hostile(
        name="wrong exit after the right output",
        value=0.0,
        code="import os\nprint('contained', flush=True)\nos._exit(3)",
    ),
    Hostile(
        name="output changed at exit",
        value=0.0,
        code="import atexit\natexit.register(print, 'more')\nprint('contained')",
    ),
    Hostile(
        name="closed output",
        value=0.0,
        code="import os\nprint('contained', flush=True)\nprint('x', end='')\nos.close(1)",
    ),
    Hostile(
        name="modules of its own before those of the library",
        value=1.0,
        code="open('json.py', 'w').write('print(1)')\nopen('atexit.py', 'w').write('print(1)')\n"
        "print('contained')",
    ),
    Hostile(
        name="zip bomb",
        value=1.0,
        code="import io, zipfile\nb = io.BytesIO()\n"
        "with zipfile.ZipFile(b, 'w', zipfile.ZIP_DEFLATED) as z:\n"
        "    with z.open('big', 'w') as f:\n        for _ in range(70): f.write(b'0' * 2**20)\n"
        "try: zipfile.ZipFile(b).extractall()\nexcept OSError: print('contained')",
    ),
    Hostile(
        name="module hidden in a zip file with a path that climbs",
        value=1.0,
        code="import os, sys, zipfile\nwith zipfile.ZipFile('m.zip', 'w') as z: "
        "z.writestr('../../../tmp/evil.py', 'x=1')\n"
        "zipfile.ZipFile('m.zip').extractall(); sys.path.insert(0, 'm.zip')\nprint('contained')",
    ),
]

OTHER_LANGUAGES = [
    Hostile(
        name="C++ fork bomb",
        language="cpp",
        value=0.0,
        wall_s=3,
        code="#include <unistd.h>\n#include <cstdio>\n"
        "int main(){for(int i=0;i<200;i++)if(fork()==0){sleep(20);_exit(0);}"
        'sleep(20);puts("contained");}',
    ),
    Hostile(
        name="C++ memory",
        language="cpp",
        value=0.0,
        code="#include <cstdlib>\n#include <cstring>\n#include <cstdio>\n"
        "int main(){for(int i=0;i<20;i++){void*p=malloc(100<<20);"
        'if(!p)return 1;memset(p,1,100<<20);}puts("contained");}',
    ),
    Hostile(
        name="C++ that includes a secret file",
        language="cpp",
        value=0.0,
        code='#include "/etc/shadow"\nint main(){}',
    ),
    Hostile(
        name="C++ that computes without end while it is compiled",
        language="cpp",
        value=0.0,
        code="constexpr long f(long n){return n<2?1:f(n-1)+f(n-2);}\nstatic_assert(f(60)>0);\nint main(){}",
    ),
    Hostile(
        name="C++ recursion",
        language="cpp",
        value=0.0,
        code="int f(volatile int n){return f(n+1)+n;}\nint main(){return f(0);}",
    ),
    Hostile(
        name="shell fork bomb",
        language="shell",
        value=0.0,
        wall_s=3,
        code="for i in $(seq 200); do sleep 20 & done; wait; echo contained",
    ),
    Hostile(
        name="shell that writes to the system",
        language="shell",
        value=1.0,
        code="touch /usr/hostile /etc/hostile 2>/dev/null; [ -e /usr/hostile -o -e /etc/hostile ] || "
        "echo contained",
    ),
    Hostile(
        name="shell daemon",
        language="shell",
        value=1.0,
        code="setsid nohup sleep 60 > /dev/null 2>&1 < /dev/null &\necho contained",
    ),
]

ALL = EXHAUSTION + ENDLESS + PROCESSES + ESCAPES + LIES + TEXTS + OTHER_LANGUAGES
