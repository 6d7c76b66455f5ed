"""Logs, made and read: all numbers here are computed without the program under test."""

from __future__ import annotations

import csv
import gzip
import pathlib
import random
from collections import Counter, namedtuple
from dataclasses import dataclass, field

HEADER = "Thread,Time,Action,Pointer,Size,Stream"
BASE = 0x7F20_0000_0000
MIB = 1 << 20
PIECE = 32 * MIB

ORIGINS = [
    "src/model.rs:41 embed;src/main.rs:12",
    "src/model.rs:77 attention;src/model.rs:120 layer;src/main.rs:12",
    "src/model.rs:93 feed_forward;src/model.rs:121 layer;src/main.rs:12",
    'src/loss.rs:8 a "quoted", name;src/main.rs:14',
    "src/optimizer.rs:55 <script>document.title='x'</script>;src/main.rs:16",
    "",
]


class Arena:
    """Gives addresses in classes of sizes, and maps memory where it grows."""

    def __init__(self) -> None:
        self.end = 0
        self.mapped = 0
        self.free: dict[int, list[int]] = {}

    def take(self, size: int) -> tuple[int, int | None]:
        """An address, and that of the memory that has to be mapped before."""
        rounded = 1 << max(size - 1, 255).bit_length()
        if self.free.get(rounded):
            return self.free[rounded].pop(), None
        # Large ones begin a region of their own, far away.
        place = self.end
        self.end += rounded
        grown = None
        if self.end > self.mapped:
            grown = BASE + self.mapped
            self.mapped += -(-(self.end - self.mapped) // PIECE) * PIECE
        return BASE + place, grown

    def give(self, address: int, size: int) -> None:
        self.free.setdefault(1 << max(size - 1, 255).bit_length(), []).append(address)


def write_extended(path: pathlib.Path, events: int, seed: int, scale: float = 1.0, flawed: bool = True) -> None:
    """A program that trains, over an arena: everything that the format has."""
    draw = random.Random(seed)
    arena = Arena()
    live: list[tuple[int, int, str]] = []
    pending: list[tuple[int, int, str]] = []
    lines: list[list] = []
    clock, calls = 23 * 3600 + 59 * 60 + 58.0, 0

    def add(action: str, pointer: int, size: int, stream: str = "0x0", origin: str = "", thread: int = 1) -> None:
        second = clock % 86400
        time = f"{int(second // 3600):02}:{int(second // 60) % 60:02}:{second % 60:012.9f}"
        lines.append([thread, time, action, f"{pointer:#x}", size, stream, origin])

    while len(lines) < events:
        clock += draw.expovariate(5000)
        step = len(lines) % 4000
        grows = step < 2400
        if pending and draw.random() < 0.2:
            pointer, size, stream = pending.pop(0)
            add("free completed", pointer, size, stream)
            arena.give(pointer, size)
        elif live and draw.random() < (0.35 if grows else 0.62):
            pointer, size, stream = live.pop(draw.randrange(len(live)))
            if draw.random() < 0.25:
                add("free requested", pointer, size, stream)
                pending.append((pointer, size, stream))
            else:
                add("free", pointer, size, stream)
                arena.give(pointer, size)
        else:
            size = int(scale * draw.choice([300, 4096, 70_000, 1_000_000, 3 * MIB, 9 * MIB]) * draw.uniform(0.5, 1))
            stream = draw.choice(["0x0", "0x55d0a0", "0x55d0a0"])
            before = arena.mapped
            pointer, grown = arena.take(size)
            if grown is not None:
                calls += 3
                add("map", grown, arena.mapped - before, stream)
                add("driver calls", 0, calls)
            add("allocate", pointer, size, stream, draw.choice(ORIGINS), draw.choice([1, 1, 2]))
            live.append((pointer, size, stream))
        if flawed and len(lines) % 3001 == 0:
            add("allocate failure", 0, 900 * MIB, "0x55d0a0", ORIGINS[1])
        if flawed and len(lines) % 7001 == 0:
            # The last piece moves to the end of the reservation.
            last = BASE + arena.mapped - PIECE
            add("trim", 0, 0)
            calls += 2
            add("unmap", last, PIECE)
            add("map", BASE + (1 << 40), PIECE)
            add("unmap", BASE + (1 << 40), PIECE)
            add("map", last, PIECE)
            add("driver calls", 0, calls)
    if flawed:
        add("dropped", 0, 17)
        add("free", 0x1234_0000, 100)
    with gzip.open(path, "wt", compresslevel=1, newline="") as file:
        file.write(f"{HEADER},Origin\n")
        csv.writer(file, lineterminator="\n").writerows(lines)


def write_million(path: pathlib.Path, events: int = 1_000_000) -> None:
    """As a resource writes it in RMM's form, with thousands of blocks alive."""
    draw = random.Random(7)
    arena = Arena()
    live: list[tuple[int, int]] = []
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(HEADER + "\n")
        for number in range(events):
            time = f"{number * 23e-6:.6f}"
            aim = 6000 + 5000 * ((number // 50_000) % 4)
            if live and draw.random() < (0.45 if len(live) < aim else 0.6):
                place = draw.randrange(len(live))
                live[place], live[-1] = live[-1], live[place]
                pointer, size = live.pop()
                arena.give(pointer, size)
                file.write(f"{number % 8},{time},free,{pointer:#x},{size},0x55d0a0\n")
            else:
                size = int(256 * 2 ** draw.uniform(0, 14))
                pointer, _ = arena.take(size)
                live.append((pointer, size))
                file.write(f"{number % 8},{time},allocate,{pointer:#x},{size},0x55d0a0\n")


def write_pools(path: pathlib.Path, events: int) -> None:
    """Two pools of the driver: no mappings, and what each holds."""
    draw = random.Random(11)
    live: list[tuple[int, int]] = []
    used, held = [0, 0], [0, 0]
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(f"{HEADER},Origin\n")
        for number in range(events):
            time, pool = f"{number * 1e-5:.6f}", number % 2
            size = draw.randrange(1, 2 * MIB)
            pointer = BASE + (pool << 40) + number * 4 * MIB
            file.write(f"1,{time},allocate,{pointer:#x},{size},0x55d0a0,src/main.rs:{number % 5}\n")
            live.append((pointer, size))
            used[pool] += size
            if used[pool] > held[pool]:
                held[pool] = -(-used[pool] // PIECE) * PIECE
                file.write(f"1,{time},reserved,{0x1000 + pool:#x},{held[pool]},0x0,\n")
            if number % 3 == 2:
                pointer, size = live.pop(0)
                used[(pointer - BASE) >> 40] -= size
                file.write(f"1,{time},free,{pointer:#x},{size},0x55d0a0,\n")
        file.write(f"1,{time},reserved,0x1000,0,0x0,\n")


Block = namedtuple("Block", "pointer size stream origin event")


@dataclass
class Moment:
    """What there is after one event."""

    event: int
    asked: int
    used: int
    reserved: int
    alive: dict[int, Block] = field(repr=False)
    pending: dict[int, Block] = field(repr=False)
    mapped: dict[int, int] = field(repr=False)
    pools: dict[int, int] = field(repr=False, default_factory=dict)

    def free(self) -> tuple[int, int]:
        """Free mapped bytes, and the largest piece."""
        mapped = joined((start, start + size) for start, size in self.mapped.items())
        blocks = [*self.alive.values(), *self.pending.values()]
        taken = joined((block.pointer, block.pointer + block.size) for block in blocks)
        pieces = []
        for start, end in mapped:
            for first, last in taken:
                if last <= start or first >= end:
                    continue
                pieces.append(first - start)
                start = max(start, last)
            pieces.append(end - start)
        pieces = [piece for piece in pieces if piece > 0]
        return sum(pieces), max(pieces, default=0)

    def groups(self) -> Counter:
        found = Counter()
        for block in self.alive.values():
            found[block.origin] += block.size
        return found


def joined(ranges) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > start:
            found.append((start, end))
    return found


class Log:
    """A log, line by line."""

    def __init__(self, path: pathlib.Path) -> None:
        with gzip.open(path, "rt", newline="") as file:
            self.rows = list(csv.DictReader(file))
        peaks = {"asked": (0, 0), "used": (0, 0), "reserved": (0, 0)}
        for moment in self.moments():
            for name in peaks:
                if getattr(moment, name) > peaks[name][0]:
                    peaks[name] = (getattr(moment, name), moment.event)
        self.peaks = peaks

    def count(self, action: str) -> int:
        return sum(row["Action"] == action for row in self.rows)

    def moments(self):
        """The state after each event; the same object again, changed."""
        now = Moment(0, 0, 0, 0, {}, {}, {})
        self.unknown_frees = 0
        for event, row in enumerate(self.rows):
            now.event = event
            action, pointer, size = row["Action"], int(row["Pointer"], 16), int(row["Size"])
            if action == "allocate":
                now.alive[pointer] = Block(pointer, size, row["Stream"], row.get("Origin", ""), event)
                now.asked += size
                now.used += size
            elif action in ("free", "free requested"):
                block = now.alive.pop(pointer, None)
                if block is None:
                    self.unknown_frees += 1
                    continue
                now.asked -= block.size
                if action == "free":
                    now.used -= block.size
                else:
                    now.pending[pointer] = block
            elif action == "free completed":
                now.used -= now.pending.pop(pointer).size
            elif action == "map":
                now.mapped[pointer] = size
                now.reserved += size
            elif action == "unmap":
                self.unmap(now, pointer, size)
            elif action == "reserved":
                now.reserved += size - now.pools.get(pointer, 0)
                now.pools[pointer] = size
            yield now

    @staticmethod
    def unmap(now: Moment, pointer: int, size: int) -> None:
        """A part of a mapping, too."""
        start = max(start for start in now.mapped if start <= pointer)
        mapped = now.mapped.pop(start)
        assert start + mapped >= pointer + size
        if pointer > start:
            now.mapped[start] = pointer - start
        if start + mapped > pointer + size:
            now.mapped[pointer + size] = start + mapped - pointer - size
        now.reserved -= size

    def at(self, event: int) -> Moment:
        return next(moment for moment in self.moments() if moment.event == event)
