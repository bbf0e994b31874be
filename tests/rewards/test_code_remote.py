"""The `code` grader with sandboxes elsewhere: a service of SandboxFusion's form, and ROCK's own client."""

import asyncio
import base64
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from roll_rewards import RewardError, Score
from roll_rewards.graders.code import Code
from roll_rewards.graders.code.remote import FusionService, Program, RemoteRunner
from roll_rewards.remote.patience import Patience
from roll_rewards.remote.transport import RemoteError

# ROCK's client reads a field of its own that it has declared deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")

ADD = "def add(a, b):\n    print('noise')\n    return a + b"


class FakeService:
    """Answers like the services do, by running programs that the tests trust."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.instead: list[tuple[int, object]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.requests.append((self.path, body, dict(self.headers)))
                status, answer = fake.instead.pop(0) if fake.instead else (200, fake.answer(self.path, body))
                self.reply(status, answer)

            def do_GET(self) -> None:
                fake.requests.append((self.path, {}, dict(self.headers)))
                self.reply(200, fake.answer(self.path, {}))

            def reply(self, status: int, answer: object) -> None:
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.folder = tempfile.TemporaryDirectory()
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def answer(self, path: str, body: dict[str, Any]) -> object:
        name = path.rpartition("/")[2].partition("?")[0]
        handler = getattr(self, f"answer_{name}")
        return handler(body)

    def answer_run_code(self, body: dict[str, Any]) -> object:
        folder = Path(tempfile.mkdtemp(dir=self.folder.name))
        for name, data in body["files"].items():
            (folder / name).write_bytes(base64.b64decode(data))
        (folder / "main").write_text(body["code"])
        command = [sys.executable, "main"] if body["language"] == "python" else ["bash", "main"]
        if body["language"] == "cpp":
            return {
                "status": "Failed",
                "message": "",
                "compile_result": {
                    "status": "Finished",
                    "return_code": 1,
                    "stderr": "error: no",
                    "stdout": "",
                },
                "run_result": None,
            }
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                input=body["stdin"],
                capture_output=True,
                text=True,
                timeout=body["run_timeout"] + (0 if "sleep" in body["code"] else 40),
            )
        except subprocess.TimeoutExpired:
            run = {"status": "TimeLimitExceeded", "return_code": None, "stdout": "", "stderr": ""}
            return {"status": "Failed", "message": "", "compile_result": None, "run_result": run}
        run = {"status": "Finished", "return_code": done.returncode, "execution_time": 0.1}
        run |= {"stdout": done.stdout, "stderr": done.stderr}
        status = "Success" if done.returncode == 0 else "Failed"
        return {"status": status, "message": "", "compile_result": None, "run_result": run}

    def answer_start_async(self, body: dict[str, Any]) -> object:
        result = {"sandbox_id": "box", "host_name": "h", "host_ip": "127.0.0.1"}
        return {"status": "Success", "result": result}

    def answer_get_status(self, body: dict[str, Any]) -> object:
        return {"status": "Success", "result": {"sandbox_id": "box", "is_alive": True, "status": {}}}

    def answer_write_file(self, body: dict[str, Any]) -> object:
        Path(self.moved(body["path"])).write_text(body["content"])
        return {"status": "Success", "result": {}}

    def answer_execute(self, body: dict[str, Any]) -> object:
        command = [self.moved(part) for part in body["command"]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=body["timeout"])
        result = {"stdout": done.stdout, "stderr": done.stderr, "exit_code": done.returncode}
        return {"status": "Success", "result": result}

    def answer_stop(self, body: dict[str, Any]) -> object:
        return {"status": "Success", "result": {}}

    def moved(self, text: str) -> str:
        """The sandbox's /tmp is the folder of this service."""
        return text.replace("/tmp/roll-", f"{self.folder.name}/roll-")

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
        self.folder.cleanup()


