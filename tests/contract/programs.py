"""Small Python programs whose stdout, stderr and exit code must not depend on how the interpreter was started.

`PROGRAMS` is the table. `differences` runs it through two ways of running Python in the same sandbox, each a callable
from a program to its result, and returns what differed. The random names of files and addresses are made equal
first; nothing else is.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["PROGRAMS", "RESET", "Program", "Result", "differences", "normal", "plain_argv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program; a single line is `python3 -c`, several are `python3 file`."""

    name: str
    code: str
    env: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""
    """Shell text that runs before, in the same working directory."""

    @property
    def is_inline(self) -> bool:
        return "\n" not in self.code.strip("\n")


@dataclass(frozen=True, slots=True)
class Result:
    stdout: bytes
    stderr: bytes
    code: int
    """128+n after signal n."""


RESET = "find /workspace -mindepth 1 -delete"
"""Shell text that takes away what the last program left."""

Way = Callable[[Program], Awaitable[Result]]

_FILE = re.compile(rb"\.k8e-[0-9a-f]{16}(?=\.py|\b)")
_ADDRESS = re.compile(rb"0x[0-9a-f]{6,}")


def normal(data: bytes) -> bytes:
    """Text without what differs between any two runs."""
    return _ADDRESS.sub(b"0x", _FILE.sub(b"<file>", data))


def plain_argv(program: Program, token: str) -> tuple[str, ...]:
    """How a plain interpreter runs it in an empty working directory, which a shell makes ready first."""
    prepare = f"{RESET}; {program.setup or 'true'}"
    # exec: a shell that stays would comment on a signal death.
    if program.is_inline:
        return ("sh", "-c", f'({prepare}) >&- 2>&-; exec python3 -c "$1"', "sh", program.code)
    path = f"/workspace/.k8e-{token[:16]}.py"
    return ("sh", "-c", f'({prepare}) >&- 2>&-; printf %s "$1" > {path}; exec python3 {path}', "sh", program.code)


async def differences(programs: Iterable[Program], run: Way, plain: Way) -> list[str]:
    """A line for each program that behaves differently."""
    found = []
    for program in programs:
        ours, theirs = await run(program), await plain(program)
        for part in ("stdout", "stderr", "code"):
            left, right = getattr(ours, part), getattr(theirs, part)
            if isinstance(left, bytes):
                left, right = normal(left), normal(right)
            if left != right:
                found.append(f"{program.name}: {part}: run {left!r}, plain {right!r}")
    return found


def _both(name: str, code: str, env: Mapping[str, str] | None = None, setup: str = "") -> list[Program]:
    """The same statement as a one-liner and as a file."""
    return [
        Program(name=f"{name}, one line", code=code, env=env or {}, setup=setup),
        Program(name=f"{name}, file", code=f"pass\n{code}\n", env=env or {}, setup=setup),
    ]


