"""Tiny Shakespeare: character sequences from speeches, grouped by speaker, from the text file of that name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from gnomon.data.records import Records
from gnomon.data.sources.files import find, text
from gnomon.data.sources.source import Source
from gnomon.data.split import holdout
from gnomon.errors import DataError

ALPHABET = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The characters of the text; a target is an index into this string."""

CONTEXT = 20
"""The number of input characters before the target character."""


def shakespeare(folder: Path) -> Source:
    """Load Tiny Shakespeare: the input is 20 characters of a speech, the target the next one; a fixed 80/20 split.

    The groups of the records are the speakers.
    """
    path = find(folder / "tinyshakespeare.txt")
    records = parse(text(path), path)
    train, test = holdout(records, test=len(records) // 5)
    description = "Tiny Shakespeare: which character follows twenty others in a speech?"
    return Source("shakespeare", train, test, len(ALPHABET), (CONTEXT,), description, tokens=len(ALPHABET))


def parse(play: str, where: str | Path) -> Records:
    """Parse the text: cut every speech into sequences of 21 characters and drop the remainder.

    No character is in two records, so that adding or removing one record adds or removes one piece of text. Inputs are
    indices into the alphabet.

    >>> records = parse("BENVOLIO:\\nBut new struck nine.\\n\\nROMEO:\\nAy me! sad hours seem long.", "play.txt")
    >>> "".join(ALPHABET[int(index)] for index in records.inputs[0]), ALPHABET[records.targets[0]], records.groups
    ('Ay me! sad hours see', 'm', array(['ROMEO'], dtype='<U5'))
    """
    indices = {character: index for index, character in enumerate(ALPHABET)}
    sequences, speakers = [], []
    for number, speech in enumerate(re.split("\n{2,}", play.strip()), start=1):
        heading, colon, words = f"{speech}\n".partition(":\n")  # a speech may consist of its heading alone
        if not colon or "\n" in heading:
            problem = f"has no line with a speaker at the head of speech {number} ({speech[:20]!r})"
            raise DataError(where, problem, "each speech begins with NAME: on a line of its own, after an empty line")
        words = words.strip()
        if unknown := set(words) - indices.keys():
            problem = f"has the character {min(unknown)!r} in speech {number}"
            raise DataError(where, problem, "the file is not Tiny Shakespeare; download it again")
        for start in range(0, len(words) - CONTEXT, CONTEXT + 1):
            sequences.append([indices[character] for character in words[start : start + CONTEXT + 1]])
            speakers.append(heading)
    if not sequences:
        raise DataError(where, "has no speech of 21 characters or more", "download the file again")
    symbols = torch.tensor(sequences)  # (N, CONTEXT + 1)
    return Records(symbols[:, :CONTEXT].float(), symbols[:, CONTEXT], np.array(speakers))
