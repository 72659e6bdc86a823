"""References in the place of what an imported server needs and no configuration should hold: literal secrets, and the
inputs that its host asks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from config.importing.found import each_text
from config.importing.merge import ImportedServer
from config.literal_secrets import Keep, without_secrets
from config.problems import clip
from config.references import inputs_of, with_inputs

AskInput = Callable[[str], str | None]
"""Asks a person for an input by its id; None if nobody can be asked."""


def replace_secrets(server: ImportedServer, keep: Keep) -> None:
    """Have the literal secrets of a server kept elsewhere."""
    of_files = frozenset[str]().union(*(each.secret_variables for each in server.found))
    server.ours = without_secrets(server.ours, server.id, keep, of_files)


def replace_inputs(server: ImportedServer, ask: AskInput, keep: Keep) -> None:
    """Have the inputs of a server asked for and kept. Without an answer it cannot be used, and has a variable there."""
    ids: list[str] = []

    def note(text: str) -> str:
        ids.extend(inputs_of(text))
        return text

    each_text(server.ours, note)
    references = {}
    for id in dict.fromkeys(ids):
        answer = None if server.problems else ask(id)
        if answer is None:
            variable = re.sub(r"[^A-Za-z0-9]+", "_", id).strip("_").upper() or "INPUT"
            references[id] = f"${{env:{variable if not variable[0].isdigit() else f'INPUT_{variable}'}}}"
            server.problems.append(
                f"its host asks for the input {clip(id)}, which was not given; set the variable in its place, and "
                "remove the signs of the comment"
            )
        else:
            references[id] = keep(f"input.{id}", answer)
    if references:
        server.ours = {
            key: each_text(value, partial(with_inputs, references=references)) for key, value in server.ours.items()
        }
