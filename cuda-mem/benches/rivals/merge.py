#!/usr/bin/env python3
"""Puts what the programs of the comparison printed into one file, and prints it as a table.

    merge.py OUTPUT_DIR COMMIT

Reads OUTPUT_DIR/rows as run.sh leaves it, and writes OUTPUT_DIR/rivals.json. Nothing in that identifies the
machine or its user. Needs Python's standard library alone.
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

VERSIONS = {"RMM": r"^RMM (\S+)", "PyTorch": r"^PyTorch (\S+)", "cudarc": r"^cudarc ([^\s,]+)"}
ORDER = ["pairs", "mixed", "busy", "gpt2"]


def first(pattern, text):
    found = re.search(pattern, text, re.MULTILINE)
    return found.group(1).strip() if found else None


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def read(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def machine():
    query = "--query-gpu=name,memory.total,driver_version"
    gpu = output("nvidia-smi", "--id=0", query, "--format=csv,noheader").strip().split(", ")
    name, memory, driver = gpu if len(gpu) == 3 else (None, None, None)
    return {
        "gpu": name,
        "memory": memory,
        "driver": driver,
        "cuda": first(r"CUDA Version: (\S+)", output("nvidia-smi")),
        "cpu": first(r"^model name\s*: (.*)$", read(pathlib.Path("/proc/cpuinfo"))),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": os.uname().release,
    }


def rows_of(status_file):
    """The rows of one run of one subject, and one more if it did not end well."""
    base = status_file.with_suffix("")
    number, subject = base.name.split("-", 1)
    rows, broken, log = [], 0, read(base.with_suffix(".log"))
    about = {"round": int(number)}
    # Without a driver a program may find the simulated one. Its figures say nothing about a GPU.
    if "simulated" in log.lower():
        about["simulated"] = True
    for line in read(base.with_suffix(".jsonl")).splitlines():
        try:
            rows.append(json.loads(line) | about)
        except ValueError:
            broken += 1
    status, error = int(read(status_file)), None
    if status == 124:
        error = "did not end in time"
    elif status != 0:
        error = (log.strip().splitlines() or [f"ended with status {status}"])[-1]
    elif broken or not rows:
        error = "printed no rows" if not rows else f"printed {broken} lines that are no JSON"
    if error:
        rows.append({"subject": subject, "workload": None, "error": error} | about)
    return rows, log


def figure(row):
    """What the table shows of a row: its time or rate, and what is reserved over what is asked for."""
    if row.get("error"):
        return "failed"
    if row["million_pairs_per_second"] is not None:
        text = f"{row['million_pairs_per_second']:.3g} M/s"
    else:
        text = f"{row['ns']:.0f} ns" if row["ns"] is not None else "?"
    if row.get("call_ns") is not None:
        text += f" ({row['call_ns']:.0f})"
    if row.get("ratio") is not None:
        text += f" {row['ratio']:.2f}x"
    text += " stopped" if row.get("stopped") else ""
    return text + (" simulated" if row.get("simulated") else "")


def column(row):
    """The column of the table, as something to sort by and a title."""
    workload, threads, size = row["workload"], row["threads"], row["bytes"] or 0
    if workload == "pairs":
        title = f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB" if size >> 10 else f"{size} B"
    else:
        title = {"mixed": f"{threads} thread{'s' * (threads > 1)}", "busy": f"{row['planned']} operations"}.get(workload, "log")
    return ORDER.index(workload), size, threads, row["planned"], f"{workload}, {title}"


def table(rows):
    good = [row for row in rows if not row.get("error")]
    for key in sorted({column(row) for row in good}):
        print(f"\n{key[-1]}")
        for subject in dict.fromkeys(row["subject"] for row in rows):
            own = [row for row in good if row["subject"] == subject and column(row) == key]
            own.sort(key=lambda row: row["round"])
            if own:
                print(f"  {subject:<18}" + "".join(f"{figure(row):>40}" for row in own))
    troubles = [row for row in rows if row.get("error") or row.get("stopped")]
    if troubles:
        print("\nnot done, or not all of it")
    for row in troubles:
        done = f", {row['operations']} of {row['planned']} operations" if row.get("stopped") else ""
        why = row.get("error") or row.get("stopped")
        print(f"  {row['subject']}, {row['workload'] or 'all'}, round {row['round']}{done}: {why}")


def main():
    out, commit = pathlib.Path(sys.argv[1]), sys.argv[2]
    rows, logs = [], ""
    files = sorted(out.glob("rows/*.status"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    for file in files:
        more, log = rows_of(file)
        rows += more
        logs += log + "\n"
    report = {
        "format": 1,
        "benchmark": "rivals",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "machine": machine(),
        "versions": {name: first(pattern, logs) for name, pattern in VERSIONS.items()},
        "rows": rows,
    }
    (out / "rivals.json").write_text(json.dumps(report, indent=1) + "\n")
    facts = report["machine"]
    print(f"{facts['gpu']}, driver {facts['driver']}, {facts['cpu']}, {facts['cores']} cores; commit {commit}")
    print("One figure for each round: a pair's or an operation's time, in brackets the allocator's part of it,")
    print("or million pairs a second; then the bytes reserved at most over those asked for at most.")
    table(rows)


main()
