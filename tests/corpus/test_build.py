"""From text to binary files: counts, round trips, reruns, interruption, bad input."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
import sentencepiece
from fairseq.data import Dictionary, indexed_dataset

from pe_fairseq.corpus import build, manifest, pieces, text
from pe_fairseq.errors import UserError

SPLITS = ("train", "valid", "test")
PROGRAM = Path(sys.executable).parent / "pe-fairseq"
VOCABULARY = 400


def sentences(seed, count):
    draw = random.Random(seed)
    words = "the cat dog sat ran on under mat tree slowly quickly and then again".split()
    return [" ".join(draw.choices(words, k=draw.randint(4, 30))) for _ in range(count)]


ODD_LINES = [
    "",
    " = A title = ",
    "an <unk> and <unk> <unk> , then <unk>",
    "x<s>y </s> <pad> <s> a<unk>b <0x41> #fairseq:overwrite madeupword0000 1",
    "日本 ☃ café \u00a0 tab\there",
]

TEXT = {
    "train": [sentences(1, 200) + ODD_LINES * 20, sentences(2, 100)],
    "valid": [sentences(3, 20)],
    "test": [ODD_LINES, ["Never seen: ж 🙂 \u2028 ½"], sentences(4, 10)],
}
SOURCES = [{"name": "made up"}]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    dest = tmp_path_factory.mktemp("corpus") / "new" / "dest"
    build.build("odd", TEXT, dest, VOCABULARY, SOURCES)
    return dest


def items(corpus, split):
    return indexed_dataset.MMapIndexedDataset(str(corpus / split))


def lines(split):
    return [line for document in TEXT[split] for line in document]


def test_only_what_is_promised_is_there(corpus):
    assert {path.name for path in corpus.iterdir()} == {*build.FILES, manifest.NAME}
    assert [path.name for path in corpus.parent.iterdir()] == ["dest"]


@pytest.mark.parametrize("split", SPLITS)
def test_manifest_counts_the_text(corpus, split):
    raw = (corpus / f"{split}.txt").read_bytes()
    found = manifest.read(corpus).splits[split]
    assert raw.decode().split("\n")[:-1] == lines(split)
    assert found.words == sum(len(line.split()) for line in lines(split))
    assert found.lines == raw.count(b"\n") == len(items(corpus, split))
    assert found.documents == [len(document) for document in TEXT[split]]
    assert found.sha256 == hashlib.sha256(raw).hexdigest()


def test_manifest_names_the_model(corpus):
    found = manifest.read(corpus)
    content = (corpus / found.subword["file"]).read_bytes()
    assert found.subword["sha256"] == hashlib.sha256(content).hexdigest()
    assert (found.corpus, found.sources) == ("odd", SOURCES)
    assert set(found.versions) == {
        *("pe-fairseq", "python", "torch", "numpy", "fairseq", "sentencepiece")
    }


def test_the_dictionary_is_the_model(corpus):
    dictionary = Dictionary.load(str(corpus / "dict.txt"))
    model = sentencepiece.SentencePieceProcessor(str(corpus / "sentencepiece.model"))
    assert len(dictionary) == model.get_piece_size() == VOCABULARY
    assert dictionary.symbols == [pieces.symbol(model, n) for n in range(VOCABULARY)]
    assert dictionary.symbols[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    train = numpy.concatenate([item.numpy() for item in items(corpus, "train")])
    assert dictionary.count[4:] == numpy.bincount(train, minlength=VOCABULARY)[4:].tolist()


@pytest.mark.parametrize("split", SPLITS)
def test_the_binary_file_decodes_to_the_text(corpus, split):
    model = sentencepiece.SentencePieceProcessor(str(corpus / "sentencepiece.model"))
    for item, line in zip(items(corpus, split), lines(split)):
        *content, end = item.tolist()
        assert end == 2 and not {0, 1, 2} & set(content)
        assert model.decode(content) == " ".join(line.split())


def test_the_word_unk_is_one_piece_and_nothing_else_is(corpus):
    for split in SPLITS:
        for item, line in zip(items(corpus, split), lines(split)):
            assert item.tolist().count(3) == line.split().count("<unk>")
    title = items(corpus, "test")[2].tolist()
    assert title.count(3) == 4 and title[-2:] == [3, 2]


def test_a_second_time_changes_nothing(corpus, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in corpus.iterdir()}
    build.build("odd", TEXT, corpus, VOCABULARY, SOURCES)
    assert "is complete" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in corpus.iterdir()}


def test_the_same_input_gives_the_same_files(corpus, tmp_path):
    build.build("odd", TEXT, tmp_path / "again", VOCABULARY, SOURCES)
    for path in corpus.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


@pytest.mark.parametrize(
    ("splits", "vocabulary", "message"),
    [
        ({**TEXT, "test": [["other"]]}, VOCABULARY, "of other text"),
        (TEXT, VOCABULARY + 1, "was made with --vocabulary 400, not 401"),
    ],
)
def test_another_request_is_refused(corpus, splits, vocabulary, message):
    with pytest.raises(UserError, match=message):
        build.build("odd", splits, corpus, vocabulary, SOURCES)


def test_an_incomplete_folder_is_refused(corpus, tmp_path):
    (tmp_path / manifest.NAME).write_bytes((corpus / manifest.NAME).read_bytes())
    with pytest.raises(UserError, match=r"lacks dict\.txt"):
        build.check(tmp_path, VOCABULARY)


@pytest.fixture
def own(tmp_path):
    """A text file of one's own."""
    file = tmp_path / "own.txt"
    file.write_text("\n".join(f"{n} {line}" for n, line in enumerate(sentences(5, 400))))
    return file


