"""The escapes, and which of them this user can make on this machine."""

from __future__ import annotations

import os

from tests.sandbox import hostile

ESCAPES = tuple(hostile._ESCAPES)

NOT_PROMISED_WITHOUT_NAMESPACES = {
    "whether_a_file_is_there": "Landlock refuses no stat",
    "a_file_made_open_to_all": "Landlock refuses no chmod",
    "a_view_of_another_process": "/proc is the one of the host",
    "a_view_of_the_network": "/proc is the one of the host",
}
"""Escapes that Landlock and seccomp leave open, and why."""
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
    "a_set_user_id_program": "its processes have no_new_privs, or it lacks su",
    "a_raw_socket": "its superuser may not",
    "a_socket_to_what_runs_this_machine": "it has no AF_VSOCK",
    "a_setting_of_the_kernel": "its superuser may not",
    "a_new_user_namespace": "it refuses them to all",
    "a_raw_socket_in_a_namespace": "it refuses namespaces to all",
    "a_mount": "it refuses namespaces to all",
}
"""Escapes that some machines refuse without a sandbox, such as containers."""
NEEDS_ROOT = ("a_raw_socket", "a_setting_of_the_kernel")
"""Escapes that an ordinary user cannot make without a sandbox either."""
NOT_FOR_ROOT = ("a_set_user_id_program",)
"""Escapes that are none for the superuser of the machine."""


def can_be_tried(escape: str) -> bool:
    """Whether this user makes the escape without a sandbox."""
    return escape not in (NOT_FOR_ROOT if os.geteuid() == 0 else NEEDS_ROOT)
