"""The corpus ``docs``: what is read, what is kept, and that nothing is imported."""

import sys
import sysconfig
from pathlib import Path

import pytest

from pe_fairseq.corpus import docs, prose, text
from pe_fairseq.errors import UserError

PACKAGE = Path(docs.__file__).resolve().parents[1]

# loads the module without its package, which imports torch
EXTRACT_ALONE = f"""
import sys, types
for name in ("pe_fairseq", "pe_fairseq.corpus"):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = ["/".join([{str(PACKAGE)!r}, *name.split(".")[1:]])]
from pathlib import Path
from pe_fairseq.corpus import docs
roots = {{name: docs._folder(name) for name in ("torch", "numpy")}}
documents, _ = docs.extract({{"numpy": roots["numpy"] / "polynomial"}})
assert documents
before = set(sys.modules)
for path in [*roots["numpy"].glob("*.py"), Path(sys.argv[1])]:
    docs._document(path)
imported = set(sys.modules) - before | {{"torch", "numpy", "fairseq"}} & set(sys.modules)
print("imported:", sorted(imported))
"""


def sentence(number):
    return f"This is the sentence of the number {number} in the text that is read."


def long_text(start, count=45):
    return [sentence(number) for number in range(start, start + count)]


def test_nothing_is_imported(program, tmp_path):
    trap = tmp_path / "trap.py"
    trap.write_text(f"import antigravity\nopen({str(tmp_path / 'sprung')!r}, 'w')\n")
    out = program(sys.executable, "-c", EXTRACT_ALONE, trap).stdout
    assert out.splitlines()[-1] == "imported: []"
    assert not (tmp_path / "sprung").exists()


def test_files_in_order_of_their_paths_and_what_cannot_be_read_is_counted(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "tests").mkdir()
    for name in ("b/a.py", "a.py", "c.py", "tests/a.py"):
        (tmp_path / name).write_text(f'"""{sentence(name)}"""\n')
    (tmp_path / "python2.py").write_text('"""' + sentence(9) + '"""\nprint "x"\n')
    (tmp_path / "latin.py").write_bytes(b'"""caf\xe9"""\n')
    documents, sources = docs.extract({"python": tmp_path})
    assert list(documents) == ["python/a.py", "python/b/a.py", "python/c.py"]
    assert documents["python/b/a.py"] == [[sentence("b/a.py")]]
    assert (sources[0]["files"], sources[0]["skipped_files"]) == (5, 2)


def test_string_constants_in_source_order_without_pieces_of_f_strings():
    source = b'x = {"key one": "value one", "key two": f"piece {1} piece"}\ny = "last"\n'
    assert docs.string_constants(source) == ["key one", "value one", "key two", "last"]


@pytest.mark.parametrize(
    ("block", "kept"),
    [
        ("Return the sum of the two\n    arrays that were given.", True),
        (
            "Notes\n-----\nThe sum of an array is that of its elements.",
            "The sum of an array is that of its elements.",
        ),
        (
            ".. note :: This is not the way in which it was done.",
            "This is not the way in which it was done.",
        ),
        (">>> the result of it is the sum of this", False),
        ("zeros(shape, dtype=float, order='C', *, device=None) -> ndarray", False),
        ("===== ===== =====\n  a     b     c\n===== ===== =====", False),
        ("-h, --help  -v, --verbose  -q, --quiet  -o, --output FILE", False),
        ("if x == 1: return the_value[x] + the_other[y] * 2", False),
        ("This has a half \ud800 of a pair that is not to be written.", False),
        ("Too short.", False),
    ],
)
def test_prose(block, kept):
    expected = " ".join(block.split()) if kept is True else kept
    assert prose.paragraphs(block) == ([expected] if kept else [])


def test_a_paragraph_counts_once_and_a_long_string_stays_whole():
    long = long_text(0)
    documents = {"a": [[long[3], sentence("a")], [sentence("a")]], "b": [long], "c": [long]}
    assert docs.deduplicate(documents, held_out=set()) == {
        "a": [sentence("a")],
        "b": long,
        "c": [],
    }
    assert docs.deduplicate(documents, {long[5]})["b"] == long[:5] + long[6:]


def test_no_paragraph_is_in_two_splits():
    documents = {f"python/{n}.py": [long_text(20 * n)] for n in range(200)}
    splits = docs.split(documents, test=[long_text(100, 3)])
    lines = {
        name: [line for lines in split for line in lines] for name, split in splits.items()
    }
    assert len(splits["valid"]) > 2 and len(splits["train"]) > 100
    assert all(docs._words(document) >= docs.LONG_WORDS for document in splits["valid"])
    assert not set(lines["test"]) & set(lines["train"] + lines["valid"])
    assert not set(lines["valid"]) & set(lines["train"])


def test_the_topics_are_whole():
    import pydoc_data.topics as reference

    long = {
        name: words
        for name, topic in reference.topics.items()
        if len(words := topic.split()) >= 512
    }
    found = docs.topics(Path(sysconfig.get_path("stdlib"), docs.TOPICS))
    assert len(found) > 20 and len(found) == len(long)
    for name, lines in zip(sorted(long), found):
        assert " ".join(lines).split() == long[name]


def test_a_python_without_topics(tmp_path):
    with pytest.raises(UserError, match=r"no reference topics .*--text FILE") as error:
        docs.topics(tmp_path / "topics.py")
    assert "\n" not in str(error.value)


def test_a_missing_package():
    with pytest.raises(UserError, match="no_such_package is not installed"):
        docs._folder("no_such_package")


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"one\ntwo  words\n\n", ["one", "two words"]),
        (b"one\r\nline\r\n\r\n\r\ntwo", ["one line", "two"]),
    ],
)
def test_own_paragraphs(content, lines):
    assert text.paragraphs(content) == lines


def test_own_text_is_cut_in_three(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("\n".join(f"line {n}" for n in range(40)))
    second.write_text("\n".join(f"line {n}" for n in range(30, 80)))
    splits, _ = text.read([first, second])
    assert [len(document) for document in splits["train"]] == [34, 34]
    assert splits["valid"][0] == ["line 34", "line 35"]
    assert splits["test"][0] == [f"line {n}" for n in range(36, 40)]
    assert splits["train"][1][0] == "line 40" and splits["test"][1][-1] == "line 79"
