"""The demo's text: the documentation topics that every Python carries, cleaned, cut into documents, as token ids.

The standard library's `pydoc_data.topics` holds the language reference that `help("for")` prints, half a megabyte of
text under the PSF license.  Which text it is depends on the Python that runs.
"""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
PARAGRAPHS_PER_DOCUMENT = 24
HELD_OUT_EVERY = 20  # one document of twenty is for validation

# A word in straight quotes in running text, "for", was code in the source of the documentation.
_QUOTED_WORD = re.compile(r'(?<![^\s(])"([A-Za-z_][\w.]*(?:\(\))?)"(?=[\s.,;:)]|$)')
_CODE_LINE = re.compile(r"^ {3,}|>>>|::=|= ")
_RULE_LINE = re.compile(r"^\s*([*=+^~-])\1{3,}\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Corpus:
    """Text for training and text that is never trained on, each a list of documents of some paragraphs."""

    training: list[str]
    held_out: list[str]

    @property
    def digest(self) -> str:
        """Names the text, whichever Python it came from: the start of its SHA-256."""
        return hashlib.sha256("\0".join([*self.training, *self.held_out]).encode()).hexdigest()[:16]


def topics_corpus(seed: int) -> Corpus:
    """The documentation topics, without repeated paragraphs.

    Many topics are parts of longer ones.  Each paragraph is kept where it stands in the longest topic, so that nothing
    held out has a copy in the training text.

    Args:
        seed: chooses the documents that are held out.

    Returns:
        The corpus, about 370 thousand characters on Python 3.11.
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()
    documents = []
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        paragraphs = []
        for paragraph in clean(topics[name]).split("\n\n"):
            if paragraph.strip() and paragraph.strip() not in seen:
                seen.add(paragraph.strip())
                paragraphs.append(paragraph.strip("\n"))
        pieces = range(0, len(paragraphs), PARAGRAPHS_PER_DOCUMENT)
        documents += ["\n\n".join(paragraphs[i : i + PARAGRAPHS_PER_DOCUMENT]) for i in pieces]
    random.Random(seed).shuffle(documents)
    held_out = documents[::HELD_OUT_EVERY]
    return Corpus([text for i, text in enumerate(documents) if i % HELD_OUT_EVERY], held_out)


def clean(text: str) -> str:
    """Topic text as a person would type it: no quotes around single words, no underlines, plain apostrophes.

    Lines of code keep their quotes.

    Example:
        >>> clean('The "for" statement\\n*******************\\n\\n   x = "for"')
        'The for statement\\n\\n   x = "for"'
    """
    text = _RULE_LINE.sub("", text.replace("\u2019", "'").replace("\u201c", '"').replace("\u201d", '"'))
    lines = [line if _CODE_LINE.search(line) else _QUOTED_WORD.sub(r"\1", line) for line in text.split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def train_tokenizer(documents: list[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer; id 0 ends a text.

    Args:
        documents: text to learn merges from.
        vocab_size: tokens at most, at least the 256 bytes and the end of text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END_OF_TEXT], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def token_stream(tokenizer: Tokenizer, documents: list[str]) -> Int[np.ndarray, "N"]:
    """All documents' ids, each document after an end of text, which so also begins one."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    return np.array([i for text in documents for i in (end, *tokenizer.encode(text).ids)], np.int32)


def random_windows(
    stream: Int[np.ndarray, "N"], rng: np.random.Generator, rows: int, length: int
) -> Int[np.ndarray, "rows length+1"]:
    """Rows that start anywhere in the stream; one token longer than the model's input, for the last target."""
    starts = rng.integers(0, len(stream) - length, size=rows)
    return np.stack([stream[start : start + length + 1] for start in starts])


def all_windows(stream: Int[np.ndarray, "N"], rows: int, length: int) -> Int[np.ndarray, "batches rows length+1"]:
    """The stream cut into rows, in batches, without what does not fill one."""
    count = (len(stream) - 1) // length // rows * rows
    windows = [stream[i * length : (i + 1) * length + 1] for i in range(count)]
    return np.stack(windows).reshape(-1, rows, length + 1) if count else np.zeros((0, rows, length + 1), np.int32)
