"""The command `completion`: a script that completes commands and options in a shell."""

from __future__ import annotations

import click

from host.cli.exit_codes import DONE

COMPLETE_VARIABLE = "_COLONNADE_COMPLETE"
"""The environment variable by which the script of a shell asks for completions."""
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the completion script of a shell.

    \b
    bash: eval "$(colonnade completion bash)"     in ~/.bashrc
    zsh:  eval "$(colonnade completion zsh)"      in ~/.zshrc, after compinit
    fish: colonnade completion fish | source      in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    root = context.find_root()
    completer = get_completion_class(shell)
    assert completer is not None
    print(completer(root.command, {}, str(root.info_name), COMPLETE_VARIABLE).source())
    return DONE
