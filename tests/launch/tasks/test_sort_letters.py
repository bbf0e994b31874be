import json
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from roll_launch.data import PromptEncoder, Row
from roll_launch.models import load_tokenizer
from roll_launch.tasks import sort_letters


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sort_letters")
    sort_letters.write_files(directory, seed=0, demonstrations=6_000, train=1_000, heldout=1_024)
    return directory


def test_files_have_the_rows_that_were_asked_for(files: Path) -> None:
    assert len(rows(files / "demonstrations.jsonl")) == 6_000
    assert len(rows(files / "train.jsonl")) == 1_000
    assert len(rows(files / "heldout.jsonl")) == 1_024


def test_prompts_are_distinct_letters_and_references_are_sorted(files: Path) -> None:
    for row in rows(files / "train.jsonl") + rows(files / "heldout.jsonl"):
        letters, sign, rest = row["prompt"].partition("=")
        assert (sign, rest) == ("=", "")
        assert 3 <= len(letters) <= 12
        assert len(set(letters)) == len(letters)
        assert set(letters) <= set("abcdefghijklmnopqrst")
        assert row["reference"] == "".join(sorted(letters))


def test_held_out_letter_sets_are_in_no_other_file(files: Path) -> None:
    held = {row["reference"] for row in rows(files / "heldout.jsonl")}
    seen = {"".join(sorted(row["prompt"][:-1])) for row in rows(files / "demonstrations.jsonl")}
    seen |= {row["reference"] for row in rows(files / "train.jsonl")}
    assert not held & seen


def test_held_out_prompts_are_all_different(files: Path) -> None:
    prompts = [row["prompt"] for row in rows(files / "heldout.jsonl")]
    assert len(set(prompts)) == len(prompts)


def test_the_split_depends_on_the_set_of_letters_alone() -> None:
    assert sort_letters.is_heldout("hcfa") == sort_letters.is_heldout("acfh")
    letters = islice(sort_letters.letter_sequences(Random(1), heldout=True), 50)
    assert all(map(sort_letters.is_heldout, letters))


def test_lengths_become_rarer_by_a_constant_factor() -> None:
    lengths = Counter(len(p) for p in islice(sort_letters.letter_sequences(Random(0), heldout=False), 40_000))
    for length in range(4, 9):
        assert lengths[length] / lengths[length - 1] == pytest.approx(0.85, abs=0.06)


def test_half_of_the_demonstrated_answers_have_a_slip(files: Path) -> None:
    shown = rows(files / "demonstrations.jsonl")
    right = [r["response"].rsplit(";", 1)[-1] == "".join(sorted(r["prompt"][:-1])) for r in shown]
    assert sum(right) / len(right) == pytest.approx(0.5, abs=0.03)


def test_drafts_are_rearrangements_that_get_closer_to_sorted(files: Path) -> None:
    counts: Counter[int] = Counter()
    for row in rows(files / "demonstrations.jsonl"):
        *drafts, _ = row["response"].split(";")
        counts[len(drafts)] += 1
        last = row["prompt"][:-1]
        for draft in drafts:
            assert sorted(draft) == sorted(last)
            assert inversions(draft) <= inversions(last)
            last = draft
    assert max(counts) == 5
    assert counts[0] / counts.total() == pytest.approx(0.55, abs=0.03)
    assert counts[2] / counts[1] == pytest.approx(0.45, abs=0.05)


def inversions(letters: str) -> int:
    return sum(first > second for i, second in enumerate(letters) for first in letters[:i])


def test_a_slip_is_a_swap_a_drop_or_a_duplicate() -> None:
    source = Random(0)
    slips = Counter(sort_letters.slip(source, "abc") for _ in range(600))
    assert set(slips) == {"bac", "acb", "bc", "ac", "ab", "aabc", "abbc", "abcc"}
    by_length = Counter({n: sum(c for s, c in slips.items() if len(s) == n) for n in (2, 3, 4)})
    assert min(by_length.values()) > 150


def test_the_same_arguments_write_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("two", 3), ("three", 4)):
        (tmp_path / name).mkdir()
        sort_letters.write_files(tmp_path / name, seed=seed, demonstrations=20, train=20, heldout=20)
    for file in ("demonstrations.jsonl", "train.jsonl", "heldout.jsonl", "tokenizer/tokenizer.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    for file in ("demonstrations.jsonl", "train.jsonl", "heldout.jsonl"):
        assert (tmp_path / "one" / file).read_bytes() != (tmp_path / "three" / file).read_bytes()


def test_the_size_of_one_file_does_not_change_another(tmp_path: Path) -> None:
    for name, demonstrations in (("one", 5), ("two", 50)):
        (tmp_path / name).mkdir()
        sort_letters.write_files(tmp_path / name, seed=0, demonstrations=demonstrations, train=20, heldout=20)
    for file in ("train.jsonl", "heldout.jsonl"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.mark.parametrize("count", [{"demonstrations": -1}, {"train": -1}, {"heldout": 100_001}])
def test_impossible_numbers_of_rows_are_refused(tmp_path: Path, count: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="allowed are numbers of rows >= 0"):
        sort_letters.write_files(tmp_path, seed=0, **count)


def test_the_tokenizer_has_25_tokens_and_adds_none(files: Path) -> None:
    tokenizer = load_tokenizer(files / "tokenizer")
    assert len(tokenizer) == 25
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, 1, None)
    assert tokenizer.encode("at=;") == [3, 22, 23, 24]
    assert tokenizer.encode("a\nz") == [3, 2, 2]
    assert tokenizer.decode([3, 24, 22, 1], skip_special_tokens=True) == "a;t"


def test_demonstrations_are_one_token_a_character_and_an_end(files: Path) -> None:
    encoder = PromptEncoder(files / "tokenizer")
    shown = rows(files / "demonstrations.jsonl")[0]
    row = Row(**shown, messages=None, reference=None, columns={}, origin="demonstrations.jsonl:1")
    ids, mask = encoder.supervised_tokens(row)
    assert len(ids) == len(shown["prompt"]) + len(shown["response"]) + 1
    assert mask.sum() == len(shown["response"]) + 1
    assert encoder.decode(ids[mask]) == shown["response"]
