"""The registry that a command of npx or uvx would use: options before variables before the settings of the user."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from host.sandbox.packages import NotInstallable, wanted_by
from host.sandbox.registry import Registry, registry_of


def found(command: str, home: Path, own: dict[str, str] | None = None, **environment: str) -> Registry:
    wanted = wanted_by(shlex.split(command))
    assert wanted is not None
    return registry_of(wanted, own or {}, {"HOME": str(home), "PATH": "/nowhere", **environment})


def test_without_settings(tmp_path: Path) -> None:
    npm, python = found("npx a", tmp_path), found("uvx a", tmp_path)
    assert (npm.url, npm.hosts, str(npm)) == (
        "https://registry.npmjs.org/",
        (("registry.npmjs.org", 443),),
        "registry.npmjs.org",
    )
    assert python.url == "https://pypi.org/simple"
    assert python.hosts == (("pypi.org", 443), ("files.pythonhosted.org", 443))
    assert str(python) == "pypi.org, files.pythonhosted.org"


def test_the_nearest_setting_counts(tmp_path: Path) -> None:
    (tmp_path / ".npmrc").write_text('registry = "https://${WHO}.test/"\n//user.test/:_authToken=secret\n')
    assert found("npx a", tmp_path, WHO="user").url == "https://user.test/"
    assert found("npx a", tmp_path, NPM_CONFIG_REGISTRY="http://host.test:81/").hosts == (("host.test", 81),)
    own = {"npm_config_registry": "http://own.test/"}
    assert found("npx a", tmp_path, own, NPM_CONFIG_REGISTRY="http://host.test/").url == "http://own.test/"
    assert str(found("npx --registry http://option.test:4873/ a", tmp_path, own)) == "option.test:4873"


def test_the_settings_of_the_machine(tmp_path: Path) -> None:
    node = tmp_path / "node" / "bin" / "node"
    (tmp_path / "node" / "etc").mkdir(parents=True)
    node.parent.mkdir()
    node.touch(0o755)
    (tmp_path / "node" / "etc" / "npmrc").write_text("registry=http://machine.test/\n")
    assert found("npx a", tmp_path, PATH=str(node.parent)).url == "http://machine.test/"
    (tmp_path / "other").write_text("registry=http://other.test/\n")
    assert found("npx a", tmp_path, PATH=str(node.parent), npm_config_globalconfig=str(tmp_path / "other")).url == (
        "http://other.test/"
    )


def test_a_scope_of_npm_has_a_registry_of_its_own(tmp_path: Path) -> None:
    """The other registries are handed on, so that no package comes from another one than the user's; but only those of
    the packages that the command names are reached."""
    (tmp_path / ".npmrc").write_text("@of:registry=https://of.test/\n@x:registry=https://x.test/\n")
    scoped = found("npx @of/a", tmp_path)
    assert scoped.hosts == (("of.test", 443), ("registry.npmjs.org", 443))
    assert scoped.scopes == (("@of", "https://of.test/"), ("@x", "https://x.test/"))
    assert found("npx a", tmp_path).hosts == (("registry.npmjs.org", 443),)


def test_the_index_of_uv(tmp_path: Path) -> None:
    settings = tmp_path / ".config" / "uv" / "uv.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[[index]]\nurl = "https://user.test/simple"\ndefault = true\n')
    assert found("uvx a", tmp_path).hosts == (("user.test", 443),)
    settings.write_text('index-url = "https://old.test/simple"\n')
    assert found("uvx a", tmp_path).url == "https://old.test/simple"
    assert found("uvx a", tmp_path, UV_INDEX_URL="https://host.test").url == "https://host.test"
    assert found("uvx a", tmp_path, UV_INDEX_URL="https://host.test", UV_DEFAULT_INDEX="https://n.test").url == (
        "https://n.test"
    )
    assert found("uvx -i https://option.test a", tmp_path, UV_DEFAULT_INDEX="https://n.test").url == (
        "https://option.test"
    )


def test_an_index_in_a_folder_has_no_host(tmp_path: Path) -> None:
    for url in ("file:///srv/index", "/srv/index"):
        index = found("uvx a", tmp_path, UV_DEFAULT_INDEX=url)
        assert (index.hosts, index.folder, str(index)) == ((), "/srv/index", "/srv/index")


@pytest.mark.parametrize("name", ["UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"])
def test_several_indexes_are_refused(tmp_path: Path, name: str) -> None:
    """Which of them a package comes from is decided by what each of them has at that moment."""
    with pytest.raises(NotInstallable, match=rf"from several places \({name}\)"):
        found("uvx a", tmp_path, {name: "https://more.test"})


@pytest.mark.parametrize("text", ['[[index]]\nurl="https://a.test"\n', 'extra-index-url = ["https://a.test"]\n'])
def test_several_indexes_in_the_settings_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "uv.toml").write_text(text)
    with pytest.raises(NotInstallable, match=r"from several places \(uv.toml\)"):
        found("uvx a", tmp_path, UV_CONFIG_FILE=str(tmp_path / "uv.toml"))


@pytest.mark.parametrize("url", ["ftp://a.test/", "https://", "http://a.test:x/", "nonsense"])
def test_an_address_that_is_none(tmp_path: Path, url: str) -> None:
    for command, name in (("npx a", "npm_config_registry"), ("uvx a", "UV_DEFAULT_INDEX")):
        with pytest.raises(NotInstallable, match="no address with http or https"):
            found(command, tmp_path, {name: url})


def test_what_is_shown_has_no_credentials(tmp_path: Path) -> None:
    assert str(found("uvx a", tmp_path, UV_DEFAULT_INDEX="https://me:secret@a.test/simple")) == "a.test"