_EXPRESSIONS = {
    "argv": "__import__('sys').argv[1:]",
    "first argument": "__import__('sys').argv[0]",
    "original argv": "__import__('sys').orig_argv",
    "flags": "__import__('sys').flags",
    "path": "__import__('sys').path",
    "path hooks": "__import__('sys').path_hooks",
    "meta path": "__import__('sys').meta_path",
    "importer cache": "sorted(__import__('sys').path_importer_cache)",
    "executable": "__import__('sys').executable",
    "prefixes": "(lambda s: (s.prefix, s.base_prefix, s.exec_prefix))(__import__('sys'))",
    "modules": "sorted(__import__('sys').modules)",
    "module count": "len(__import__('sys').modules)",
    "builtins": "sorted(dir(__builtins__))",
    "globals": "sorted(globals())",
    "name": "__name__",
    "package": "__package__",
    "spec": "__spec__",
    "loader": "type(__loader__), __loader__ if isinstance(__loader__, type) else 0",
    "doc": "__doc__",
    "annotations": "'__annotations__' in globals()",
    "main module": "sorted(vars(__import__('__main__')))",
    "warn options": "__import__('sys').warnoptions",
    "x options": "__import__('sys')._xoptions",
    "recursion limit": "__import__('sys').getrecursionlimit()",
    "switch interval": "__import__('sys').getswitchinterval()",
    "default encoding": "__import__('sys').getdefaultencoding()",
    "file system encoding": "__import__('sys').getfilesystemencoding(), __import__('sys').getfilesystemencodeerrors()",
    "stdout": "(lambda o: (o.encoding, o.errors, o.line_buffering, o.write_through, o.name, o.mode))"
    "(__import__('sys').stdout)",
    "stderr": "(lambda o: (o.encoding, o.errors, o.line_buffering, o.name))(__import__('sys').stderr)",
    "stdin": "(lambda o: (o.encoding, o.errors, o.name, o.isatty(), o.seekable()))(__import__('sys').stdin)",
    "stdout seekable": "__import__('sys').stdout.seekable(), __import__('sys').stdout.isatty()",
    "original streams": "(lambda s: (s.stdout is s.__stdout__, s.stderr is s.__stderr__))(__import__('sys'))",
    "display hook": "__import__('sys').displayhook is __import__('sys').__displayhook__",
    "exception hook": "__import__('sys').excepthook is __import__('sys').__excepthook__",
    "interactive hook": "hasattr(__import__('sys'), '__interactivehook__')",
    "trace": "__import__('sys').gettrace(), __import__('sys').getprofile()",
    "frame depth": "__import__('sys')._getframe().f_back",
    "frame file": "__import__('sys')._getframe().f_code.co_filename",
    "first line": "__import__('sys')._getframe().f_lineno",
    "stack": "[(f.filename, f.lineno, f.function) for f in __import__('inspect').stack()]",
    "working directory": "__import__('os').getcwd()",
    "environment names": "sorted(n for n in __import__('os').environ if n not in ('PWD', 'OLDPWD', '_', 'SHLVL'))",
    "environment path": "__import__('os').environ['PATH']",
    "environment home": "__import__('os').environ.get('HOME')",
    "getenv": "__import__('os').getenv('K8E_PARK')",
    "umask": "oct(__import__('os').umask(0o22))",
    "descriptors": "[n for n in sorted(map(int, __import__('os').listdir('/proc/self/fd'))) if n < 3]",
    "extra descriptors": "len(__import__('os').listdir('/proc/self/fd'))",
    "blocking": "[__import__('os').get_blocking(n) for n in (0, 1, 2)]",
    "nice": "__import__('os').nice(0)",
    "user": "__import__('os').getuid(), __import__('os').geteuid(), __import__('os').getgid()",
    "groups": "__import__('os').getgroups()",
    "thread count": "__import__('threading').active_count()",
    "main thread": "__import__('threading').current_thread().name",
    "thread names": "[t.name for t in __import__('threading').enumerate()]",
    "interrupt handler": "__import__('signal').getsignal(2)",
    "pipe handler": "__import__('signal').getsignal(13)",
    "all handlers": "[str(__import__('signal').getsignal(n)) for n in range(1, 32) if n not in (9, 19)]",
    "blocked signals": "__import__('signal').pthread_sigmask(0, [])",
    "wake-up descriptor": "__import__('signal').set_wakeup_fd(-1)",
    "alarm": "__import__('signal').alarm(0)",
    "limits": "[__import__('resource').getrlimit(n) for n in range(10)]",
    "locale": "__import__('locale').setlocale(__import__('locale').LC_ALL)",
    "preferred encoding": "__import__('locale').getpreferredencoding()",
    "time zone": "__import__('time').tzname, __import__('time').timezone",
    "gc": "__import__('gc').isenabled(), __import__('gc').get_threshold(), __import__('gc').get_freeze_count()",
    "gc garbage": "__import__('gc').garbage, __import__('gc').get_debug()",
    "warnings filters": "__import__('warnings').filters",
    "site packages": "__import__('site').getsitepackages()",
    "user site": "__import__('site').ENABLE_USER_SITE",
    "fault handler": "__import__('faulthandler').is_enabled()",
    "tracemalloc": "__import__('tracemalloc').is_tracing()",
    "implementation": "__import__('sys').implementation.name, __import__('sys').version_info[:2]",
    "dont write bytecode": "__import__('sys').dont_write_bytecode, __import__('sys').pycache_prefix",
    "integer digits": "__import__('sys').get_int_max_str_digits()",
    "allocated blocks are counted": "__import__('sys').getallocatedblocks() > 0",
    "hash of an integer": "hash(12345)",
    "hash of a string varies": "len({hash('x')}) == 1",
    "hash algorithm": "__import__('sys').hash_info.algorithm",
    "float repr": "0.1 + 0.2",
    "unicode": "'h\u00e9llo \u4e16\u754c \U0001f600'",
    "platform": "__import__('platform').system(), __import__('platform').machine()",
    "session": "__import__('os').getsid(0) == __import__('os').getpgrp()",
    "standard descriptors inheritable": "[__import__('os').get_inheritable(n) for n in (0, 1, 2)]",
    "import of json": "__import__('json').dumps({'a': [1, None]})",
    "import of decimal": "__import__('decimal').Decimal('1.1') + 1",
    "import of asyncio": "__import__('asyncio').run(__import__('asyncio').sleep(0, 5))",
    "import of sqlite3": "__import__('sqlite3').connect(':memory:').execute('select 1+1').fetchone()",
    "import of ctypes": "__import__('ctypes').sizeof(__import__('ctypes').c_int)",
    "import of ssl": "__import__('ssl').OPENSSL_VERSION_INFO[0] > 0",
    "subprocess": "__import__('subprocess').check_output(['sh', '-c', 'echo $0; ls /proc/self/fd | wc -l'])",
    "subprocess environment": "__import__('subprocess').check_output(['sh', '-c', 'echo ${K8E_PARK-none} $HOME $LANG'])",
    "child interpreter": "__import__('subprocess').check_output([__import__('sys').executable, '-c', 'print(6*7)'])",
    "temporary file": "__import__('tempfile').TemporaryFile().write(b'xyz')",
    "temporary directory": "__import__('tempfile').gettempdir()",
    "socket pair": "len(__import__('socket').socketpair())",
    "arguments parsed": "__import__('argparse').ArgumentParser().prog",
    "code flags": "compile('1', 'x', 'eval').co_flags",
    "future flags inherited": "__import__('sys')._getframe().f_code.co_flags & 0xfe0000",
    "locals are globals": "locals() is globals()",
    "open files closed": "open('/etc/hostname') and 1",
    "audit": "__import__('sys').audit('x')",
}

