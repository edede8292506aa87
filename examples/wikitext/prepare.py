"""Turn WikiText-103 or WikiText-2 into the binary files that fairseq-train reads.

Nothing is downloaded. Where the archives are, with the sha256 that public data loaders
give for them:

    https://wikitext.smerity.com/wikitext-103-v1.zip
      242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590
    https://wikitext.smerity.com/wikitext-2-v1.zip
      92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c
"""

import argparse
import hashlib
import lzma
import os
import platform
import re
import signal
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

SPLITS = ("train", "valid", "test")

# Merity et al. 2016, Table 1: words, and one </s> a line. The two corpora share their
# valid and test text, but for which words are <unk>.
PUBLISHED = {
    "WikiText-103": {"train": 103_227_021, "valid": 217_646, "test": 245_569},
    "WikiText-2": {"train": 2_088_628, "valid": 217_646, "test": 245_569},
}


class PrepareError(Exception):
    """What was given cannot be used; the message is one line."""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source",
        type=Path,
        help="the archive, or a folder with wiki.{train,valid,test}.tokens (or .tokens.xz)",
    )
    parser.add_argument("dest", type=Path, help="the folder to write: a new one")
    parser.add_argument(
        "--subword",
        type=int,
        metavar="N",
        help="cut words into N pieces; by default the dictionary has all words of train",
    )
    options = parser.parse_args()
    # without this a terminated run would leave its temporary folder behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if options.subword:
            prepare_subword(options.source, options.dest, options.subword)
        else:
            prepare(options.source, options.dest)
    except (PrepareError, OSError) as error:
        sys.exit(f"prepare.py: error: {error}")
    except KeyboardInterrupt:
        sys.exit("prepare.py: interrupted; nothing was written")


def prepare(source, dest):
    """Binarise ``source`` into ``dest``, which appears only when it is complete."""
    if is_prepared(dest):
        return
    libraries = versions()
    from pe_fairseq.corpus.preprocess import binarise
    from pe_fairseq.errors import UserError

    openers = find_splits(source)
    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{dest.name}-", dir=dest.parent) as work:
        text, binary = Path(work, "text"), Path(work, "binary")
        text.mkdir()
        files = {}
        for split, (name, opener) in openers.items():
            files[split] = {"file": name, **copy(name, opener, text / f"{split}.tokens")}
        corpus = check_counts(files)
        try:
            binarise({split: text / f"{split}.tokens" for split in SPLITS}, binary)
        except UserError as error:
            raise PrepareError(str(error)) from error
        write_manifest(binary, corpus, files, libraries, text)
        os.rename(binary, dest)
    print(f"wrote {dest}")


def prepare_subword(source, dest, pieces, articles=None):
    """The same with words cut into ``pieces``; of valid and test the first ``articles``."""
    versions()
    from pe_fairseq.corpus.build import build
    from pe_fairseq.errors import UserError

    openers = find_splits(source)
    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{dest.name}-", dir=dest.parent) as work:
        text, files = Path(work), {}
        for split, (name, opener) in openers.items():
            files[split] = {"file": name, **copy(name, opener, text / f"{split}.tokens")}
        corpus = check_counts(files)
        documents = {split: read_articles(text / f"{split}.tokens") for split in SPLITS}
    if articles is not None:
        corpus += f" (first {articles} articles of valid and test)"
        documents = {
            split: found if split == "train" else found[:articles]
            for split, found in documents.items()
        }
    sources = [{"name": one["file"], "sha256": one["sha256"]} for one in files.values()]
    try:
        build(corpus, documents, dest, pieces, sources)
    except UserError as error:
        raise PrepareError(str(error)) from error


# a title stands alone, between two blank lines; headings inside an article have more "="
TITLE = re.compile(r" ?= (?!= ).*[^=] = ?")


