"""`completion bash|zsh|fish`: scripts made from the tree of commands, so that they never know more or less than it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from k8e.cli.catalog import Node, tree

__all__ = ["script", "show"]

PROGRAMS = ("k8e", "k8e-sandbox", "k8e-sandbox-cli")


def show(args: argparse.Namespace) -> int:
    sys.stdout.write(script(args.shell))
    return 0


def script(shell: str) -> str:
    trees = {program: tree(program) for program in PROGRAMS}
    return {"bash": bash, "zsh": zsh, "fish": fish}[shell](trees)


def bash(trees: dict[str, Node]) -> str:
    """The words so far choose a list; a flag that takes a value is followed by file names."""
    cases = "\n".join(
        f"        {quoted(path)}) words={quoted(' '.join([*names(node), *flags(node)]))} ;;"
        for root in trees.values()
        for path, node in paths(root, root.name)
    )
    valued = sorted({flag for root in trees.values() for _, node in paths(root, "") for flag in value_flags(node)})
    return f"""# bash completion of k8e; use it with: source <(k8e completion bash)
_k8e() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} path=${{COMP_WORDS[0]##*/}} word previous='' words=''
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $previous in {"|".join(valued)}) previous=''; continue ;; esac
        previous=$word
        case $word in -*) continue ;; esac
        _k8e_words "$path $word" && path="$path $word"
    done
    COMPREPLY=()
    case $previous in {"|".join(valued)})
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return ;;
    esac
    _k8e_words "$path"
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    [ "${{#COMPREPLY[@]}}" -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "$current")
}}
_k8e_words() {{
    case $1 in
{cases}
        *) return 1 ;;
    esac
}}
complete -o filenames -F _k8e {" ".join(trees)}
"""


def zsh(trees: dict[str, Node]) -> str:
    """zsh runs bash's functions."""
    return f"#compdef {' '.join(trees)}\nautoload -U +X bashcompinit && bashcompinit\n{bash_for_zsh(trees)}"


def bash_for_zsh(trees: dict[str, Node]) -> str:
    """zsh has no `mapfile`; words of ours contain no blanks, so splitting lines is enough."""
    text = bash(trees).partition("\n")[2]
    return text.replace("mapfile -t COMPREPLY < <(", 'COMPREPLY=("${(@f)$(').replace('"$current")', '"$current")}")')


def fish(trees: dict[str, Node]) -> str:
    lines = [
        line for program, root in trees.items() for path, node in paths(root, "") for line in at(program, path, node)
    ]
    return "\n".join(["# fish completion of k8e", FISH_PATH, *lines]) + "\n"


def at(program: str, path: str, node: Node) -> Iterator[str]:
    condition = f"-n {quoted(f'__k8e_at {path}'.rstrip())}"
    for child in node.children:
        yield f"complete -c {program} -f {condition} -a {child.name} -d {quoted(child.text)}"
    for flag, text, has_value in node.flags:
        yield f"complete -c {program} {condition} -l {flag[2:]}{' -r' if has_value else ''} -d {quoted(text)}"


FISH_PATH = """function __k8e_at
    set -l typed (commandline -opc)
    set -l words
    for word in $typed[2..-1]
        string match -q -- '-*' $word; or set -a words $word
    end
    set -l count (count $argv)
    test $count -eq 0; and begin; test (count $words) -eq 0; return; end
    test (count $words) -ge $count; and test "$words[1..$count]" = "$argv"
end"""


def paths(root: Node, before: str) -> Iterator[tuple[str, Node]]:
    yield before, root
    for child in root.children:
        yield from paths(child, f"{before} {child.name}".strip())


def names(node: Node) -> list[str]:
    return [child.name for child in node.children]


def flags(node: Node) -> list[str]:
    return [flag for flag, _, _ in node.flags]


def value_flags(node: Node) -> list[str]:
    return [flag for flag, _, has_value in node.flags if has_value]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
