"""Which packages a command of npx or uvx installs, and what it runs then."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.sandbox.packages import Installer, NotInstallable, Wanted, wanted_by


def npm(*packages: str, script: str = "", arguments: tuple[str, ...] = (), program: str = "npx", **more: Any) -> Wanted:
    return Wanted(Installer.NPM, program, packages, script, arguments, **more)


def uv(*packages: str, script: str, arguments: tuple[str, ...] = (), program: str = "uvx", **more: Any) -> Wanted:
    return Wanted(Installer.UV, program, packages, script, arguments, **more)


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("npx some-server", npm("some-server")),
        ("npx -y some-server@1.2 a -y --b", npm("some-server@1.2", arguments=("a", "-y", "--b"))),
        ("npx --yes --quiet -- @of/server@^1 x", npm("@of/server@^1", arguments=("x",))),
        ("npx -p a@latest b c", npm("a@latest", script="b", arguments=("c",))),
        ("npx --package=a --package b -- c", npm("a", "b", script="c")),
        ("npx --registry http://r.test/ a", npm("a", registry="http://r.test/")),
        ("/opt/node/bin/npx a", npm("a", program="/opt/node/bin/npx")),
        ("npm exec --yes -- a --b", npm("a", arguments=("--b",), program="npm")),
        ("npm x a b", npm("a", arguments=("b",), program="npm")),
        ("npm exec --package=a -- b c", npm("a", script="b", arguments=("c",), program="npm")),
        ("uvx a-server --x y", uv("a-server", script="a-server", arguments=("--x", "y"))),
        ("uvx a@1.2", uv("a==1.2", script="a")),
        ("uvx a@latest", uv("a", script="a")),
        ("uvx 'a>=1,<2' b", uv("a>=1,<2", script="a", arguments=("b",))),
        ("uvx 'a[cli]@1'", uv("a[cli]==1", script="a")),
        ("uvx --from 'a[x,y]==1' b", uv("a[x,y]==1", script="b")),
        ("uvx --with 'b>=1,<2, c[d,e]' -w f a", uv("a", "b>=1,<2", "c[d,e]", "f", script="a")),
        ("uvx -p 3.12 --default-index=http://i.test/ a", uv("a", script="a", python="3.12", registry="http://i.test/")),
        ("uvx --from python-a python -m a", uv("python-a", script="python", arguments=("-m", "a"))),
        ("npx --no-install a", npm("a", installs=False)),
        ("npx --ignore-scripts a", npm("a", builds=False)),
        ("uvx --no-build a", uv("a", script="a", builds=False)),
        ("uv tool run --from a b", uv("a", script="b", program="uv")),
    ],
)
def test_what_it_installs(command: str, wanted: Wanted) -> None:
    assert wanted_by(shlex.split(command)) == wanted


@pytest.mark.parametrize("command", ["node x.js", "npm start", "npm", "uv run x", "uv tool install x", "python -m x"])
def test_other_commands_install_nothing(command: str) -> None:
    assert wanted_by(shlex.split(command)) is None


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("npx", "names no package to run"),
        ("uvx -q", "names no package to run"),
        ("npx -p", "has no value for -p"),
        ("npx ./folder", "is not one of the registry"),
        ("npx owner/repository", "is not one of the registry"),
        ("npx github:a/b", "is not one of the registry"),
        ("npx a@npm:b", "is not one of the registry"),
        ("npx https://a.test/b.tgz", "is not one of the registry"),
        ("npx b.tgz", "is not one of the registry"),
        ("npx -p a ./b", "by its path"),
        ("npx -c 'a b'", "has -c, which is not known here as one of npx"),
        ("npx --workspace=a b", "has --workspace, which"),
        ("npx '--x y' b", "has an option, which"),
        ("npx a@.", "is not one of the registry"),
        ("npx a@../b", "is not one of the registry"),
        ("npm exec a --b", "write -- before the package"),
        ("uvx git+https://a.test/b", "is not one of the registry"),
        ("uvx --from ./a b", "is not one of the registry"),
        ("uvx 'a @ https://a.test/b'", "is not one of the registry"),
        ("uvx --from a ../b", "by its path"),
        ("uvx --index https://a.test b", "has --index, which is not known here as one of uvx"),
        ("uvx python", "runs Python itself: write uvx --from PACKAGE python"),
        ("uvx python@3.12", "runs Python itself"),
        ("uvx --with a python3.13t -m a", "runs Python itself"),
        ("uvx --from pypy@3 a", "runs Python itself"),
        ("uvx --with-requirements x a", "has --with-requirements, which"),
    ],
)
def test_what_is_not_installed_here(command: str, said: str) -> None:
    with pytest.raises(NotInstallable) as caught:
        wanted_by(shlex.split(command))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("command", "name"),
    [("npx @of/server@1", "@of/server"), ("npx a", "a"), ("uvx 'A.b[c]>1'", "A.b"), ("uvx a@1", "a")],
)
def test_the_name_of_the_package_is_without_its_version(command: str, name: str) -> None:
    wanted = wanted_by(shlex.split(command))
    assert wanted is not None
    assert wanted.name == name


WORDS = st.lists(st.one_of(st.text(), st.sampled_from(["-y", "-p", "--from", "--with", "--", "a", "@a/b", "a@1"])))


@given(st.sampled_from([("npx",), ("uvx",), ("npm", "exec"), ("uv", "tool", "run")]), WORDS)
def test_no_word_is_taken_for_an_option_of_the_installer(program: tuple[str, ...], words: list[str]) -> None:
    """They follow `--` in its command; none of them leads it out of the registry either."""
    try:
        wanted = wanted_by([*program, *words])
    except NotInstallable:
        return
    assert wanted is not None
    for package in wanted.packages:
        assert not package.startswith(("-", ".", "/"))
        assert not {":", "\\"} & set(package)
        assert package.count("/") == package.startswith("@")
    assert "/" not in wanted.script
    assert not wanted.arguments or words[-len(wanted.arguments) :] == list(wanted.arguments)
