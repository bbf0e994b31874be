"""Files and YAML text as trees with places, and what is wrong with them."""

from pathlib import Path

import pytest
from roll_launch.config.document import parse_document, parse_value, read_document
from roll_launch.config.nodes import Items, Mark, Scalar, Table, dotted, mark_of
from roll_launch.config.problems import ConfigError


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_document(text, source="x.yaml")
    return str(caught.value)


def problems(text: str) -> list[str]:
    return [str(problem) for problem in parse_document(text, source="x.yaml").problems]


def texts(node: object) -> object:
    if isinstance(node, Table):
        return {key: texts(entry.node) for key, entry in node.entries.items()}
    if isinstance(node, Items):
        return [texts(child) for child in node.nodes]
    return node.text if isinstance(node, Scalar) else None


def test_every_key_knows_its_line() -> None:
    root = parse_document("a: 1\nb:\n  c:\n    - x\n    - {name: second, d: 2}\n", source="x.yaml").root
    assert mark_of(root, ("a",)) == Mark(source="x.yaml", line=1)
    assert mark_of(root, ("b", "c")).line == 3
    assert mark_of(root, ("b", "c", 1, "d")).line == 5
    assert dotted(root, ("b", "c", 1, "d")) == "b.c.second.d"


def test_the_line_of_an_absent_key_is_that_of_the_nearest_one_above() -> None:
    root = parse_document("a: 1\nb:\n  c: 2\n", source="x.yaml").root
    assert mark_of(root, ("b", "missing", "deeper")).line == 2


def test_quoted_and_block_text_is_told_from_plain_text() -> None:
    root = parse_document("a: off\nb: 'off'\nc: |\n  off\nd: !!str off\n", source="x.yaml").root
    styles = [entry.node.style for entry in root.entries.values() if isinstance(entry.node, Scalar)]
    assert styles == ["plain", "quoted", "quoted", "quoted"]


def test_each_duplicate_key_is_reported_with_both_lines() -> None:
    assert problems("a:\n  b: 1\n  c: 2\n  b: 3\na: 5\n") == [
        "x.yaml:4: a.b: key b is given twice, on lines 2 and 4",
        "x.yaml:5: a: key a is given twice, on lines 1 and 5",
    ]


def test_anchors_and_merge_keys_are_followed_and_written_keys_win() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [{x: 5}, *a]}\nd: *a\n"
    assert texts(parse_document(text, source="x.yaml").root) == {
        "a": {"x": "1", "y": "2"},
        "b": {"x": "1", "y": "3"},
        "c": {"x": "5", "y": "2"},
        "d": {"x": "1", "y": "2"},
    }


def test_a_merge_key_takes_only_mappings() -> None:
    assert problems("a: {<<: 5}\n") == ["x.yaml:1: a: the merge key << takes a mapping or a list of mappings"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml: is empty"),
        ("# only a comment\n", "x.yaml: is empty"),
        ("- a\n", "x.yaml:1: is a list; a mapping"),
        ("\n5\n", "x.yaml:2: is a single value; a mapping"),
        ("a: b: c\n", "x.yaml:1: not valid YAML (column 5)"),
        ("a: [1,\n", "x.yaml:1: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "another document"),
        ("a: *b\n", "undefined alias"),
        ("a:\n\tb: 1\n", "indent with spaces; YAML does not allow tabs"),
        ("a: {b: ${c}}\n", 'write references in quotes: "${a.b}"'),
        ("a: 1\nb: \x01\n", "x.yaml:2: holds the control character U+0001"),
    ],
)
def test_text_that_is_no_configuration_is_refused_with_its_place(text: str, message: str) -> None:
    assert message in refused(text)


def test_broken_yaml_shows_the_line_with_a_mark_under_the_column() -> None:
    assert refused("name: q\nlearner: a: b\n").splitlines() == [
        "x.yaml:2: not valid YAML (column 11): mapping values are not allowed in this context",
        "    learner: a: b",
        "              ^",
    ]


def test_a_shown_line_masks_credentials() -> None:
    shown = refused("api_key: hunter2: x\n")
    assert "hunter2" not in shown and "api_key: ***" in shown


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object:os.system {}\n",
        "a: !!binary aGk=\n",
        "a: !!set {b}\n",
        "a: !!omap [b: 1]\n",
        "a: !x 1\n",
    ],
)
def test_tags_that_make_objects_are_refused(text: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith("x.yaml:1: a: tag !")


@pytest.mark.parametrize(
    ("value", "kept"), [("!!float 1e-6", 0), ("!!float 8", 1), ("!!bool yes", 1), ('!!int "8"', 0)]
)
def test_a_type_tag_must_agree_with_the_text(value: str, kept: int) -> None:
    assert len(problems(f"a: {value}\n")) == kept


def test_keys_are_text_whatever_they_look_like() -> None:
    root = parse_document("1: a\noff: b\n'~': c\n", source="x.yaml").root
    assert list(root.entries) == ["1", "off", "~"]
    assert problems("? [a]\n: b\n") == ["x.yaml:1: a key must be text, not a list or a mapping"]


def test_aliases_that_explode_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "more than 200000 values" in refused("\n".join(lines))


@pytest.mark.parametrize("text", ["a: " + "[" * 60 + "]" * 60, "a: " + "[" * 50_000, "- " * 500 + "x"])
def test_nesting_without_end_is_refused(text: str) -> None:
    assert "nest" in refused(text) or "is a list" in refused(text)


def test_an_anchor_that_contains_itself_is_reported() -> None:
    assert problems("a: &a [*a]\n") == ["x.yaml:1: a.0: an anchor that contains itself"]


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    for content in (b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "a: 1\nb: 2\n".encode("utf-16")):
        path.write_bytes(content)
        assert texts(read_document(path).root) == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: \xff\xfe\n", "x.yaml:2: is not UTF-8 text; got byte 0xff at offset 8"),
        (b"a: 1\n" + b"#" * (17 * 2**20), "has 17 MiB, which is no configuration; allowed: 16 MiB"),
    ],
)
def test_files_that_are_no_text_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_document(path)
    assert message in str(caught.value)


def test_a_missing_file_names_the_near_one(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_text("a: 1")
    with pytest.raises(ConfigError, match=r"qickstart.yaml: no such file; did you mean .*/quickstart.yaml\?"):
        read_document(tmp_path / "qickstart.yaml")
    with pytest.raises(ConfigError, match="there is no directory"):
        read_document(tmp_path / "nowhere" / "x.yaml")


def test_a_directory_instead_of_a_file_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_text("a: 1")
    with pytest.raises(
        ConfigError, match=r"is a directory; a YAML file is expected; it holds quickstart\.yaml"
    ):
        read_document(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: b # c", "a: b # c"),
        (" *x &y !z | > % @ `", "*x &y !z | > % @ `"),
        ("[1, {a: b}]", ["1", {"a": "b"}]),
        ('"8"', "8"),
        ("", ""),
    ],
)
def test_a_value_outside_of_a_file_is_flow_or_just_its_text(text: str, value: object) -> None:
    assert texts(parse_value(text, Mark(source="command line"))) == value
