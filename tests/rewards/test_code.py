"""The `code` grader: what it finds in a response, how it reads tests, and what it gives."""

import asyncio
import json
import shutil
import signal
from typing import Any

import pytest
from roll_rewards import RewardError, Score, check_grader, make_grader
from roll_rewards.deadlines import GradeItem
from roll_rewards.graders.code import Code
from roll_rewards.graders.code.cases import names_classes, read_suite
from roll_rewards.graders.code.comparison import same_output, same_value
from roll_rewards.graders.code.extraction import extract_code, language_called
from roll_rewards.graders.code.local import close_pools
from roll_rewards.sandbox import Job, Limits, SandboxPool

ADD = "def add(a, b):\n    return a + b\n"


@pytest.fixture(autouse=True, scope="module")
def _pools_end():
    yield
    asyncio.run(close_pools())


async def graded(
    code: str, reference: object, *, options: dict[str, Any] | None = None, **columns: object
) -> Score:
    return await Code(**(options or {})).grade(f"Here:\n```python\n{code}\n```\n", reference, **columns)


@pytest.mark.parametrize(
    ("response", "fence", "found"),
    [
        ("```python\na\n```", "last", "a\n"),
        ("```python\na\n```\ntext\n```py\nb\n```", "last", "b\n"),
        ("```python\na\n```\ntext\n```py\nb\n```", "first", "a\n"),
        ("```python\na\nc\n```\ntext\n```py\nb\n```", "longest", "a\nc\n"),
        ("```python\na\n```\ntext\n```py\nb\n```", "all", "a\n\nb\n"),
        ("```python\na\n```\n```text\n5\n```", "last", "a\n"),
        ("```\na\n```", "last", "a\n"),
        ("```\nout\n```\n```Python\na\n```\n```\nout\n```", "last", "a\n"),
        ("```bash\nls\n```", "last", None),
        ("~~~~ python\na\n```\n~~~~", "last", "a\n```\n"),
        ("````python\n```\nx\n```\n````", "last", "```\nx\n```\n"),
        ("```python\nnever closed", "last", "never closed"),
        ("```python", "last", ""),
        ("<think>```python\nwrong\n```</think>```python\na\n```", "last", "a\n"),
        ("print(1)", "last", "print(1)"),
        ("  ", "last", None),
        ("`inline` ```code``` text", "last", "`inline` ```code``` text"),
        ("```{.python}\na\n```", "last", "a\n"),
        ("\r\n```python\r\na\r\n```", "last", "a\r\n"),
    ],
)
def test_program_is_found_in_the_response(response: str, fence: Any, found: str | None) -> None:
    assert extract_code(response, language="python", fence=fence) == found


def test_response_without_a_fence_is_no_program_when_one_is_asked_for() -> None:
    assert extract_code("print(1)", language="python", fenced_only=True) is None


@pytest.mark.parametrize(
    ("got", "expected", "tolerance", "same"),
    [
        (b"5\n", "5", None, True),
        (b"5 \r\n\r\n", "5\n", None, True),
        (b" 5\n", "5\n", None, False),
        (b"5\n\n6\n", "5\n6\n", None, False),
        (b"\n5\n", "5\n", None, False),
        (b"5.0\n", "5\n", None, False),
        (b"5.0\n", "5\n", 1e-9, True),
        (b"0.33333 x\n", "0.333333 x\n", 1e-4, True),
        (b"0.33333 y\n", "0.333333 x\n", 1e-4, False),
        (b"nan\n", "5\n", 1e-4, False),
        (b"1e999999999\n", "5\n", 1e-4, False),
        (b"\xff\n", "5\n", None, False),
        (b"", "", None, True),
    ],
)
def test_printed_text_is_compared(got: bytes, expected: str, tolerance: float | None, same: bool) -> None:
    assert same_output(got, expected, tolerance=tolerance) is same


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        (5, 5.0, True),
        (0.1 + 0.2, 0.3, True),
        (True, 1, False),
        (1, True, False),
        (None, None, True),
        ("5", 5, False),
        ((1, [2]), [1, (2,)], True),
        ([1], [1, 2], False),
        ({1: "a"}, {"1": "a"}, True),
        ({1: "a"}, {2: "a"}, False),
        ({1, 2}, {2, 1}, True),
        ({1, 2}, [1, 2], False),
        (float("nan"), float("nan"), True),
        (10**400, 10**400, True),
        (10**400, 1.0, False),
        (10**400, float("inf"), False),
        (b"a", "a", False),
        (1 + 2j, 1 + 2j, True),
    ],
)
def test_returned_values_are_compared(got: object, expected: object, same: bool) -> None:
    assert same_value(got, expected) is same


