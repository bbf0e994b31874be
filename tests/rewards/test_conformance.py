import itertools

import pytest
from roll_rewards import GradeItem, Score, check_grader, make_grader

ENTRY = {"question": "4 - 1 - 7 =", "answer": "-4", "metadata": {}}


def is_short(response: str) -> bool:
    return len(response) < 5


@pytest.mark.parametrize(
    ("name", "options", "item"),
    [
        ("exact", {"after": ";"}, GradeItem(response="a;b", reference="b")),
        ("number", {}, GradeItem(response="is 4", reference="4")),
        ("pattern", {"pattern": r"<(.*?)>", "group": 1}, GradeItem(response="<4>", reference="4")),
        ("pattern", {"pattern": r"(?:a+)+$"}, GradeItem(response="aaa", reference=None)),
        ("python", {"callable": f"{__name__}:is_short"}, GradeItem(response="abc", reference=None)),
        ("reasoning_gym", {"task": "chain_sum"}, GradeItem(response="-4", reference=ENTRY)),
    ],
)
async def test_our_graders_keep_the_promises_of_the_seam(name: str, options: dict, item: GradeItem) -> None:
    results = await check_grader(make_grader(name, **options), item)
    assert len(results) == 5
    assert [result for result in results if not result.passed] == []


async def test_grader_that_breaks_its_promises_is_found_out() -> None:
    answers = itertools.count()

    class Broken:
        async def grade(self, response: str, reference: object, **columns: object) -> Score:
            if not response:
                raise IndexError("empty")
            return Score(value=float(next(answers)))

    results = {r.name: r for r in await check_grader(Broken(), GradeItem(response="a", reference=None))}
    assert results["verdict"].passed
    assert not results["repeatable"].passed
    assert results["repeatable"].detail == "0.0, then 1.0"
    assert not results["hostile_responses"].passed
    assert "'': error: Broken raised IndexError: empty" in results["hostile_responses"].detail
    assert not results["unknown_columns"].passed
    assert not results["picklable"].passed