@pytest.fixture
def service() -> Iterator[FakeService]:
    fake = FakeService()
    yield fake
    fake.close()


@pytest.fixture(params=["sandbox_fusion", "rock"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "rock":
        pytest.importorskip("rock.sdk.sandbox.client")
    return str(request.param)


async def graded(
    service: FakeService,
    backend: Any,
    code: str,
    reference: object,
    *,
    wall_s: float = 20.0,
    **columns: object,
) -> Score:
    grader = Code(backend=backend, url=service.url, wall_s=wall_s)
    return await grader.grade(f"```\n{code}\n```", reference, **columns)


async def test_printed_output_is_judged_here(service: FakeService, backend: str) -> None:
    tests = [{"stdin": "2 3\n", "stdout": "5"}, {"stdin": "2 3\n", "stdout": "secret-answer"}]
    code = "a, b = map(int, input().split())\nprint(a + b)"
    score = await graded(service, backend, code, tests)
    assert (score.value, score.parts[f"isolation/{backend}"]) == (0.5, 1.0)
    # What is expected never leaves this process.
    assert "secret-answer" not in json.dumps([request[1] for request in service.requests])


async def test_exit_code_counts(service: FakeService, backend: str) -> None:
    score = await graded(service, backend, "print(5)\nraise SystemExit(1)", [{"stdin": "", "stdout": "5"}])
    assert (score.value, score.failure) == (0.0, None)


async def test_functions_are_called_and_their_values_judged_here(service: FakeService, backend: str) -> None:
    tests = [
        {"args": [2, 3], "result": 5},
        {"args": ["a", "b"], "result": "ab"},
        {"args": [1, 1], "result": 987654},
    ]
    score = await graded(service, backend, ADD, tests, entry="add")
    assert (score.parts["passed"], score.parts["total"]) == (2, 3)
    assert "987654" not in json.dumps([request[1] for request in service.requests])
    method = await graded(
        service, backend, "class Solution:\n    def add(self, a, b): return a + b", tests, entry="add"
    )
    assert method.parts["passed"] == 2


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(0)",
        "def add(a, b): raise SystemExit(0)",
        "class Any:\n    def __eq__(s, o): return True\ndef add(a, b): return Any()",
        "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    ],
)
async def test_lies_get_nothing(service: FakeService, code: str) -> None:
    score = await graded(service, "sandbox_fusion", code, [{"args": [2, 3], "result": 5}], entry="add")
    assert score.value == 0.0


async def test_simple_assertions_become_calls(service: FakeService) -> None:
    tests = ["assert add(2, b=3) == 5", "assert add([1], [2]) == [1, 2]", "assert add(1, 1) == 3"]
    score = await graded(service, "sandbox_fusion", ADD, tests)
    assert score.parts["passed"] == 2


@pytest.mark.parametrize("tests", [["assert add(1, 2) > 2"], ["x = 1\nassert x"], "def test_add(): pass"])
async def test_tests_that_need_a_judge_beside_the_program_are_refused(
    service: FakeService, tests: object
) -> None:
    with pytest.raises(RewardError, match="local"):
        await graded(service, "sandbox_fusion", ADD, tests)


async def test_time_limit_is_a_verdict(service: FakeService, backend: str) -> None:
    code = "import time\ntime.sleep(30)"
    score = await graded(service, backend, code, [{"stdin": "", "stdout": ""}], wall_s=0.5)
    assert (score.value, score.timed_out, score.failure) == (0.0, True, None)


async def test_program_that_does_not_compile_gets_nothing(service: FakeService, backend: str) -> None:
    grader = Code(backend=backend, url=service.url, language="cpp")  # type: ignore[arg-type]
    score = await grader.grade("```cpp\nint main( {\n```", [{"stdin": "", "stdout": ""}])
    assert (score.value, score.parts["compiled"]) == (0.0, 0.0)


async def test_shell_programs_run(service: FakeService, backend: str) -> None:
    grader = Code(backend=backend, url=service.url, language="shell")  # type: ignore[arg-type]
    score = await grader.grade("```bash\nread x; echo $((x * 2))\n```", [{"stdin": "21\n", "stdout": "42"}])
    assert score.value == 1.0


async def test_service_that_recovers_is_asked_again(service: FakeService) -> None:
    service.instead = [(503, {}), (200, {"status": "SandboxError", "message": "busy"})]
    runner = RemoteRunner(
        service=FusionService(url=service.url, patience=Patience(attempts=3, first_s=0.0)),
        language="python",
        tolerance=0.0,
        compile_s=5.0,
    )
    ran = await runner.service.run(program("print(1)"))
    assert (ran.code, ran.stdout, len(service.requests)) == (0, "1\n", 3)


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (400, {"detail": "bad"}, "answered 400"),
        (200, [], "no object"),
        (200, {"status": "Success"}, "another form"),
        (200, {"status": "SandboxError", "message": "out of pods"}, "out of pods"),
        (200, {"status": "Failed", "run_result": {"status": "Error", "stderr": "spawn"}}, "could not start"),
    ],
)
async def test_service_that_fails_says_nothing_of_the_program(
    service: FakeService, status: int, answer: object, message: str
) -> None:
    service.instead = [(status, answer)] * 2
    fusion = FusionService(url=service.url, patience=Patience(attempts=2, first_s=0.0))
    with pytest.raises(RemoteError, match=message):
        await fusion.run(program("print(1)"))


