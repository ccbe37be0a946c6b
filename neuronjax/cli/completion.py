"""``neuronjax completion``: what makes a shell complete commands, options and their values."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping

DESCRIPTION = """\
Prints a script that makes a shell complete the commands and options of neuronjax. Load it where the
shell starts:

  bash   eval "$(neuronjax completion bash)"            in ~/.bashrc
  zsh    eval "$(neuronjax completion zsh)"             in ~/.zshrc, after compinit
  fish   neuronjax completion fish | source             in ~/.config/fish/config.fish
"""

Commands = Mapping[str, argparse.ArgumentParser]

_BASH = """\
_neuronjax() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
  COMPREPLY=()
  # Readline makes words of their own of "=" and of what follows.
  if [[ $word == = ]]; then word=
  elif [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  if (( COMP_CWORD == 1 )); then
    words={commands}
  else
    case "${{COMP_WORDS[1]}} $before" in
{values}
      *)
        [[ $word == -* ]] && case "${{COMP_WORDS[1]}}" in
{options}
        esac ;;
    esac
  fi
  [[ -z $words ]] || COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _neuronjax neuronjax
"""


def _bash(commands: Commands) -> str:
    values = [
        f"      {shlex.quote(f'{name} {flag}')}) words={shlex.quote(_choices(action))} ;;"
        for name, parser in commands.items()
        for action in _options(parser)
        if action.choices
        for flag in action.option_strings
    ] + [
        f"      {shlex.quote(f'{name} {name}')}) words={shlex.quote(_choices(action))} ;;"
        for name, parser in commands.items()
        for action in _positionals(parser)
        if action.choices
    ]
    options = [
        f"          {name}) words={shlex.quote(' '.join(_flags(parser)))} ;;"
        for name, parser in commands.items()
    ]
    return _BASH.format(
        commands=shlex.quote(" ".join(commands)),
        values="\n".join(values),
        options="\n".join(options),
    )


def _zsh(commands: Commands) -> str:
    return f"autoload -Uz bashcompinit && bashcompinit\n{_bash(commands)}"


def _fish(commands: Commands) -> str:
    lines = []
    for name, parser in commands.items():
        lines.append(f"complete -c neuronjax -f -n __fish_use_subcommand -a {name}")
        condition = f"complete -c neuronjax -n '__fish_seen_subcommand_from {name}'"
        for action in _positionals(parser):
            if action.choices:
                lines.append(f"{condition} -f -a {shlex.quote(_choices(action))}")
        for action in _options(parser):
            flags = " ".join(_fish_flag(flag) for flag in action.option_strings)
            takes = f" -x -a {shlex.quote(_choices(action))}" if action.choices else ""
            takes = takes or ("" if action.nargs == 0 else " -r")
            lines.append(f"{condition} {flags}{takes}")
    return "\n".join(lines) + "\n"


def _fish_flag(flag: str) -> str:
    if flag.startswith("--"):
        return f"-l {flag[2:]}"
    return f"-s {flag[1:]}" if len(flag) == 2 else f"-o {flag[1:]}"


def _options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    return (action for action in parser._actions if action.option_strings)


def _positionals(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    return (action for action in parser._actions if not action.option_strings)


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    return (flag for action in _options(parser) for flag in action.option_strings)


def _choices(action: argparse.Action) -> str:
    return " ".join(str(choice) for choice in action.choices or ())


SHELLS: dict[str, Callable[[Commands], str]] = {"bash": _bash, "fish": _fish, "zsh": _zsh}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    print(SHELLS[arguments.shell](arguments.commands), end="")
    return 0
