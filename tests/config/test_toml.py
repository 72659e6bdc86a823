"""TOML as a document."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.document import Plain
from config.problems import ConfigError
from config.read import read

CANARY = "canary-0123456"


def test_values_and_places(tmp_path: Path) -> None:
    """Scalars are texts, and a value stands at its key, or at the header of its table."""
    file = tmp_path / "config.toml"
    file.write_text('top = 1\n[a."b c"]\ncommand = "x"\nargs = ["1", 2]\non = true\n\n  [a.d]\nf = 1.5\n')
    made = read(file)
    assert made.root == {
        "top": "1",
        "a": {"b c": {"command": "x", "args": ["1", "2"], "on": "true"}, "d": {"f": "1.5"}},
    }
    on = made.root["a"]["b c"]["on"]  # type: ignore[index]
    assert isinstance(on, Plain)
    assert made.places[("a", "b c")].value == (2, 2)
    assert made.places[("a", "b c", "args", 1)].value == (4, 1)
    assert made.places[("a", "d", "f")].key == (8, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = 1\na = 2\n", ": this is not TOML: "),
        ("a = [\n", ": this is not TOML: "),
        ("[s3cr3t\n", ": this is not TOML: "),
        ("k = 's3cr3t\n", ": this is not TOML: "),
        ("a = " + "[" * 2000 + "]" * 2000, "1:1: nested deeper than 32 levels"),
    ],
)
def test_what_is_not_toml(tmp_path: Path, text: str, said: str) -> None:
    """The place is told, and nothing of the file is quoted."""
    file = tmp_path / "config.toml"
    file.write_text(text.replace("s3cr3t", CANARY))
    with pytest.raises(ConfigError) as caught:
        read(file)
    assert said in str(caught.value)
    assert CANARY not in str(caught.value)
