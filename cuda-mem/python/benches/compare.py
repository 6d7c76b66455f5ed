"""Runs the workloads under each allocator, in turn, and prints the spread.

    python compare.py --rounds 5 training eager
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ALLOCATORS = ["torch", "expandable", "async", "arena"]
HERE = pathlib.Path(__file__).resolve().parent

parser = argparse.ArgumentParser()
parser.add_argument("workloads", nargs="+")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--allocators", nargs="+", default=ALLOCATORS)
parser.add_argument("--steps", type=int)
options = parser.parse_args()


def measure(workload, allocator):
    command = [sys.executable]
    if workload == "parallel":
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={torch.cuda.device_count()}"]
    command += [str(HERE / "workloads.py"), workload, "--allocator", allocator]
    if options.steps:
        command += ["--steps", str(options.steps)]
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode != 0:
        sys.exit(f"{workload}, {allocator}: exit status {outcome.returncode}\n{outcome.stdout}{outcome.stderr}")
    if workload != "parallel":
        sys.stderr.write(outcome.stderr)
    lines = [json.loads(line) for line in outcome.stdout.splitlines() if line.startswith("{")]
    # Of several devices the one that held most.
    return max(lines, key=lambda line: line["reserved"])


import torch  # noqa: E402

print(
    f"{torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}: each workload {options.rounds} times under each "
    "allocator, in turn, a process each; the median (least to most)",
    flush=True,
)
for workload in options.workloads:
    found = {allocator: [] for allocator in options.allocators}
    for _ in range(options.rounds):
        for allocator in options.allocators:
            found[allocator].append(measure(workload, allocator))
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
