"""The agent with everything that it imports at its start, in one file that the interpreter runs directly.

Under gVisor each file that is looked for costs a round trip to the gofer, and an agent looked for four hundred. What it
imports later, if anything, is found on the path as ever.
"""

from __future__ import annotations

__all__ = ["PROGRAM", "START"]

# Run by the bundle's own interpreter, which knows what the agent imports and has the right code format. Its arguments:
# START, the file to write, then pairs of a directory as it is here and as it is inside: standard library, agent.
PROGRAM = r"""
import _frozen_importlib_external as external, marshal, os, sys
start, target, stdlib, stdlib_inside, agent, agent_inside = sys.argv[1:]
sys.path.insert(0, agent)
import k8e.agent.__main__, k8e.agent.watch

code, extensions = {}, {}
for name, module in sys.modules.items():
    spec = getattr(module, "__spec__", None)
    if name == "__main__" or spec is None or not spec.has_location or name.partition(".")[0] == "encodings":
        continue  # built in, or imported before the start
    if spec.origin.endswith(".so"):
        extensions[name] = "%s/lib-dynload/%s" % (stdlib_inside, os.path.basename(spec.origin))
        continue
    shown = spec.origin.replace(agent, agent_inside).replace(stdlib, stdlib_inside)
    with open(spec.origin, "rb") as file:
        compiled = compile(file.read(), shown, "exec", dont_inherit=True, optimize=2)
    package = os.path.dirname(shown) if spec.submodule_search_locations is not None else ""
    code[name] = (package, marshal.dumps(compiled))

whole = compile(start % (code, extensions, agent_inside), "/.k8e/agent.py", "exec", dont_inherit=True)
with open(target, "wb") as file:
    file.write(external._code_to_hash_pyc(whole, bytes(8), False))
"""

START = r"""
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import spec_from_file_location
from marshal import loads

CODE, EXTENSIONS = %r, %r


class Frozen:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in EXTENSIONS:
            return spec_from_file_location(name, EXTENSIONS[name])
        if name not in CODE:
            return None
        package = CODE[name][0]
        spec = ModuleSpec(name, Frozen, is_package=bool(package))
        if package:
            spec.submodule_search_locations.append(package)
        return spec

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        exec(loads(CODE.pop(module.__name__)[1]), module.__dict__)


sys.meta_path.insert(0, Frozen)
sys.path[0] = %r
from k8e.agent.__main__ import main

sys.exit(main())
"""