async def test_key_comes_from_the_environment(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE_SERVICE_KEY", "abc")
    await FusionService(url=service.url, key_variable="CODE_SERVICE_KEY").run(program("print(1)"))
    assert service.requests[0][2]["Authorization"] == "Bearer abc"
    monkeypatch.delenv("CODE_SERVICE_KEY")
    with pytest.raises(RewardError, match="CODE_SERVICE_KEY"):
        await FusionService(url=service.url, key_variable="CODE_SERVICE_KEY").run(program("print(1)"))


async def test_rock_sandbox_is_fresh_for_each_sample_and_stopped(service: FakeService) -> None:
    pytest.importorskip("rock.sdk.sandbox.client")
    tests = [{"stdin": "", "stdout": "1"}] * 2
    for _ in range(2):
        assert (await graded(service, "rock", "print(1)", tests)).value == 1.0
    names = [path.rpartition("/")[2].partition("?")[0] for path, _, _ in service.requests]
    assert names.count("start_async") == names.count("stop") == 2
    assert not list(Path(service.folder.name).glob("roll-*"))


async def test_rock_that_fails_says_nothing_of_the_program_and_its_sandbox_is_stopped(
    service: FakeService,
) -> None:
    pytest.importorskip("rock.sdk.sandbox.client")
    service.answer_execute = lambda body: {"status": "Failed", "message": "gone"}  # type: ignore[method-assign]
    with pytest.raises(RemoteError, match="ROCK could not run a program"):
        await graded(service, "rock", "print(1)", [{"stdin": "", "stdout": "1"}])
    assert any(path.endswith("/stop") for path, _, _ in service.requests)


@pytest.mark.parametrize("options", [{"backend": "rock"}, {"url": "http://x"}])
def test_address_goes_with_a_service(options: dict[str, Any]) -> None:
    with pytest.raises(RewardError, match="option 'url'"):
        Code(**options)


async def test_two_samples_at_a_time(service: FakeService) -> None:
    tests = [{"stdin": "", "stdout": "1"}]
    scores = await asyncio.gather(*(graded(service, "sandbox_fusion", "print(1)", tests) for _ in range(4)))
    assert [score.value for score in scores] == [1.0] * 4


def program(code: str) -> Program:
    return Program(
        language="python", code=code, files={}, stdin="", wall_s=20.0, compile_s=5.0, memory_mb=512
    )
