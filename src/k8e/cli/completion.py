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
    valued = "|".join(every_value_flag(trees))
    return f"""# bash completion of k8e; use it with: source <(k8e completion bash)
_k8e() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} place=${{COMP_WORDS[0]##*/}} word previous='' list=''
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $previous in {valued}) previous=''; continue ;; esac
        previous=$word
        case $word in -*) continue ;; esac
        _k8e_words "$place $word" && place="$place $word"
    done
    COMPREPLY=()
    case $previous in {valued})
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return ;;
    esac
    _k8e_words "$place"
    mapfile -t COMPREPLY < <(compgen -W "$list" -- "$current")
    [ "${{#COMPREPLY[@]}}" -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "$current")
}}
{lists(trees)}
complete -o filenames -F _k8e {" ".join(trees)}
"""


def zsh(trees: dict[str, Node]) -> str:
    valued = "|".join(every_value_flag(trees))
    return f"""#compdef {" ".join(trees)}
# zsh completion of k8e; put it where your fpath leads as _k8e, or: source <(k8e completion zsh)
_k8e() {{
    local place=${{words[1]:t}} word previous='' list=''
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case $previous in ({valued}) previous=''; continue ;; esac
        previous=$word
        case $word in (-*) continue ;; esac
        _k8e_words "$place $word" && place="$place $word"
    done
    case $previous in ({valued}) _files; return ;; esac
    _k8e_words "$place"
    compadd -- ${{=list}} || _files
}}
{lists(trees)}
if [ "$funcstack[1]" = _k8e ]; then _k8e "$@"; else compdef _k8e {" ".join(trees)}; fi
"""


def lists(trees: dict[str, Node]) -> str:
    """What may follow each command, for bash and zsh."""
    cases = "\n".join(
        f"        {quoted(path)}) list={quoted(' '.join([*names(node), *flags(node)]))} ;;"
        for root in trees.values()
        for path, node in paths(root, root.name)
    )
    return f"""_k8e_words() {{
    case $1 in
{cases}
        *) return 1 ;;
    esac
}}"""


def every_value_flag(trees: dict[str, Node]) -> list[str]:
    return sorted({flag for root in trees.values() for _, node in paths(root, "") for flag in value_flags(node)})


def fish(trees: dict[str, Node]) -> str:
    lines = [
        line for program, root in trees.items() for path, node in paths(root, "") for line in at(program, path, node)
    ]
    valued = " ".join(every_value_flag(trees))
    return "\n".join(["# fish completion of k8e", FISH_PATH.replace("VALUED", valued), *lines]) + "\n"


def at(program: str, path: str, node: Node) -> Iterator[str]:
    condition = f"-n {quoted(f'__k8e_at {path}'.rstrip())}"
    for child in node.children:
        only = condition.replace("__k8e_at", "__k8e_at only")
        yield f"complete -c {program} -f {only} -a {child.name} -d {quoted(child.text)}"
    for flag, text, has_value in node.flags:
        yield f"complete -c {program} {condition} -l {flag[2:]}{' -r' if has_value else ''} -d {quoted(text)}"


FISH_PATH = """function __k8e_at
    set -l words
    set -l previous
    for word in (commandline -opc)[2..-1]
        if contains -- "$previous" VALUED
            set previous
            continue
        end
        set previous $word
        string match -q -- '-*' $word; or set -a words $word
    end
    if test "$argv[1]" = only
        test "$words" = "$argv[2..-1]"
        return
    end
    set -l count (count $argv)
    test $count -eq 0; or test "$words[1..$count]" = "$argv"
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
