"""The corpora of prose: dictionaries from Debian packages.

    python experiments/dictionaries.py               # writes corpora/gcide and corpora/deu-eng; needs apt-get, dpkg-deb
    python experiments/dictionaries.py gcide         # one of them

gcide: GNU's Collaborative International Dictionary of English, 40 MB; licence GPL 2 or later.
deu-eng: the German-English dictionary of Ding and FreeDict, 100 MB; licences GPL 3 and AGPL 3.
Packages are pinned by version and checksum, so the fingerprints are the same everywhere. A text is cut at empty lines
into documents of about 4 KB, of which 3 % are held out.
"""

import gzip
import hashlib
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from isotune.corpus import prepare

DOCUMENT_BYTES = 4_000
OUT = Path("corpora")


@dataclass(frozen=True)
class Dictionary:
    package: str
    file: str
    sha256: str  # of the text


DICTIONARIES = {
    "gcide": Dictionary(
        "dict-gcide=0.48.5+nmu2",
        "gcide.dict.dz",
        "802beb667e1fb666203e750f1faea60d5c202ac5430c2083c4180494609f10a7",
    ),
    "deu-eng": Dictionary(
        "dict-freedict-deu-eng=2022.04.21-1",
        "freedict-deu-eng.dict.dz",
        "1f72f2f707e5aeea0d243545f7800be8f3388597c50f337cad1192417beb44c8",
    ),
}


def main(names):
    unknown = set(names) - set(DICTIONARIES)
    if unknown:
        raise SystemExit(f"no dictionary is called {', '.join(sorted(unknown))}: use {', '.join(DICTIONARIES)}")
    for name in names or DICTIONARIES:
        write_corpus(DICTIONARIES[name], OUT / name)
        print(OUT / name)


def write_corpus(dictionary, out):
    text = text_of(dictionary)
    found = hashlib.sha256(text).hexdigest()
    if found != dictionary.sha256:
        raise SystemExit(f"the dictionary's text has checksum {found}, not {dictionary.sha256}: it is another version")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{out.name}.jsonl"
        with open(path, "w") as file:
            for document in documents(text.decode("utf-8", errors="replace")):
                file.write(json.dumps({"text": document}) + "\n")
        prepare([str(path)], out, tokenizer="bytes", validation_share=0.03)


def text_of(dictionary):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", dictionary.package], cwd=folder, check=True, capture_output=True)
        package = next(Path(folder).glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", package.name, "."], cwd=folder, check=True)
        return gzip.decompress((Path(folder) / "usr/share/dictd" / dictionary.file).read_bytes())


def documents(text):
    """Runs of whole entries, which end at empty lines."""
    document, size = [], 0
    for entry in text.split("\n\n"):
        document.append(entry)
        size += len(entry)
        if size >= DOCUMENT_BYTES:
            yield "\n\n".join(document)
            document, size = [], 0
    if document:
        yield "\n\n".join(document)


if __name__ == "__main__":
    main(sys.argv[1:])
