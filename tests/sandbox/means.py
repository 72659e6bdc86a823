"""The means that hold a confined program, alone and together: what each promises, and how the tests take one away.

A means is taken away in a copy of the source of the keeper, whose function for it does nothing or refuses.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from config.sandbox import Means
from host.sandbox import landlock
from host.sandbox.seccomp import has_filters
from host.wire import keeper
from tests.kit.kernel import has_bubblewrap, has_namespaces
from tests.sandbox import hostile

NAMESPACES, BUBBLEWRAP, LANDLOCK, SECCOMP, PRIVILEGES, LIMITS = (
    *("namespaces", "bubblewrap", "Landlock", "seccomp", "privileges", "limits"),
)
EACH = (NAMESPACES, BUBBLEWRAP, LANDLOCK, SECCOMP, PRIVILEGES, LIMITS)


@dataclass(frozen=True)
class Set:
    """Means that are in force together. `label`: a short name of that."""

    label: str
    means: frozenset[str]

    @property
    def is_separate(self) -> bool:
        """Whether the program is in namespaces, by whichever means."""
        return bool(self.means & {NAMESPACES, BUBBLEWRAP})

    @property
    def accept(self) -> Means:
        """The `accept` of a file with which a program is started by these means."""
        return Means.NAMESPACES if self.is_separate else Means.LANDLOCK

    def promises(self) -> dict[str, list[str]]:
        """The escapes that it holds, each with the means that do. Those from a network that leads to permitted hosts
        alone need namespaces of our own, without which nothing is started there."""
        found = {escape: [NAMESPACES] for escape in hostile._BESIDE_NAMES}
        for means in sorted(self.means):
            more = () if means != SECCOMP or self.is_separate else _BY_SECCOMP_WITHOUT_NAMESPACES
            for escape in (*_HOLDS[means], *more):
                found.setdefault(escape, []).append(means)
        return found

    def lacks(self) -> list[str]:
        """The means of it that are not to be had on this machine."""
        return [each for each in EACH if each in self.means and not is_to_be_had(each)]


def _sets() -> Iterator[Set]:
    for each in EACH:
        yield Set(each, frozenset({each}))
    own = frozenset(EACH) - {BUBBLEWRAP}
    for each in EACH:
        if each in own:
            yield Set(f"all but {each}", own - {each})
    yield Set("all", own)
    yield Set("all, bubblewrap", own - {NAMESPACES, LANDLOCK} | {BUBBLEWRAP})


SETS = tuple(_sets())
REAL = tuple(each for each in SETS if each.label in ("all", "all, bubblewrap", f"all but {NAMESPACES}"))
"""The sets with which a program is started, on one system or another."""


@cache
def is_to_be_had(means: str) -> bool:
    """Whether this machine has it."""
    if means == LANDLOCK:
        return landlock.version() >= landlock.OUTSIDE
    if means == NAMESPACES:
        return has_namespaces()
    if means == BUBBLEWRAP:
        return has_bubblewrap()
    return means != SECCOMP or has_filters()


# The escapes that each promises to hold

_FILES = (
    *("a_key", "a_key_by_a_link_that_is_there", "a_key_by_a_link_of_its_own", "a_key_by_a_hard_link"),
    *("a_key_by_the_root_of_itself", "a_key_by_the_root_of_its_parent", "a_key_by_the_root_of_another"),
    *("a_key_by_the_folder_of_another", "a_key_by_going_up", "a_key_by_a_descriptor", "a_key_by_renaming_its_folder"),
    *("a_list_of_the_home", "the_files_of_another_server", "the_state_of_the_host", "a_list_of_the_state"),
    *("the_configuration", "a_new_file", "a_new_file_in_what_it_may_read", "a_file_moved_out", "a_file_cut_short"),
    *("a_file_deleted", "a_program_from_outside", "shared_memory_by_name", "a_descriptor_over_a_socket"),
    *("a_full_temporary_folder", "a_setting_of_the_kernel"),
)
_PROCESSES = (
    *("the_environment_of_another_process", "the_memory_of_another_process", "ptrace"),
    *("a_descriptor_of_another_process", "a_signal_to_another_process", "a_signal_by_a_descriptor"),
)
_SEPARATE = (
    *_FILES,
    *_PROCESSES,
    *("whether_a_file_is_there", "a_file_made_open_to_all", "shared_memory_by_number", "a_view_of_another_process"),
    *("another_priority", "tcp", "tcp_by_ipv6", "udp", "dns", "a_view_of_the_network", "the_admin_socket"),
    *("the_socket_of_a_desk", "an_abstract_socket", "a_new_user_namespace", "a_mount"),
    *("a_raw_socket_in_a_namespace", "a_set_user_id_program"),
)
_NO_NEW_PRIVILEGES = ("set_user_id_programs", "a_set_user_id_program")
_HOLDS: dict[str, tuple[str, ...]] = {
    NAMESPACES: _SEPARATE,
    BUBBLEWRAP: (*_SEPARATE, *_NO_NEW_PRIVILEGES),
    LANDLOCK: (*_FILES, *_PROCESSES, *_NO_NEW_PRIVILEGES, "tcp", "tcp_by_ipv6", "an_abstract_socket", "a_mount"),
    SECCOMP: (
        *_NO_NEW_PRIVILEGES,
        *("a_key_of_the_kernel", "a_new_user_namespace", "a_mount", "a_raw_socket", "a_raw_socket_in_a_namespace"),
        "a_socket_to_what_runs_this_machine",
    ),
    PRIVILEGES: (*_NO_NEW_PRIVILEGES, "a_key_of_the_kernel", "a_raw_socket"),
    LIMITS: ("a_fork_storm", "much_memory", "much_memory_in_parts", "many_files"),
}
"""Landlock and seccomp need no_new_privs, which so holds with them too."""
_BY_SECCOMP_WITHOUT_NAMESPACES = (
    *("tcp", "tcp_by_ipv6", "udp", "dns", "the_admin_socket", "the_socket_of_a_desk", "an_abstract_socket"),
    *("a_descriptor_over_a_socket", "shared_memory_by_number", "another_priority"),
)
BY_THE_KEEPER = ("a_child_that_outlives", "a_key_by_a_descriptor", "a_key_by_the_root_of_its_parent")
"""Held without any means, since a program is started below a keeper."""


# How they are taken away

_KEEPS_NO_NEW_PRIVILEGES = 'def drop_all():\n    call("no_new_privs", "prctl", 38, 1, 0, 0, 0)\n'
_REFUSES_NAMESPACES = 'def separate(*, network):\n    raise KernelRefused("user namespaces", 1)\n'


def _changes(means: frozenset[str]) -> Iterable[tuple[str, str]]:
    """Files of host/sandbox, and what is appended to them."""
    is_separate = bool(means & {NAMESPACES, BUBBLEWRAP})
    if NAMESPACES not in means:
        yield "namespaces.py", _REFUSES_NAMESPACES
    if BUBBLEWRAP not in means:
        yield "bubblewrap.py", "def has_bubblewrap(plan):\n    return False\n"
    if LANDLOCK not in means:
        # Or else nothing would be started without namespaces.
        version = 0 if is_separate else landlock.OUTSIDE
        yield "landlock.py", f"def version():\n    return {version}\n\ndef restrict(*_, **__):\n    pass\n"
    if SECCOMP not in means:
        yield "seccomp.py", 'def compile_filter(**_):\n    return b""\n'
    if PRIVILEGES not in means:
        needed = means & {LANDLOCK, SECCOMP}
        yield "privileges.py", _KEEPS_NO_NEW_PRIVILEGES if needed else "def drop_all():\n    pass\n"
        yield "privileges.py", "def leave_keys():\n    pass\n"
    if LIMITS not in means:
        yield "privileges.py", "def limit(*_):\n    pass\n"
        yield "watch.py", "Watch.find_excess = lambda *_: ''\n"
        yield "control_group.py", "def make_group(plan):\n    return None\n"


@contextmanager
def source_with(means: frozenset[str], folder: Path) -> Iterator[None]:
    """Have keepers that are started in the block use a copy of their source that has these means alone."""
    source = Path(keeper.__file__)
    root = folder / "host"
    for name in ("sandbox", "wire"):
        shutil.copytree(source.parents[1] / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "__init__.py").touch()
    for name, text in _changes(means):
        with open(root / "sandbox" / name, "a") as file:
            file.write(f"\n\n{text}")
    keeper.__file__ = str(root / "wire" / source.name)
    try:
        yield
    finally:
        keeper.__file__ = str(source)
