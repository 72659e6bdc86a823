"""Transcripts: what a run does, as lines of text that are the same in each run, kept in a file and held against a later
run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

Transcript: TypeAlias = Sequence[str]
"""Lines, in their order."""
Transcripts: TypeAlias = Mapping[str, Transcript]
"""Those of one run, by what they are of."""


def keep(runs: Sequence[Transcripts], file: Path) -> None:
    """Write down what was seen. What was different in several runs is kept in each of its forms."""
    numbers: dict[str, int] = {}
    forms: dict[str, list[list[int]]] = {}
    for run in runs:
        for name, transcript in run.items():
            form = [numbers.setdefault(line, len(numbers)) for line in transcript]
            if form not in forms.setdefault(name, []):
                forms[name].append(form)
    lines = ",\n".join(f"  {json.dumps(line)}" for line in numbers)
    entries = ",\n".join(f"  {json.dumps(name)}: {json.dumps(forms[name])}" for name in sorted(forms))
    file.write_text(f'{{"lines": [\n{lines}\n],\n"transcripts": {{\n{entries}\n}}}}\n')


def names(file: Path) -> set[str]:
    """The subject of the file's transcripts."""
    return set(json.loads(file.read_text())["transcripts"])


def differences(run: Transcripts, file: Path) -> list[str]:
    """Differences from the kept transcripts: a paragraph for each transcript that the run has. One that was kept in
    several forms has all lines that each form has, and no line that none has."""
    kept = json.loads(file.read_text())
    found = []
    for name, transcript in run.items():
        forms = [[kept["lines"][at] for at in form] for form in kept["transcripts"].get(name, [])]
        always = set[str].intersection(*map(set, forms)) if forms else set[str]()
        ever = set[str]().union(*forms)
        missing, new = always - set(transcript), [line for line in transcript if line not in ever]
        if list(transcript) in forms or (len(forms) > 1 and not missing and not new):
            continue
        said = [*(f"- {line}" for line in sorted(missing)), *(f"+ {line}" for line in new)]
        found.append("\n".join([name, *(said or ["the same lines in another order, or another number of times"])]))
    return found
