"""`python -m cuda_mem`: the programs of cuda-mem, for people without Rust."""

from __future__ import annotations

import os
import runpy
import sys

from ._library import PACKAGE

USAGE = """usage: python -m cuda_mem COMMAND ...

  doctor               what the driver and the GPUs can do, and what to do if something is missing
  replay [LOG ...]     replays a log of requests on pools and arenas; --help lists its options
  report LOG -o FILE   writes a page about a log: memory over time, blocks, addresses; --diff compares two logs
  record LOG SCRIPT [ARGUMENT ...]
                       runs a program that uses PyTorch, and logs its requests; a name in .gz is compressed
"""


def run(arguments: list[str]) -> int:
    command = arguments[0] if arguments else ""
    if command in ("doctor", "replay", "report"):
        program = str(PACKAGE / "bin" / command)
        # It takes the place of this process.
        os.execv(program, [program, *arguments[1:]])
    if command == "record" and len(arguments) >= 3:
        from . import torch

        torch.use_arena(record=arguments[1])
        sys.argv = arguments[2:]
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[2])))
        runpy.run_path(arguments[2], run_name="__main__")
        return 0
    asked_for_help = command in ("help", "--help", "-h")
    print(USAGE, end="", file=sys.stdout if asked_for_help else sys.stderr)
    return 0 if asked_for_help else 2


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