_STATEMENTS = {
    "exception": "1/0",
    "exception with cause": "raise ValueError('outer') from KeyError('inner')",
    "unicode exception": "raise ValueError('h\u00e9 \u4e16')",
    "surrogate output": "print('\\udc80')",
    "assertion": "assert 1 == 2, 'message'",
    "name error": "undefined_name",
    "missing module": "import no_such_module_anywhere",
    "attribute error": "import os; os.no_such_thing",
    "keyboard interrupt": "raise KeyboardInterrupt",
    "system exit": "raise SystemExit",
    "system exit zero": "raise SystemExit(0)",
    "system exit number": "raise SystemExit(42)",
    "system exit large": "raise SystemExit(300)",
    "system exit negative": "raise SystemExit(-1)",
    "system exit text": "raise SystemExit('goodbye')",
    "system exit tuple": "raise SystemExit((1, 2))",
    "system exit none": "raise SystemExit(None)",
    "system exit true": "raise SystemExit(True)",
    "system exit float": "raise SystemExit(1.5)",
    "sys.exit": "import sys; sys.exit(3)",
    "sys.exit text": "import sys; sys.exit('failed')",
    "quit": "quit(4)",
    "exit": "exit()",
    "os._exit": "import os; print('lost'); os._exit(9)",
    "os._exit flushed": "import os; print('kept', flush=True); os._exit(9)",
    "abort": "import os; os.abort()",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(1)",
    "segmentation fault": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "unflushed then exception": "print('before'); 1/0",
    "no newline at the end": "print('x', end='')",
    "both streams": "import sys; print('out'); print('err', file=sys.stderr); print('out2')",
    "binary output": "import sys; sys.stdout.buffer.write(bytes(range(256)))",
    "huge line": "print('x' * 1_000_000)",
    "huge output": "print('\\n'.join(map(str, range(200_000))))",
    "huge error output": "import sys; sys.stderr.write('e' * 500_000)",
    "closed stdout": "import sys; sys.stdout.close()",
    "closed descriptor": "import os; os.close(1); print('x')",
    "empty input": "print(repr(__import__('sys').stdin.read()))",
    "input at the end of file": "input('prompt> ')",
    "caught end of file": "exec('try:\\n input()\\nexcept EOFError as e:\\n print(repr(e))')",
    "atexit": "import atexit; atexit.register(print, 'bye'); print('hi')",
    "atexit order": "import atexit; [atexit.register(print, n) for n in range(3)]; print('now')",
    "atexit after exception": "import atexit; atexit.register(print, 'bye'); 1/0",
    "atexit failure": "import atexit; atexit.register(lambda: 1/0)",
    "atexit with os._exit": "import atexit, os; atexit.register(print, 'never'); os._exit(0)",
    "destructor at exit": "x = type('X', (), {'__del__': lambda self: print('deleted')})()",
    "thread": "import threading; t = threading.Thread(target=print, args=('in thread',)); t.start(); t.join()",
    "thread outlives main": "import threading, time; threading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()",
    "daemon thread": "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start(); print('x')",
    "thread exception": "import threading; t = threading.Thread(target=lambda: 1/0, name='T'); t.start(); t.join()",
    "thread pool": "from concurrent.futures import ThreadPoolExecutor as P; print(list(P(2).map(abs, [-1, -2])))",
    "fork": "import os; pid = os.fork(); pid or (print('child', flush=True), os._exit(0)); print(os.waitpid(pid, 0)[1])",
    "fork pool": "import multiprocessing as m; p = m.get_context('fork').Pool(2); print(p.map(abs, [-1, -2])); p.close(); p.join()",
    "system": "import os; os.system('echo from shell'); print('after')",
    "exec over": "import os; os.execvp('echo', ['echo', 'replaced'])",
    "warning": "import warnings; warnings.warn('careful')",
    "deprecation warning": "import warnings; warnings.warn('old', DeprecationWarning)",
    "syntax warning": "x = 1 is 1",
    "resource warning is silent": "open('/etc/hostname')",
    "unraisable": "x = type('X', (), {'__del__': lambda self: 1/0})(); del x",
    "recursion": "f = lambda: f(); f()",
    "exception group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "exception note": "e = ValueError('v'); e.add_note('a note'); raise e",
    "custom hook": "import sys; sys.excepthook = lambda *a: print('hooked', a[0].__name__); 1/0",
    "broken hook": "import sys; sys.excepthook = 5; 1/0",
    "traceback text": "import traceback; exec('try:\\n 1/0\\nexcept ZeroDivisionError:\\n traceback.print_exc()')",
    "traceback of eval": "eval('1/0')",
    "deep traceback": "import json; json.loads('{')",
    "print to closed pipe": "import sys, os; r, w = os.pipe(); os.close(r); os.write(w, b'x')",
    "set is unordered but whole": "print(sorted({'a', 'b', 'c'}))",
    "syntax error": "print(",
    "unexpected indent": " print(1)",
    "unterminated string": "print('abc",
    "invalid character": "print(1)\u00a0",
    "tabs and spaces": "if 1: print('x')",
    "invalid assignment": "1 = x",
    "return outside": "return 5",
    "await outside": "await x",
    "null in source literal": "print(repr('a\\x00b'))",
    "quotes": "print('it''s', \"a \\\"quoted\\\" word\", '''triple''')",
    "dollar and backticks": "print('$HOME `id` $(id) \\\\ !x')",
    "percent": "print('%s %d %%' % ('a', 1))",
    "comment only": "# nothing",
    "semicolons": "a = 1; b = 2; print(a + b);",
    "trailing spaces": "print(1)   ",
    "lambda": "print((lambda *a, **k: (a, k))(1, 2, x=3))",
    "walrus": "print((n := 10) + n)",
    "comprehension": "print([x * y for x in range(3) for y in range(3) if x != y])",
    "class": "class A: x = 1; print(A.x, A.__module__, A.__qualname__) if 0 else None",
    "module of a class": "A = type('A', (), {}); print(A.__module__)",
    "pickle": "import pickle; A = type('A', (), {}); print(len(pickle.dumps(A)) > 0)",
    "time moves": "import time; print(time.perf_counter() < time.perf_counter() + 1, time.process_time() < 5)",
    "breakpoint": "breakpoint()",
    "help": "help(len)",
    "license": "print(type(license).__name__, type(copyright).__name__)",
    "underscore": "print('_' in globals(), '_' in dir(__builtins__))",
    "import this": "import this",
    "main imports itself": "import __main__; print(__main__.__name__, hasattr(__main__, '__file__'))",
    "file attribute": "print(globals().get('__file__', 'none'), globals().get('__cached__', 'none'))",
    "source of a function": "import inspect; f = lambda: 1; print(inspect.getsource(f) if '__file__' in globals() else 0)",
    "run as a module": "import runpy; print(sorted(runpy.run_module('this', run_name='x'))[0])",
    "writes beside itself": "open('beside.txt', 'w').write('x'); import os; print(os.path.exists('beside.txt'))",
    "logging": "import logging; logging.warning('logged'); logging.getLogger('x').error('y')",
    "logging basic": "import logging; logging.basicConfig(level='INFO'); logging.info('info')",
    "unbuffered descriptor order": "import os; print('buffered'); os.write(1, b'direct\\n')",
    "flush order": "import os; print('first', flush=True); os.write(1, b'second\\n')",
    "stdin iteration": "import sys; print(list(sys.stdin))",
    "uuid": "import uuid; print(len(str(uuid.uuid4())))",
    "random differs": "import random; print(0 <= random.random() < 1)",
    "big integer": "print(2 ** 1000)",
    "deep json": "import json; print(json.dumps({'k': ['\u00fc', 1.5, None, True]}, ensure_ascii=False))",
    "generator left open": "g = (x for x in range(3)); next(g); print('open')",
    "async generator": "import asyncio; asyncio.run(asyncio.sleep(0)); print('done')",
    "async failure": "import asyncio; asyncio.run(asyncio.wait_for(asyncio.sleep(1), 0.01))",
    "never awaited": "import asyncio; asyncio.sleep(0)",
}

