"""The page of the example `report` in a browser: what it shows is what the log says.

`python -m unittest discover -s tests/browser`, with selenium, Chromium and its driver. The program is that of
`CUDA_MEM_REPORT`, or else of the target folder. `CUDA_MEM_TEST_TIMES=1` also checks the times, which are printed anyway.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile
import unittest

from selenium.webdriver import ActionChains
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import logs
from browser import Browser, missing

HERE = pathlib.Path(__file__).resolve().parent
WORKSPACE = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", WORKSPACE / "target"))
REPORT = pathlib.Path(os.environ.get("CUDA_MEM_REPORT", TARGET / "debug/examples/report"))
TRAINING = WORKSPACE / "tests/data/gpt2-train-varlen.csv.gz"


def size_text(size: int) -> str:
    """As the page writes sizes."""
    value, units = abs(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1023.95 and len(units) > 1:
        value, units = value / 1024, units[1:]
    digits = f"{value:.1f}".removesuffix(".0")
    return f"{'−' if size < 0 else ''}{digits} {units[0]}"


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        if reason := missing():
            raise unittest.SkipTest(reason)
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)
        cls.browser.size(1280)

    def page(self, *arguments: object, limit: float = 60) -> pathlib.Path:
        page = pathlib.Path(self.folder.name) / "page.html"
        command = [str(REPORT), *map(str, arguments), "-o", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=limit)
        return page

    def extended(self, name: str, *settings: object) -> pathlib.Path:
        path = pathlib.Path(self.folder.name) / name
        logs.write_extended(path, *settings)
        return path

    def tile(self, section: str, name: str, size: int) -> None:
        self.assertEqual(self.browser.tile(section, name), (size, size_text(size)), f"{section}: {name}")

    def moment(self) -> int:
        return int(self.browser.run("return document.getElementById('event').dataset.value"))

    def shown(self) -> str:
        return self.browser.run("return document.getElementById('shown').textContent")

    def seconds(self) -> list[float]:
        """The beginning and the end of what is shown, and the end of the log."""
        return [float(word) for word in self.shown().split() if word[0].isdigit()]

    def press(self, *keys: str) -> None:
        """Keys on the chart."""
        self.canvas("bytes").send_keys(*keys)
        self.browser.frames()

    def canvas(self, chart: str):
        element = self.browser.driver.find_element(By.CSS_SELECTOR, f"#{chart} canvas")
        self.browser.run("arguments[0].scrollIntoView({block: 'center'})", element)
        return element

    def actions(self) -> ActionChains:
        return ActionChains(self.browser.driver, duration=20)

    def clean(self) -> None:
        """The page is alone and content."""
        self.assertEqual(self.browser.complaints(), [])
        self.assertEqual([url for url in self.browser.requests() if not url.startswith(("file:", "data:"))], [])

    def check_moment(self, log: logs.Log) -> logs.Moment:
        """The shown moment is as in the log."""
        now = log.at(self.moment())
        self.tile("moment", "asked", now.asked)
        self.tile("moment", "used", now.used)
        if log.count("map"):
            self.tile("moment", "reserved", now.reserved)
            free, largest = now.free()
            self.tile("moment", "free but mapped", free)
            self.tile("moment", "largest free piece", largest)
        blocks = [*now.alive.values(), *now.pending.values()]
        blocks.sort(key=lambda block: (-block.size, block.event))
        rows = self.browser.rows("alive")
        self.assertEqual([int(row[1]) for row in rows], [block.size for block in blocks[: len(rows)]])
        self.assertEqual([row[0].split()[0] for row in rows], [hex(block.pointer) for block in blocks[: len(rows)]])
        self.assertEqual([row[3] for row in rows], [block.stream for block in blocks[: len(rows)]])
        return now

    def test_a_plain_log(self) -> None:
        log = logs.Log(TRAINING)
        self.browser.open(self.page(TRAINING))
        asked, event = log.peaks["asked"]
        self.tile("summary", "peak asked", asked)
        self.tile("summary", "peak used", asked)
        self.assertEqual(self.browser.tile("summary", "allocations")[0], log.count("allocate"))
        self.assertEqual(self.browser.tile("summary", "peak reserved"), (None, "unknown"))
        self.assertEqual(self.moment(), event)
        self.assertEqual([int(row[1]) for row in self.browser.rows("alive")], sorted(
            (block.size for block in log.at(event).alive.values()), reverse=True)[:25])
        self.assertTrue(self.browser.run("return document.getElementById('problems').hidden"))
        self.clean()

    def test_an_extended_log(self) -> None:
        path = self.extended("run.csv.gz", 20_000, 1)
        log = logs.Log(path)
        self.browser.open(self.page(path))
        for name, (size, _) in log.peaks.items():
            self.tile("summary", f"peak {name}", size)
        self.assertEqual(self.browser.tile("summary", "failed requests")[0], log.count("allocate failure"))
        calls = [int(row["Size"]) for row in log.rows if row["Action"] == "driver calls"]
        self.assertEqual(self.browser.tile("summary", "driver calls")[0], calls[-1])
        problems = self.browser.run("return document.getElementById('problems').textContent")
        self.assertIn("17 events were dropped", problems)
        self.assertIn("1 free is of memory that the log did not allocate", problems)

        self.assertEqual(self.moment(), log.peaks["asked"][1])
        peak = self.check_moment(log)
        shown = {row[0].split(" + ")[0]: int(row[1]) for row in self.browser.rows("origins")}
        expected = {origin.split(";")[0] or "unknown": size for origin, size in peak.groups().items()}
        self.assertEqual(shown, expected)
        self.assertEqual(len(self.browser.rows("failures")), log.count("allocate failure"))

        # Other moments: a click in the middle, and the events around it.
        chart = self.canvas("bytes")
        self.actions().move_to_element_with_offset(chart, -200, 0).click().perform()
        self.browser.frames()
        clicked = self.moment()
        times = [row["Time"] for row in log.rows]
        self.assertTrue(0.2 < clicked / len(times) < 0.5, clicked)
        for _ in range(6):
            self.press(".")
            self.check_moment(log)
        self.press(",")
        self.assertEqual(self.moment(), clicked + 5)
        self.check_moment(log)
        self.assertNotEqual(self.browser.run("return document.title"), "x")
        self.clean()

    def test_a_log_of_pools(self) -> None:
        path = pathlib.Path(self.folder.name) / "run.csv.gz"
        logs.write_pools(path, 900)
        log = logs.Log(path)
        self.browser.open(self.page(path))
        for name, (size, _) in log.peaks.items():
            self.tile("summary", f"peak {name}", size)
        for _ in range(4):
            self.tile("moment", "reserved", log.at(self.moment()).reserved)
            self.press(".")
        self.assertTrue(self.browser.run("return document.getElementById('problems').hidden"))
        self.clean()

    def test_zoom(self) -> None:
        self.browser.open(self.page(self.extended("run.csv.gz", 9_000, 3)))
        chart = self.canvas("bytes")
        whole = self.shown()
        self.actions().scroll_from_origin(ScrollOrigin.from_element(chart), 0, -400).perform()
        self.browser.frames()
        start, end, all_of_it = self.seconds()
        self.assertLess(end - start, all_of_it / 2)
        # Around the pointer, which is in the middle.
        self.assertAlmostEqual((start + end) / 2, all_of_it / 2, delta=all_of_it / 20)
        self.press("0")
        self.assertEqual(self.shown(), whole)
        self.press("+", "+")
        self.assertAlmostEqual(self.seconds()[1] - self.seconds()[0], all_of_it / 4, delta=0.02)
        before = self.seconds()[0]
        self.press(Keys.ARROW_RIGHT)
        self.assertGreater(self.seconds()[0], before)
        self.press("-", Keys.HOME)
        self.assertEqual(self.shown(), whole)
        drag = self.actions().move_to_element_with_offset(chart, -100, 0).click_and_hold()
        drag.move_by_offset(150, 5).release().perform()
        self.browser.frames()
        start, end, _ = self.seconds()
        width = self.browser.run("return arguments[0].clientWidth", chart) - 80
        self.assertAlmostEqual((end - start) / all_of_it, 150 / width, delta=0.02)
        self.browser.run("document.getElementById('reset').click(); document.getElementById('by-event').click()")
        self.browser.frames()
        self.assertIn("events 0 to 9,0", self.shown())
        self.clean()

    def test_a_block(self) -> None:
        path = self.extended("run.csv.gz", 8_000, 5)
        log = logs.Log(path)
        self.browser.open(self.page(path))
        # In the table: the largest.
        self.browser.run("document.querySelector('#alive button.link').click()")
        now = log.at(self.moment())
        largest = max([*now.alive.values(), *now.pending.values()], key=lambda block: (block.size, -block.event))
        self.check_block(log, largest)
        # In the map: the largest one that is not larger than what is shown, which is a part from the middle.
        for _ in range(5):
            self.browser.run("document.getElementById('map-in').click()")
        self.browser.frames()
        shown = self.browser.run("return document.getElementById('map-shown').textContent")
        start, end = (int(word.strip(","), 16) for word in shown.split() if word.startswith("0x"))
        blocks = [*now.alive.values(), *now.pending.values()]
        inside = [block for block in blocks if start <= block.pointer and block.pointer + block.size <= end]
        chosen = max(inside, key=lambda block: block.size)
        self.assertNotEqual(chosen, largest)
        self.click_in_map((chosen.pointer + chosen.size / 2 - start) / (end - start))
        self.check_block(log, chosen)
        self.clean()

    def click_in_map(self, part: float) -> None:
        """In 14 rows behind a margin of 112 pixels."""
        canvas = self.canvas("map")
        size = self.browser.run("const box = arguments[0].getBoundingClientRect(); return [box.width, box.height]", canvas)
        row, in_row = divmod(part * 14, 1)
        x, y = 112 + in_row * (size[0] - 112), (row + 0.5) * size[1] / 14
        self.actions().move_to_element_with_offset(canvas, int(x - size[0] / 2), int(y - size[1] / 2)).click().perform()
        self.browser.frames()

    def check_block(self, log: logs.Log, block: logs.Block) -> None:
        facts = dict(self.browser.run(
            "return [...document.querySelectorAll('#block dd')].map((fact) => [fact.dataset.name, fact.textContent])"))
        self.assertEqual(facts["address"], hex(block.pointer))
        self.assertIn(f"{block.size:,} B", facts["size"])
        self.assertEqual(facts["stream"], block.stream)
        self.assertIn(f"(event {block.event + 1:,})", facts["allocated"])
        later = ((event, row) for event, row in enumerate(log.rows) if event > block.event)
        ends = [event for event, row in later
                if int(row["Pointer"], 16) == block.pointer and row["Action"] in ("free", "free completed")]
        if ends:
            self.assertIn(f"(event {ends[0] + 1:,})", facts["free"])
        else:
            self.assertIn("alive at its end", facts["free"])
        frames = self.browser.run("return [...document.querySelectorAll('#block li')].map((frame) => frame.textContent)")
        self.assertEqual(frames, [frame for frame in block.origin.split(";") if frame])

    def test_two_runs(self) -> None:
        paths = [self.extended("before.csv.gz", 8_000, 1), self.extended("after.csv.gz", 7_000, 2, 0.8, False)]
        a, b = map(logs.Log, paths)
        self.browser.open(self.page("--diff", *paths))
        rows = {row[0]: row[1:] for row in self.browser.rows("summary")}
        for name in ("asked", "used", "reserved"):
            sizes = [a.peaks[name][0], b.peaks[name][0]]
            self.assertEqual(rows[f"peak {name}"], [str(size) for size in [*sizes, sizes[1] - sizes[0]]])
        groups = [log.at(log.peaks["asked"][1]).groups() for log in (a, b)]
        expected = {origin.split(";")[0] or "unknown": [groups[0][origin], groups[1][origin]] for origin in {*groups[0], *groups[1]}}
        shown = {row[0].split(" + ")[0]: [int(row[1]), int(row[2])] for row in self.browser.rows("origins")}
        self.assertEqual(shown, expected)
        differences = [abs(int(row[3])) for row in self.browser.rows("origins")]
        self.assertEqual(differences, sorted(differences, reverse=True))
        # The shown moment is that of the peak of A.
        rows = {row[0]: row[1:] for row in self.browser.rows("moment")}
        self.assertEqual(rows["asked"][0], str(a.peaks["asked"][0]))
        self.assertIn("A: 17 events were dropped", self.browser.run("return document.getElementById('problems').textContent"))
        self.clean()

    def test_narrow_and_dark_pages_fit(self) -> None:
        page = self.page(self.extended("run.csv.gz", 5_000, 1))
        self.addCleanup(self.browser.size, 1280)
        self.addCleanup(self.browser.dark, False)
        for is_dark in (False, True):
            self.browser.dark(is_dark)
            for width in (1280, 400):
                self.browser.size(width)
                self.browser.open(page)
                self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), width)
                back = self.browser.run("return getComputedStyle(document.body).backgroundColor")
                self.assertEqual(back, "rgb(20, 23, 27)" if is_dark else "rgb(255, 255, 255)")

    def test_a_million_operations(self) -> None:
        path = pathlib.Path(self.folder.name) / "million.csv.gz"
        logs.write_million(path)
        page = self.page(path, limit=600)
        times = sorted(self.browser.open(page) for _ in range(3))
        self.assertIn("1,000,000 events", self.browser.run("return document.getElementById('about').textContent"))
        frames = self.browser.driver.execute_async_script(ZOOM_FRAMES)
        frames.sort()
        median, worst = frames[len(frames) // 2], frames[-1]
        print(f"\na million operations: page of {page.stat().st_size / (1 << 20):.1f} MiB, "
              f"opened in {', '.join(f'{time:.0f}' for time in times)} ms; "
              f"{len(frames)} frames while zooming: median {median:.1f} ms, worst {worst:.1f} ms")
        if os.environ.get("CUDA_MEM_TEST_TIMES") == "1":
            self.assertLess(times[1], 3000)
            self.assertLess(median, 50)
        self.clean()


# From frame to frame, with one notch of the wheel in each: in to a thousandth and out again.
ZOOM_FRAMES = """
const done = arguments[0];
const canvas = document.querySelector('#bytes canvas');
const box = canvas.getBoundingClientRect();
const times = [];
let before = null;
function frame(now) {
  if (before !== null) times.push(now - before);
  before = now;
  if (times.length === 120) return done(times);
  const init = { deltaY: times.length < 60 ? -100 : 100, clientX: box.left + box.width * 0.6, clientY: box.top + 50,
    bubbles: true, cancelable: true };
  canvas.dispatchEvent(new WheelEvent('wheel', init));
  requestAnimationFrame(frame);
}
requestAnimationFrame(frame);
"""

if __name__ == "__main__":
    unittest.main()
