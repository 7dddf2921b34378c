"""Text -> token windows: open a corpus by name or path, or prepare one from text.

    >>> from isotune.corpus import open_corpus
    >>> corpus = open_corpus("python-sources")
    >>> corpus.tokenizer, corpus.vocabulary_size
    ('bytes', 256)
    >>> corpus.sequences(0, 4, sequence_length=64, seed=0).shape
    (4, 65)

Sequence i of the training stream depends on the seed and i alone, whatever the batch size.
"""

from isotune.corpus.corpus import Corpus, Tokens
from isotune.corpus.opening import open_corpus
from isotune.corpus.preparation import Prepared, Progress, prepare
from isotune.corpus.tokenizers import Tokenizer, load_tokenizer

__all__ = [
    "Corpus",
    "Prepared",
    "Progress",
    "Tokenizer",
    "Tokens",
    "load_tokenizer",
    "open_corpus",
    "prepare",
]
