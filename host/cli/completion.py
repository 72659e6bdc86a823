"""Completion in a shell: the command `completion`, which prints the script of a shell, and the answers to the script.
Names of the running host: names.py."""

from __future__ import annotations

import os
import re

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    shell_complete,
    split_arg_string,
)

from host.cli.common import COMPLETE_VARIABLE
from host.cli.exit_codes import DONE

SHELLS = ("bash", "zsh", "fish")

_BREAKS = re.compile("[:=@]+")
"""Characters of names at which bash ends a word: those of COMP_WORDBREAKS that can be in one."""


@add_completion_class
class Bash(BashComplete):
    """Completion for bash, which takes `notes+note:///1` for three words and replaces the last of them."""

    def get_completion_args(self) -> tuple[list[str], str]:
        last = int(os.environ["COMP_CWORD"])
        words = split_arg_string(os.environ["COMP_WORDS"])[: last + 1]
        if len(words) == last:
            words.append("")  # nothing is typed of the last one
        joined: list[str] = []
        goes_on = False
        for word in words:
            is_break = _BREAKS.fullmatch(word) is not None
            if joined and (goes_on or is_break):
                joined[-1] += word
            else:
                joined.append(word)
            goes_on = is_break
        self._typed = joined[-1]
        return joined[1:-1], self._typed

    def format_completion(self, item: CompletionItem[str]) -> str:
        *_, (_, kept) = [(0, 0), *(found.span() for found in _BREAKS.finditer(self._typed))]
        name = item.value[kept:] if item.value.startswith(self._typed[:kept]) else item.value
        return f"{item.type},{name}"


def complete(root: click.Command, name: str, instruction: str) -> int:
    """Answer the script of a shell; the exit code."""
    return shell_complete(root, {}, name, COMPLETE_VARIABLE, instruction)


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the completion script of a shell.

    It completes commands, options, and the names of servers, tools, prompts, resources, views and callers of the
    running host.

    \b
    bash: eval "$(colonnade completion bash)"     in ~/.bashrc
    zsh:  eval "$(colonnade completion zsh)"      in ~/.zshrc, after compinit
    fish: colonnade completion fish | source      in ~/.config/fish/config.fish
    """
    root = context.find_root()
    completer = get_completion_class(shell)
    assert completer is not None
    print(completer(root.command, {}, str(root.info_name), COMPLETE_VARIABLE).source())
    return DONE
