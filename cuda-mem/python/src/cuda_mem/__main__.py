"""`python -m cuda_mem`: the programs of cuda-mem, for people without Rust."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys

from ._library import PACKAGE

USAGE = """usage: python -m cuda_mem COMMAND ...

  doctor               what the driver and the GPUs can do, and what to do if something is missing
  replay [LOG ...]     replays a log of requests on pools and arenas; --help lists its options
  report LOG -o FILE   writes a page about a log: memory over time, blocks, addresses; --diff compares two logs
  record [--stacks] LOG SCRIPT [ARGUMENT ...]
                       runs a program that uses PyTorch over an arena, and records its memory; a name in .gz is
                       compressed. --stacks: with the lines of Python that allocate, some microseconds each
"""


def record(log: str, program: list[str], stacks: bool) -> int:
    from . import record_stacks, torch

    if stacks:
        record_stacks()
    torch.use_arena(record=log)
    sys.argv = program
    sys.path.insert(0, os.path.dirname(os.path.abspath(program[0])))
    runpy.run_path(program[0], run_name="__main__")
    return 0


def run(arguments: list[str]) -> int:
    command = arguments[0] if arguments else ""
    if command in ("doctor", "replay", "report"):
        program = str(PACKAGE / "bin" / command)
        if os.name == "nt":
            # Whoever waits for a process there does not wait for what takes its place.
            return subprocess.call([f"{program}.exe", *arguments[1:]])
        # It takes the place of this process.
        os.execv(program, [program, *arguments[1:]])
    if command == "record":
        stacks = arguments[1:2] == ["--stacks"]
        rest = arguments[1 + stacks :]
        if len(rest) >= 2 and not rest[0].startswith("-"):
            return record(rest[0], rest[1:], stacks)
    asked_for_help = command in ("help", "--help", "-h")
    print(USAGE, end="", file=sys.stdout if asked_for_help else sys.stderr)
    return 0 if asked_for_help else 2


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
