"""Tiny Shakespeare: speeches with their speakers, from the text file that goes by this name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from gnomon.data.records import Records
from gnomon.data.sources.files import find, text
from gnomon.data.sources.holdout import holdout
from gnomon.data.sources.source import Source
from gnomon.errors import DataError

ALPHABET = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The characters, as published with the text."""

CONTEXT = 20
"""How many characters a record shows before the one to guess."""


def shakespeare(folder: Path) -> Source:
    """Tiny Shakespeare: 20 characters of a speech, target the next one; groups are speakers; a fixed 80/20 split."""
    path = find(folder / "tinyshakespeare.txt")
    records = parse(text(path), path)
    train, test = holdout(records, test=len(records) // 5)
    about = "Tiny Shakespeare: which character follows twenty others in a speech?"
    return Source("shakespeare", train, test, len(ALPHABET), (CONTEXT,), about)


def parse(play: str, where: str | Path) -> Records:
    """Every speech cut into pieces of 21 characters; what is left at its end is dropped.

    No character is in two records, so that one record more or less is one piece of text more or less. Inputs are places
    in the alphabet.

    >>> records = parse("BENVOLIO:\\nBut new struck nine.\\n\\nROMEO:\\nAy me! sad hours seem long.", "play.txt")
    >>> "".join(ALPHABET[int(place)] for place in records.inputs[0]), ALPHABET[records.targets[0]], records.groups
    ('Ay me! sad hours see', 'm', array(['ROMEO'], dtype='<U5'))
    """
    places = {character: place for place, character in enumerate(ALPHABET)}
    pieces, speakers = [], []
    for number, speech in enumerate(re.split("\n{2,}", play.strip()), start=1):
        heading, found, words = f"{speech}\n".partition(":\n")  # some speakers have a heading and say nothing
        if not found or "\n" in heading:
            problem = f"has no line with a speaker at the head of speech {number} ({speech[:20]!r})"
            raise DataError(where, problem, "each speech begins with NAME: on a line of its own, after an empty line")
        words = words.strip()
        if strange := set(words) - places.keys():
            problem = f"has the character {min(strange)!r} in speech {number}"
            raise DataError(where, problem, "the file is not Tiny Shakespeare; download it again")
        for start in range(0, len(words) - CONTEXT, CONTEXT + 1):
            pieces.append([places[character] for character in words[start : start + CONTEXT + 1]])
            speakers.append(heading)
    if not pieces:
        raise DataError(where, "has no speech of 21 characters or more", "download the file again")
    symbols = torch.tensor(pieces)
    return Records(symbols[:, :CONTEXT].float(), symbols[:, CONTEXT], np.array(speakers))
