"""A program's own process, from its job to its end. Everything in here is at the program's mercy.

Nothing that decides about a score may happen here: the process says what it printed, returned and how
it ended, and someone else judges.
"""

import atexit
import io
import json
import os
import sys
import traceback
import types
from dataclasses import dataclass
from typing import Any, NoReturn

from roll_rewards.sandbox.inside import judging, serving, wire

_MAIN = "main.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """File descriptors of a program.

    Attributes:
        job: What to do: a line of JSON, then the contents of files.
        result: Where a result goes.
        peer: A socket to the other side of a judgement, if there is one.
    """

    job: int
    result: int
    peer: int | None


def begin(channel: Channel) -> NoReturn:
    """Do the job in this process, which is confined already, and end it.

    Args:
        channel: File descriptors.
    """
    code = 1
    try:
        job = _read_job(channel.job)
        os.close(channel.job)
        code = _MODES[job["mode"]](job, channel)
    except BaseException as error:
        code = _report(error)
    _finish(code)


def _read_job(handle: int) -> dict[str, Any]:
    """The job; its files are written to the working directory."""
    with open(handle, "rb", closefd=False) as file:
        job: dict[str, Any] = json.loads(file.readline())
        for name, size in job["files"]:
            if "/" in name:
                os.makedirs(os.path.dirname(name), exist_ok=True)
            with open(name, "wb") as target:
                target.write(file.read(size))
            if job["mode"] == "command":
                os.chmod(name, 0o700)
    return job


def prepare(scratch: str) -> None:
    """What is the same for all programs of a sandbox, done once before they are forked.

    Args:
        scratch: Their working directory.
    """
    os.environ.clear()
    os.environ.update(
        {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": scratch,
            "TMPDIR": scratch,
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
    )
    sys.path.insert(0, scratch)
    sys.argv = [_MAIN]
    # Programs find nothing of ours to import; what was imported stays in use here.
    for name in [name for name in sys.modules if name.split(".")[0] == "roll_rewards"]:
        _KEPT.append(sys.modules.pop(name))


_KEPT: list[types.ModuleType] = []


def _run_script(job: dict[str, Any], channel: Channel) -> int:
    os.close(channel.result)
    module = types.ModuleType("__main__")
    module.__dict__.update({"__file__": _MAIN, "__builtins__": __builtins__})
    sys.modules["__main__"] = module
    with open(_MAIN, "rb", buffering=0) as file:
        source = file.readall()
    exec(compile(source, _MAIN, "exec", dont_inherit=True), module.__dict__)
    return 0


def _run_call(job: dict[str, Any], channel: Channel) -> int:
    module = serving.load("solution", _MAIN)
    function = serving.entry(module, job["entry"])
    args, kwargs = wire.decode(job["args"]), wire.decode(job["kwargs"])
    value = function(*args, **kwargs)
    data = wire.dumps(value)
    with open(channel.result, "wb") as file:
        file.write(data)
    return 0


def _run_serve(job: dict[str, Any], channel: Channel) -> int:
    os.close(channel.result)
    if channel.peer is not None:
        serving.serve(channel.peer, _MAIN)
    return 0


def _run_judge(job: dict[str, Any], channel: Channel) -> int:
    if channel.peer is not None:
        judging.judge(job, channel.peer, channel.result)
    return 0


def _run_command(job: dict[str, Any], channel: Channel) -> int:
    os.close(channel.result)
    os.execvpe(job["argv"][0], job["argv"], dict(os.environ))


def _run_compiler(job: dict[str, Any], channel: Channel) -> int:
    compiler = os.posix_spawnp(job["argv"][0], job["argv"], dict(os.environ))
    code = os.waitstatus_to_exitcode(os.waitpid(compiler, 0)[1])
    if code == 0:
        with open(job["output"], "rb") as source, open(channel.result, "wb") as target:
            target.write(source.read())
    return code & 0xFF


_MODES = {
    "script": _run_script,
    "call": _run_call,
    "serve": _run_serve,
    "judge": _run_judge,
    "command": _run_command,
    "compile": _run_compiler,
}


def _report(error: BaseException) -> int:
    """The exit code that Python gives an uncaught exception, after it has been printed."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        if isinstance(error.code, int):
            return error.code & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    try:
        trace = error.__traceback__
        # The program's own frames; those above are of no use to anyone.
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename != _MAIN:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
    except BaseException:
        # A hostile exception can break even this; its code is 1 all the same.
        return 1
    return 1


def _finish(code: int) -> NoReturn:
    """End like an interpreter: wait for threads, run exit handlers, flush."""
    try:
        # Importing it here would cost every program what only a few need.
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            if isinstance(stream, io.IOBase) and not stream.closed:
                stream.flush()
    except BaseException as error:
        code = _report(error) or 120
    os._exit(code)