@pytest.mark.parametrize(
    ("reference", "columns", "mode", "count", "entry"),
    [
        ([{"stdin": "1", "stdout": "2"}], {}, "stdin", 1, ""),
        ('[{"input": "1", "output": "2"}]', {}, "stdin", 1, ""),
        ({"inputs": ["1", "2"], "outputs": ["1", "2"]}, {}, "stdin", 2, ""),
        ({"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}, {}, "function", 1, "add"),
        ([{"args": [1], "result": 2}], {"entry": "f"}, "function", 1, "f"),
        (["assert f(1) == 2", "assert f(2) == 3"], {}, "asserts", 2, ""),
        ("assert f(1) == 2", {}, "asserts", 1, ""),
        ({"test": "def check(c): pass", "entry_point": "f"}, {}, "asserts", 1, "f"),
        ("def test_f():\n    assert True", {}, "pytest", 1, ""),
        ([], {}, "stdin", 0, ""),
        ([{"input": "1", "output": "2"}], {"mode": "input"}, "stdin", 1, ""),
        ({"mode": "function", "entry": "g", "tests": []}, {}, "function", 0, "g"),
    ],
)
def test_tests_are_read_from_the_forms_that_data_sets_have(
    reference: object, columns: dict[str, object], mode: str, count: int, entry: str
) -> None:
    suite = read_suite(reference, columns)
    assert (suite.mode, len(suite.cases), suite.entry) == (mode, count, entry)


def test_function_arguments_may_be_lines_of_json() -> None:
    suite = read_suite({"inputs": ['[1, 2]\n"x"'], "outputs": ["[3]"], "fn_name": "f"}, {})
    assert suite.cases[0].args == ([1, 2], "x")
    assert suite.cases[0].result == [3]


@pytest.mark.parametrize(
    ("reference", "columns", "message"),
    [
        (None, {}, "needs tests"),
        (7, {}, "needs tests"),
        ({"inputs": ["1"], "outputs": []}, {}, "of one length"),
        ([{"args": [1], "result": 2}], {}, "name of the function"),
        ([{"stdin": "1"}], {}, "cannot read a test for mode 'stdin'"),
        ([{"stdin": "1", "stdout": "2"}], {"mode": "magic"}, "must be stdin, function, asserts or pytest"),
        ([3], {}, "cannot read a test"),
    ],
)
async def test_reference_without_readable_tests_is_an_error_and_no_zero(
    reference: object, columns: dict[str, object], message: str
) -> None:
    with pytest.raises(RewardError) as caught:
        await Code().grade("print(1)", reference, **columns)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("code", "uses"),
    [
        ("assert add(1, 2) == 3", False),
        ("assert Vector(1) + Vector(2) == Vector(3)", True),
        ("from solution import Vector", True),
        ("import solution\nassert solution.Vector(1)", True),
        ("from collections import Counter\nassert f() == Counter('a')", False),
        ("class T:\n    pass\nassert f(T())", False),
        ("try:\n    f()\nexcept ValueError:\n    pass", False),
        ("def (", False),
    ],
)
def test_tests_that_use_classes_of_the_program_are_recognised(code: str, uses: bool) -> None:
    assert names_classes(code) is uses


async def test_credit_is_a_fraction_or_all_or_nothing() -> None:
    tests = [{"stdin": f"{i} 1", "stdout": str(i + 1 if i != 2 else 0)} for i in range(4)]
    code = "a, b = map(int, input().split())\nprint(a + b)"
    part = await graded(code, tests)
    assert (part.value, part.parts["passed"], part.parts["total"], part.parts["all"]) == (0.75, 3, 4, 0)
    whole = await graded(code, tests, options={"credit": "all"})
    assert whole.value == 0.0
    # It stopped at the first failure, and says that there were four tests.
    assert (whole.parts["passed"], whole.parts["total"]) == (2, 4)
    assert (await graded(code, tests[:2], options={"credit": "all"})).value == 1.0


async def test_response_without_a_program_gets_nothing_and_is_not_parsed() -> None:
    score = await Code(fenced_only=True).grade("I do not know.", [{"stdin": "", "stdout": ""}])
    assert (score.value, score.parsed, score.parts["total"]) == (0.0, None, 1.0)


async def test_functions_are_called_by_name_with_plain_values() -> None:
    tests = [{"args": [[1, 2], {"k": 3}], "result": [[1, 2], {"k": 3}]}]
    assert (await graded("def f(*a): return a", tests, entry="f")).value == 1.0
    assert (
        await graded("class Solution:\n    def f(self, a, b): return [a, b]", tests, entry="f")
    ).value == 1.0
    assert (await graded("class C:\n    def f(self, a, b): return a, b", tests, entry="C.f")).value == 1.0
    assert (await graded("f = 5", tests, entry="f")).value == 0.0
    kwargs = [{"args": [1], "kwargs": {"b": 2}, "result": 3}]
    assert (await graded(ADD, kwargs, entry="add")).value == 1.0


async def test_prelude_comes_before_the_program() -> None:
    code = "def f(x: List[int]) -> int:\n    return sum(x)"
    tests = [{"args": [[1, 2]], "result": 3}]
    assert (await graded(code, tests, entry="f")).value == 0.0
    assert (await graded(code, tests, options={"prelude": "from typing import *"}, entry="f")).value == 1.0


async def test_assertions_see_values_mutations_errors_and_objects_of_the_program() -> None:
    program = (
        "class Vector:\n"
        "    def __init__(self, x): self.x = x\n"
        "    def __add__(self, other): return Vector(self.x + other.x)\n"
        "    def __mul__(self, k): return Vector(self.x * k)\n"
        "class Missing(KeyError): pass\n"
        "def sort(x): x.sort()\n"
        "def twice(f, x): return f(f(x))\n"
        "def count(n):\n    yield from range(n)\n"
        "def fail(): raise Missing('key')\n"
        "def grow(d): d['new'] = 1; return d\n"
    )
    tests = [
        "x = [3, 1, 2]\nsort(x)\nassert x == [1, 2, 3]",
        "assert twice(lambda v: v * 3, 2) == 18",
        "assert list(count(3)) == [0, 1, 2] and sum(count(4)) == 6",
        "try:\n    fail()\nexcept Missing as error:\n    assert error.args == ('key',)\nelse:\n"
        "    assert False",
        "try:\n    fail()\nexcept KeyError:\n    pass\nelse:\n    assert False",
        "assert Vector(1) + Vector(2) == Vector(3)\nassert Vector(2) * 4 == Vector(8)",
        "v = Vector(1)\nv.x = 7\nassert v.x == 7 and isinstance(v, Vector)",
        "d = {}\nassert grow(d) == {'new': 1} and d == {'new': 1}",
    ]
    good = await graded(program, tests)
    assert good.parts["passed"] == len(tests), good.parts
    wrong = ["assert Vector(1) + Vector(2) == Vector(4)", "assert twice(lambda v: v * 3, 2) == 17", "fail()"]
    assert (await graded(program, wrong)).parts["passed"] == 0


async def test_pytest_file_gives_a_verdict_for_each_of_its_tests() -> None:
    tests = (
        "import pytest\nimport solution\nfrom solution import add, talk\n"
        "@pytest.mark.parametrize(('a', 'b', 'c'), [(1, 2, 3), (2, 2, 5)])\n"
        "def test_add(a, b, c): assert add(a, b) == c\n"
        "def test_error():\n    with pytest.raises(TypeError): add(1, 'x')\n"
        "def test_approximate(): assert add(0.1, 0.2) == pytest.approx(0.3)\n"
        "def test_output(capsys):\n    talk()\n    assert capsys.readouterr().out == 'hello\\n'\n"
        "@pytest.mark.xfail\ndef test_known_fault(): assert add(1, 1) == 3\n"
        "class TestClass:\n    def test_module(self): assert solution.add(0, 0) == 0\n"
    )
    score = await graded(ADD + "def talk(): print('hello')\n", tests)
    assert (score.parts["passed"], score.parts["total"]) == (6, 7)
    assert score.value == pytest.approx(6 / 7)
    missing = await graded(ADD, tests)
    assert missing.value == 0.0
    assert missing.parts["total"] >= 6
    assert (await graded("import os\nos._exit(0)", tests)).value == 0.0


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
async def test_cpp_programs_are_compiled_once_and_run_on_every_test() -> None:
    code = "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << '\\n'; }"
    tests = [{"stdin": "2 3", "stdout": "5"}, {"stdin": "2 3", "stdout": "6"}]
    score = await Code(language="cpp").grade(f"```cpp\n{code}\n```", tests)
    assert (score.value, score.parts["compiled"]) == (0.5, 1.0)
    broken = await Code().grade("```cpp\nint main( {\n```", tests, language="cpp")
    assert (broken.value, broken.parts["compiled"], broken.failure) == (0.0, 0.0, None)


async def test_shell_programs_run() -> None:
    tests = [{"stdin": "2 3\n", "stdout": "5"}]
    score = await Code(language="shell").grade("```bash\nread a b; echo $((a + b))\n```", tests)
    assert score.value == 1.0


async def test_timeout_is_a_verdict_and_the_walls_are_named() -> None:
    score = await graded("while True: pass", [{"stdin": "", "stdout": ""}], options={"wall_s": 0.5})
    assert (score.value, score.timed_out, score.failure) == (0.0, True, None)
    assert [name for name in score.parts if name.startswith("isolation/")] != []


async def test_program_that_hangs_in_a_call_is_cut_with_its_tests() -> None:
    options = {"wall_s": 1.0}
    hangs = "def add(a, b):\n    while a == 1: pass\n    return a + b"
    tests = ["assert add(1, 1) == 2", "assert add(2, 2) == 4"]
    score = await graded(hangs, tests, options={"wall_s": 3.0})
    assert (score.parts["passed"], score.timed_out) == (1.0, True)
    file = (
        "from solution import add\ndef test_hangs(): assert add(1, 1) == 2\ndef test_never_run(): assert True"
    )
    cut = await graded(hangs, file, options=options)
    assert (cut.value, cut.parts["total"], cut.timed_out) == (0.0, 2.0, True)


@pytest.mark.timeout(240)
async def test_processor_time_limit_is_told_by_its_signal() -> None:
    async with SandboxPool(sandboxes=1) as pool:
        limits = Limits(wall_s=180, cpu_s=1)
        outcome = await pool.run(Job(mode="script", files={"main.py": b"while True: pass"}, limits=limits))
    assert outcome.code == -signal.SIGXCPU


async def test_adaptive_limit_follows_right_answers_and_counts_what_it_cuts() -> None:
    options = {"adaptive": True, "adaptive_min_s": 0.5, "wall_s": 30.0}
    tests = [{"stdin": "", "stdout": "adaptive"}]
    assert (await graded("print('adaptive')", tests, options=options)).parts["cut"] == 0.0
    slow = await graded("import time\ntime.sleep(25)\nprint('adaptive')", tests, options=options)
    assert (slow.value, slow.timed_out, slow.parts["cut"]) == (0.0, True, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wall_s": 0}, "wall_s must be above 0"),
        ({"memory_mb": 1}, "memory_mb must be 32"),
        ({"processes": 0}, "processes must be 1..1024"),
        ({"tolerance": -1.0}, "tolerance >= 0"),
        ({"sandboxes": 0}, "sandboxes >= 1"),
        ({"language": "cobol"}, "'python' or 'cpp' or 'shell'"),
        ({"isolation": "magic"}, "'namespaces'"),
        ({"adaptive": True, "adaptive_min_s": 99.0}, "at most wall_s"),
    ],
)
def test_impossible_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardError) as caught:
        make_grader("code", **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "language"), [("C++", "cpp"), ("bash", "shell"), ("py3", "python")])
def test_languages_have_other_names(name: str, language: str) -> None:
    assert language_called(name) == language


async def test_unknown_language_of_a_row_is_an_error() -> None:
    with pytest.raises(RewardError, match="must be python, cpp or shell, got 'cobol'"):
        await Code().grade("x", [], language="cobol")


async def test_functions_are_for_python_alone() -> None:
    with pytest.raises(RewardError, match="is for Python, got language 'shell'"):
        await Code(language="shell").grade("x", ["assert f()"])


async def test_grader_keeps_the_promises_of_its_seam() -> None:
    item = GradeItem(response="print(input())", reference=json.dumps([{"stdin": "7", "stdout": "7"}]))
    results = await check_grader(Code(wall_s=5.0), item, deadline_s=60)
    assert [result for result in results if not result.passed] == []
