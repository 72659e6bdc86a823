"""References in the place of what an imported server needs and no configuration should hold: literal secrets, and the
inputs that its host asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from config.importing.inputs import input_ids, kept_name, replaced, variable_for
from config.importing.merge import ImportedServer
from config.literal_secrets import Keep, set_variables, without_secrets
from config.problems import clip

AskInput = Callable[[str], str | None]
"""Asks a person for an input by its id; None if nobody can be asked."""


def replace_secrets(server: ImportedServer, keep: Keep, environ: Mapping[str, str]) -> None:
    """Have the literal secrets of a server kept elsewhere."""
    of_files = frozenset[str]().union(*(each.secret_variables for each in server.found))
    server.ours = without_secrets(server.ours, server.id, keep, of_files, set_variables(environ))


def replace_inputs(server: ImportedServer, ask: AskInput, keep: Keep) -> None:
    """Have the inputs of a server asked for and kept. Without an answer it cannot be used, and has a variable there."""
    references = {}
    for id in input_ids(server.ours):
        answer = None if server.problems else ask(id)
        if answer is None:
            references[id] = f"${{env:{variable_for(id)}}}"
            server.problems.append(
                f"its host asks for the input {clip(id)}, for which there is no answer here; set the variable in its "
                "place, and remove the signs of the comment"
            )
        else:
            references[id] = keep(kept_name(id), answer)
    server.ours = replaced(server.ours, references)
