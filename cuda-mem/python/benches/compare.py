"""Runs the workloads under each allocator, in turn, and prints the spread; each run on standard error.

    python compare.py --rounds 5 training eager
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import torch

ALLOCATORS = ["torch", "expandable", "async", "arena"]
HERE = pathlib.Path(__file__).resolve().parent

parser = argparse.ArgumentParser()
parser.add_argument("workloads", nargs="+")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--allocators", nargs="+", default=ALLOCATORS)
parser.add_argument("--steps", type=int)
options = parser.parse_args()


def start(workload, allocator):
    """A process that imports PyTorch and then waits."""
    command = [sys.executable]
    if workload == "parallel":
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={torch.cuda.device_count()}"]
    command += [str(HERE / "workloads.py"), workload, "--allocator", allocator]
    if workload != "parallel":
        command += ["--wait"]
    if options.steps:
        command += ["--steps", str(options.steps)]
    # What PyTorch warns of is not looked at.
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)


def finish(process, run):
    output, _ = process.communicate("go\n")
    if process.returncode != 0:
        sys.exit(f"{run}: exit status {process.returncode}\n{output}")
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    # At once, because a machine that is lent may be taken back before the table is there.
    for line in lines:
        print(json.dumps(line), file=sys.stderr, flush=True)
    # Of several devices the one that held most.
    return max(lines, key=lambda line: line["reserved"])


def measure(plan):
    """Runs one after the other. The next process imports PyTorch meanwhile."""
    following = start(*plan[0])
    for place, run in enumerate(plan):
        process = following
        # Several processes on the devices would disturb each other.
        is_alone = run[0] == "parallel"
        if place + 1 < len(plan) and not is_alone:
            following = start(*plan[place + 1])
        yield run, finish(process, run)
        if place + 1 < len(plan) and is_alone:
            following = start(*plan[place + 1])


print(
    f"{torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}: each workload {options.rounds} times under each "
    "allocator, in turn, a process each; the median (least to most)",
    flush=True,
)
for workload in options.workloads:
    found = {allocator: [] for allocator in options.allocators}
    plan = [(workload, allocator) for _ in range(options.rounds) for allocator in options.allocators]
    for (_, allocator), run in measure(plan):
        found[allocator].append(run)
    print(f"\n{workload}, {found[options.allocators[0]][0]['steps']} steps")
    for allocator, runs in found.items():
        seconds = [run["seconds"] for run in runs]
        reserved = [run["reserved"] for run in runs]
        asked = statistics.median(run["asked"] for run in runs)
        failed = [run["failed"] for run in runs if run["failed"]]
        print(
            f"  {allocator:10}  {statistics.median(seconds):8.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
            f"  reserved {statistics.median(reserved):9.1f} MiB ({min(reserved):.1f} to {max(reserved):.1f})"
            f"  asked {asked:9.1f} MiB  {statistics.median(reserved) / asked:.3f} x"
            + (f"  FAILED {len(failed)}: {failed[0]}" if failed else ""),
            flush=True,
        )
