"""The inputs that the host of an imported server asks for, and the references that an import writes in their places."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from config.desktop.importing.found import each_text
from config.references import inputs_of, kept_secrets_of, variables_of, with_inputs


def input_ids(ours: Mapping[str, object]) -> list[str]:
    """The ids of the inputs of a server, each once."""
    return list(dict.fromkeys(found_in(ours, inputs_of)))


def kept_name(id: str) -> str:
    """The name under which the answer is kept."""
    return f"input.{id}"


def variable_for(id: str) -> str:
    """The name of the variable that has to hold the answer if none was given."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", id).strip("_").upper() or "INPUT"
    return f"INPUT_{name}" if name[0].isdigit() else name


def replaced(ours: Mapping[str, object], references: Mapping[str, str]) -> dict[str, object]:
    """The keys of a server with references in the place of inputs, by their ids."""
    return {key: each_text(value, partial(with_inputs, references=references)) for key, value in ours.items()}


def as_configured(ours: Mapping[str, object], configured: Mapping[str, object]) -> dict[str, object]:
    """The keys of a server with the references of a configured one in the place of its inputs, where those are what an
    import would have written."""
    kept, variables = found_in(configured, kept_secrets_of), found_in(configured, variables_of)
    references = {}
    for id in input_ids(ours):
        if found := [each for each in kept if _holds(each, id)]:
            references[id] = found[0]
        elif (variable := variable_for(id)) in variables:
            references[id] = f"${{env:{variable}}}"
    return replaced(ours, references)


def _holds(reference: str, id: str) -> bool:
    """Whether a kept secret has the name of an input, perhaps with the number that follows a name already in use."""
    name = re.split("[:/]", reference.removesuffix("}"))[-1]
    return re.fullmatch(rf"{re.escape(_plain(kept_name(id)))}(?:-\d+)?", _plain(name)) is not None


def _plain(name: str) -> str:
    """A name without the characters that a place for secrets may not take."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def found_in(ours: Mapping[str, object], find: Callable[[str], list[str]]) -> list[str]:
    """All that a search finds in the texts of a server, in their order."""
    found: list[str] = []

    def note(text: str) -> str:
        found.extend(find(text))
        return text

    for value in ours.values():
        each_text(value, note)
    return found