_FILES = [
    Program(name="nested traceback", code="def f():\n    return 1 / 0\n\n\ndef g():\n    f()\n\n\ng()\n"),
    Program(name="chained traceback", code="try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError('x')\n"),
    Program(
        name="suppressed context",
        code="try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError('x') from None\n",
    ),
    Program(name="syntax error on line 3", code="x = 1\ny = 2\nz = = 3\n"),
    Program(name="indentation error", code="if True:\nprint(1)\n"),
    Program(name="tab error", code="if True:\n        x = 1\n\ty = 2\n"),
    Program(name="unclosed bracket", code="x = (1,\ny = 2\n"),
    Program(
        name="future import", code="from __future__ import annotations\nx: undefined = 1\nprint(__annotations__)\n"
    ),
    Program(name="coding cookie", code="# -*- coding: latin-1 -*-\nprint(len('\u00e9'))\n"),
    Program(name="bad coding cookie", code="# coding: no-such-codec\nprint(1)\n"),
    Program(name="byte order mark", code="\ufeffprint('bom')\nprint(1)\n"),
    Program(name="windows line ends", code="print(1)\r\nprint(2)\r\n"),
    Program(name="no final newline", code="print(1)\nprint(2)"),
    Program(name="docstring", code='"""The doc."""\nprint(__doc__)\n'),
    Program(name="shebang", code="#!/usr/bin/env python3\nprint('shebang')\n"),
    Program(name="main guard", code="def main():\n    print('main')\n\n\nif __name__ == '__main__':\n    main()\n"),
    Program(name="own file", code="import os\nprint(os.path.basename(__file__), os.path.isabs(__file__))\n"),
    Program(name="own source", code="print(open(__file__).read())\n# end\n"),
    Program(name="own directory", code="import os\nprint(sorted(os.listdir(os.path.dirname(__file__))))\n"),
    Program(name="script directory first", code="import sys, os\nprint(sys.path[0] == os.path.dirname(__file__))\n"),
    Program(
        name="inspect source", code="import inspect\n\n\ndef f():\n    return 1\n\n\nprint(inspect.getsource(f))\n"
    ),
    Program(
        name="spawned process",
        code="import multiprocessing as m\n\n\ndef f(x):\n    print('child', x)\n\n\nif __name__ == '__main__':\n    p = m.get_context('spawn').Process(target=f, args=(3,))\n    p.start()\n    p.join()\n    print(p.exitcode)\n",
    ),
    Program(
        name="spawned pool",
        code="import multiprocessing as m\n\n\ndef f(x):\n    return x * x\n\n\nif __name__ == '__main__':\n    with m.get_context('spawn').Pool(2) as p:\n        print(p.map(f, range(5)))\n",
    ),
    Program(
        name="forked process",
        code="import multiprocessing as m\n\n\ndef f(q):\n    q.put(42)\n\n\nif __name__ == '__main__':\n    c = m.get_context('fork')\n    q = c.Queue()\n    p = c.Process(target=f, args=(q,))\n    p.start()\n    print(q.get())\n    p.join()\n",
    ),
    Program(
        name="fork server",
        code="import multiprocessing as m\n\n\ndef f(x):\n    return x + 1\n\n\nif __name__ == '__main__':\n    with m.get_context('forkserver').Pool(1) as p:\n        print(p.map(f, [1, 2]))\n",
    ),
    Program(
        name="process pool",
        code="from concurrent.futures import ProcessPoolExecutor\n\n\ndef f(x):\n    return -x\n\n\nif __name__ == '__main__':\n    with ProcessPoolExecutor(2) as p:\n        print(list(p.map(f, [1, 2])))\n",
    ),
    Program(
        name="signal handler",
        code="import os, signal\nsignal.signal(signal.SIGUSR1, lambda n, f: print('got', n))\nos.kill(os.getpid(), signal.SIGUSR1)\n",
    ),
    Program(
        name="alarm kills", code="import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\ntime.sleep(5)\n"
    ),
    Program(
        name="handled interrupt",
        code="import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    signal.pause()\nexcept KeyboardInterrupt:\n    print('stopped')\n",
    ),
    Program(
        name="dataclass",
        code="from dataclasses import dataclass\n\n\n@dataclass\nclass P:\n    x: int\n\n\nprint(P(1), P.__module__)\n",
    ),
    Program(name="enum", code="import enum\n\n\nclass C(enum.Enum):\n    A = 1\n\n\nprint(C.A, repr(C.A))\n"),
    Program(
        name="pickled class",
        code="import pickle\n\n\nclass A:\n    x = 1\n\n\nprint(pickle.loads(pickle.dumps(A())).x, A.__module__)\n",
    ),
    Program(
        name="type hints", code="import typing\n\n\ndef f(x: int) -> str: ...\n\n\nprint(typing.get_type_hints(f))\n"
    ),
    Program(
        name="context manager",
        code="import contextlib\n\n\n@contextlib.contextmanager\ndef c():\n    print('in')\n    yield\n    print('out')\n\n\nwith c():\n    print('mid')\n",
    ),
    Program(
        name="unhandled in thread and main",
        code="import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()\nraise ValueError('main')\n",
    ),
    Program(
        name="exit in thread",
        code="import sys, threading\nt = threading.Thread(target=lambda: sys.exit(5))\nt.start()\nt.join()\nprint('still here')\n",
    ),
    Program(
        name="asyncio program",
        code="import asyncio\n\n\nasync def main():\n    await asyncio.sleep(0)\n    print('async')\n\n\nasyncio.run(main())\n",
    ),
    Program(
        name="asyncio subprocess",
        code="import asyncio\n\n\nasync def main():\n    p = await asyncio.create_subprocess_exec('echo', 'hi')\n    print(await p.wait())\n\n\nasyncio.run(main())\n",
    ),
    Program(
        name="doctest",
        code='def f():\n    """\n    >>> f()\n    2\n    """\n    return 1\n\n\nimport doctest\nprint(doctest.testmod())\n',
    ),
    Program(
        name="unittest",
        code="import unittest\n\n\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(1, 1)\n\n\nunittest.main(argv=['x'], exit=False, verbosity=0, testRunner=unittest.TextTestRunner(stream=open('/dev/null', 'w')))\nprint('ran')\n",
    ),
    Program(name="many lines of output", code="for i in range(20000):\n    print(i, 'line')\n"),
    Program(
        name="interleaved streams",
        code="import sys\nfor i in range(100):\n    print(i)\n    print(i, file=sys.stderr)\n",
    ),
]