def read_articles(path):
    """The articles of a token file, each a list of its lines."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    starts = [
        number
        for number, line in enumerate(lines)
        if TITLE.fullmatch(line)
        and not "".join(lines[max(0, number - 1) : number]).strip()
        and not "".join(lines[number + 1 : number + 2]).strip()
    ]
    # what stands before the first title goes with it
    bounds = [0, *starts[1:], len(lines)]
    return [lines[start:end] for start, end in zip(bounds, bounds[1:])]


def write_manifest(binary, corpus, files, libraries, text):
    from pe_fairseq.corpus.manifest import Manifest, Split

    Manifest(
        corpus=corpus,
        sources=[{"name": one["file"], "sha256": one["sha256"]} for one in files.values()],
        subword=None,
        versions=libraries,
        splits={
            split: Split(
                words=one["words"],
                lines=one["lines"],
                documents=[len(a) for a in read_articles(text / f"{split}.tokens")],
                sha256=one["sha256"],
            )
            for split, one in files.items()
        },
    ).write(binary)


def is_prepared(dest):
    """True where ``dest`` is a complete earlier result; an error where it is anything else."""
    if (dest / "manifest.json").is_file() and (dest / "test.idx").is_file():
        from pe_fairseq.corpus import manifest

        earlier = manifest.read(dest)
        print(f"{dest} is complete: {earlier.corpus} from {earlier.sources[0]['name']}")
        return True
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise PrepareError(f"{dest} exists and is not a result of prepare.py")
    return False


def versions():
    """The versions that the manifest names; an error where they cannot work."""
    try:
        import pe_fairseq
    except ImportError as error:
        raise PrepareError(f"pe-fairseq is not installed ({error})") from error
    if pe_fairseq.FAIRSEQ_ERROR is not None:
        raise PrepareError("fairseq does not import here; run pe-fairseq doctor")
    import fairseq
    import torch

    return {
        "pe-fairseq": pe_fairseq.__version__,
        "fairseq": fairseq.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def find_splits(source):
    """Map each split to a file name and a function that opens it for reading bytes."""
    if source.is_dir():
        return {split: find_file(source, split) for split in SPLITS}
    if not source.exists():
        raise PrepareError(f"{source} does not exist")
    if not zipfile.is_zipfile(source):
        raise PrepareError(f"{source} is neither a zip archive nor a folder")
    archive = zipfile.ZipFile(source)
    members = {Path(member).name: member for member in archive.namelist()}
    return {split: find_member(archive, members, split) for split in SPLITS}


def find_file(folder, split):
    plain = folder / f"wiki.{split}.tokens"
    packed = folder / f"{plain.name}.xz"
    if plain.is_file():
        return str(plain), lambda: plain.open("rb")
    if packed.is_file():
        return str(packed), lambda: lzma.open(packed)
    raise PrepareError(f"{folder} has no {plain.name} and no {packed.name}")


def find_member(archive, members, split):
    name = f"wiki.{split}.tokens"
    if name not in members:
        raise PrepareError(f"{archive.filename} has no {name}")
    return f"{archive.filename}:{members[name]}", lambda: archive.open(members[name])


def copy(name, opener, target):
    """Copy a token file as plain text; return its sha256 and counts."""
    print(f"reading {name}", flush=True)
    digest = hashlib.sha256()
    lines = words = offset = 0
    try:
        with opener() as source, target.open("wb") as plain:
            for line in source:
                words += len(line.decode().split())
                digest.update(line)
                plain.write(line)
                lines += 1
                offset += len(line)
    except UnicodeDecodeError as error:
        raise PrepareError(
            f"{name} is not UTF-8: byte 0x{line[error.start]:02x} "
            f"at offset {offset + error.start}"
        ) from error
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise PrepareError(f"{name} is damaged: {error}") from error
    if not words:
        raise PrepareError(f"{name} is empty")
    return {
        "sha256": digest.hexdigest(),
        "tokens": words + lines,
        "lines": lines,
        "words": words,
    }


def check_counts(files):
    """Name the corpus by its number of tokens; warn where it is not the published one."""
    found = {split: files[split]["tokens"] for split in SPLITS}
    for split in SPLITS:
        print(f"  {split}: {found[split]:,} tokens, of them {files[split]['lines']:,} </s>")
    for corpus, published in PUBLISHED.items():
        if found == published:
            print(f"these are the published counts of {corpus}", flush=True)
            return corpus
    expected = "; ".join(
        f"{corpus} has " + ", ".join(f"{count:,}" for count in published.values())
        for corpus, published in PUBLISHED.items()
    )
    print(
        "WARNING: these are not the published counts, so perplexities will not compare "
        f"with published ones ({expected})",
        file=sys.stderr,
    )
    return "unknown"


if __name__ == "__main__":
    main()