def make(program, dest, *arguments, **options):
    return program(PROGRAM, "corpus", "docs", dest, *arguments, **options)


def test_own_text_from_the_command_line(program, own, tmp_path):
    out = make(program, tmp_path / "dest", "--text", own, "--vocabulary", 400).stdout
    assert out.splitlines()[-1] == f"wrote {tmp_path / 'dest'}"
    content = json.loads((tmp_path / "dest" / "manifest.json").read_text())
    assert content["corpus"] == "text" and content["splits"]["test"]["documents"] == [40]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"", "is empty"),
        (b"good\nbad \xff\n", "byte 0xff in line 2"),
        (b"a line\nanother line\n", "has 2 paragraphs"),
    ],
    ids=["missing", "empty", "not UTF-8", "short"],
)
def test_bad_text(tmp_path, content, message):
    file = tmp_path / "own.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        text.read([file])


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [(4000, r"lower it to \d+"), (262, r"raise it to \d+"), (200, "200 is too small")],
)
def test_bad_vocabulary(tmp_path, vocabulary, message):
    with pytest.raises(UserError, match=message):
        build.build("odd", TEXT, tmp_path / "dest", vocabulary, SOURCES)
    assert not list(tmp_path.iterdir())


def test_an_error_is_one_line(program, own, tmp_path):
    done = make(program, tmp_path / "dest", "--text", own, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("pe-fairseq: error: --vocabulary 4000 is too large")
    assert [path.name for path in tmp_path.iterdir()] == ["own.txt"]


def test_a_folder_of_something_else_is_refused_at_once(program, tmp_path):
    (tmp_path / "mine").write_text("keep")
    done = make(program, tmp_path, check=False)
    assert done.returncode == 1 and "is no corpus of this command" in done.stdout
    assert "reading" not in done.stdout and (tmp_path / "mine").read_text() == "keep"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted(own, tmp_path, number):
    """Ended while fairseq-preprocess runs, which must end too."""
    command = [PROGRAM, "corpus", "docs", tmp_path / "dest", "--text", own]
    process = subprocess.Popen(
        [*map(str, command), "--vocabulary", "400"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # a shell starts its background jobs, and so these tests, with SIGINT ignored
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    while process.stderr.readline() != "binarising\n":
        assert process.poll() is None
    time.sleep(0.3)
    process.send_signal(number)
    assert process.wait(timeout=60) != 0
    assert [path.name for path in tmp_path.iterdir()] == ["own.txt"]
    assert "Traceback" not in process.stderr.read()
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not any(str(tmp_path).encode() in command for command in commands)