_SURROUNDINGS = [
    *_both("a local module", "import local_module; print(local_module.x)", setup="echo x = 5 > local_module.py"),
    *_both(
        "a local module shadows the library",
        "import random; print(random.__file__, getattr(random, 'x', None))",
        setup="echo x = 5 > random.py",
    ),
    *_both(
        "a local package",
        "import pkg.sub; print(pkg.sub.y)",
        setup="mkdir -p pkg; touch pkg/__init__.py; echo y = 6 > pkg/sub.py",
    ),
    *_both(
        "a package installed a moment ago",
        "import fresh_package; print(fresh_package.z)",
        setup="d=$(python3 -c 'import site; print(site.getsitepackages()[0])'); echo z = 7 > $d/fresh_package.py",
    ),
    *_both(
        "a path file installed a moment ago",
        "import behind_a_path; print(behind_a_path.q)",
        setup="d=$(python3 -c 'import site; print(site.getsitepackages()[0])'); mkdir -p /tmp/extra;"
        " echo q = 8 > /tmp/extra/behind_a_path.py; echo /tmp/extra > $d/added.pth",
    ),
    *_both(
        "a sitecustomize installed a moment ago",
        "import sys; print(sys.customized)",
        setup="d=$(python3 -c 'import site; print(site.getsitepackages()[0])');"
        " echo 'import sys; sys.customized = 1' > $d/sitecustomize.py",
    ),
    *_both("a fixed hash seed", "print(hash('x'), list({'a', 'b', 'c'}))", env={"PYTHONHASHSEED": "1"}),
    *_both("no hash randomization", "print(hash('x'))", env={"PYTHONHASHSEED": "0"}),
    *_both(
        "a module path",
        "import via_path; print(via_path.w)",
        env={"PYTHONPATH": "/tmp/vp"},
        setup="mkdir -p /tmp/vp; echo w = 9 > /tmp/vp/via_path.py",
    ),
    *_both("optimized", "assert False; print(__debug__)", env={"PYTHONOPTIMIZE": "1"}),
    *_both("unbuffered", "import sys; print(sys.stdout.write_through)", env={"PYTHONUNBUFFERED": "1"}),
    *_both(
        "io encoding",
        "print('\u00e9', end=''); import sys; print(sys.stdout.encoding)",
        env={"PYTHONIOENCODING": "latin-1"},
    ),
    *_both("utf-8 mode", "import sys; print(sys.flags.utf8_mode)", env={"PYTHONUTF8": "1"}),
    *_both("warnings on", "import warnings; warnings.warn('old', DeprecationWarning)", env={"PYTHONWARNINGS": "error"}),
    *_both("development mode", "import sys; print(sys.flags.dev_mode)", env={"PYTHONDEVMODE": "1"}),
    *_both("no bytecode", "import sys; print(sys.dont_write_bytecode)", env={"PYTHONDONTWRITEBYTECODE": "1"}),
    *_both("verbose is verbose", "import sys; print(sys.flags.verbose)", env={"PYTHONNOUSERSITE": "1"}),
    *_both("the C locale", "import sys; print(sys.getfilesystemencoding(), sys.stdout.encoding)", env={"LC_ALL": "C"}),
    *_both("the POSIX locale", "import locale; print(locale.getlocale())", env={"LANG": "POSIX"}),
    *_both("a time zone", "import time; print(time.tzname, time.localtime(0).tm_hour)", env={"TZ": "Asia/Tokyo"}),
    *_both("another home", "import os; print(os.path.expanduser('~'))", env={"HOME": "/tmp"}),
    *_both(
        "an own variable", "import os; print(os.environ['MINE'], os.environb[b'MINE'])", env={"MINE": "va lue=\u00e9"}
    ),
    *_both("a variable for children", "import os; os.system('echo $MINE')", env={"MINE": "seen"}),
    *_both("no color", "1/0", env={"NO_COLOR": "1"}),
    *_both(
        "another path",
        "import os, shutil; print(os.environ['PATH'], shutil.which('sh'))",
        env={"PATH": "/opt/venv/bin:/usr/bin:/bin"},
    ),
    *_both("a path without the environment", "import sys; print(sys.prefix)", env={"PATH": "/usr/bin:/bin"}),
]

PROGRAMS: tuple[Program, ...] = (
    *(p for name, text in _EXPRESSIONS.items() for p in _both(name, f"print({text})")),
    *(p for name, text in _STATEMENTS.items() for p in _both(name, text)),
    *_FILES,
    *_SURROUNDINGS,
)
