"""The English corpus: GNU's Collaborative International Dictionary of English, from a Debian package.

    python experiments/gcide.py        # writes corpora/gcide, 40 MB of bytes; needs apt-get and dpkg-deb

The package is pinned by version and checksum, so the fingerprint is the same everywhere. The text is cut at entries
into documents of about 4 KB, of which some hundred are held out. Licence: GPL 2 or later.
"""

import gzip
import hashlib
import json
import subprocess
import tempfile
from pathlib import Path

from isotune.corpus import prepare

PACKAGE = "dict-gcide=0.48.5+nmu2"
TEXT_SHA256 = "802beb667e1fb666203e750f1faea60d5c202ac5430c2083c4180494609f10a7"
DOCUMENT_BYTES = 4_000
OUT = Path("corpora/gcide")


def main():
    text = dictionary()
    found = hashlib.sha256(text).hexdigest()
    if found != TEXT_SHA256:
        raise SystemExit(f"the dictionary's text has checksum {found}, not {TEXT_SHA256}: it is another version")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gcide.jsonl"
        with open(path, "w") as file:
            for document in documents(text.decode("utf-8", errors="replace")):
                file.write(json.dumps({"text": document}) + "\n")
        prepare([str(path)], OUT, tokenizer="bytes", validation_share=0.03)
    print(OUT)


def dictionary():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", PACKAGE], cwd=folder, check=True, capture_output=True)
        package = next(Path(folder).glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", package.name, "."], cwd=folder, check=True)
        return gzip.decompress((Path(folder) / "usr/share/dictd/gcide.dict.dz").read_bytes())


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
    main()
