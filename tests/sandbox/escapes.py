"""The escapes that each set of means holds, as docs/sandbox.md promises."""

from __future__ import annotations

import os

from tests.sandbox import hostile
from tests.sandbox.world import LANDLOCK_ALONE

ESCAPES = tuple(hostile._ESCAPES)

NOT_BY_LANDLOCK = {
    "whether_a_file_is_there": "Landlock refuses no stat",
    "a_file_made_open_to_all": "Landlock refuses no chmod",
    "shared_memory_by_number": "Landlock knows no System V IPC",
    "a_view_of_another_process": "/proc is the one of the host",
    "udp": "Landlock knows TCP alone",
    "dns": "Landlock knows TCP alone",
    "a_view_of_the_network": "/proc is the one of the host",
    "the_admin_socket": "Landlock refuses no connection to a socket file",
    "the_socket_of_a_desk": "Landlock refuses no connection to a socket file",
    "another_priority": "Landlock refuses signals alone",
    "a_new_user_namespace": "Landlock refuses none",
    "a_fork_storm": "the limit would count all processes of the user",
    "a_child_that_outlives": "the keeper ends it",
}
"""Escapes that Landlock alone leaves open, and why."""
MAY_BE_REFUSED = {
    "a_key_of_the_kernel": "it keeps no keys",
    "shared_memory_by_name": "it has no /dev/shm",
    "shared_memory_by_number": "it has no System V IPC",
    "tcp_by_ipv6": "it has no IPv6",
    "ipv6_beside_names": "it has no IPv6",
    "ptrace": "it lets no process attach to another",
    "a_descriptor_of_another_process": "it lets no process attach to another",
    "the_memory_of_another_process": "it lets no process attach to another",
    "set_user_id_programs": "its processes have no_new_privs",
    "a_raw_socket": "its superuser may not",
    "a_setting_of_the_kernel": "its superuser may not",
    "a_new_user_namespace": "it refuses them to all",
    "a_mount": "it refuses namespaces to all",
}
"""Escapes that some machines refuse without a sandbox, such as containers."""
NEEDS_ROOT = ("a_raw_socket", "a_setting_of_the_kernel")
"""Escapes that an ordinary user cannot make without a sandbox either."""
NOT_FOR_ROOT = ("a_fork_storm",)
"""Escapes by what is not limited for the superuser of the machine."""


def is_to_be_held(escape: str, means: str) -> bool:
    """Whether these means promise to hold the escape."""
    return means != LANDLOCK_ALONE or escape not in NOT_BY_LANDLOCK


def can_be_tried(escape: str) -> bool:
    """Whether this user makes the escape without a sandbox."""
    return escape not in (NOT_FOR_ROOT if os.geteuid() == 0 else NEEDS_ROOT)
