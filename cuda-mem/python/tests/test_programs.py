"""The commands of `python -m cuda_mem`."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

LOG = """Thread,Time,Action,Pointer,Size,Stream
1,0.1,allocate,0x1000,1048576,0x0
1,0.2,free,0x1000,1048576,0x0
"""


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "cuda_mem", *map(str, arguments)], capture_output=True, text=True)


class Programs(unittest.TestCase):
    def test_report_writes_a_page(self):
        with tempfile.TemporaryDirectory() as folder:
            log, page = pathlib.Path(folder) / "log.csv", pathlib.Path(folder) / "page.html"
            log.write_text(LOG)
            ended = command("report", log, "-o", page)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn("at most 1 MiB asked", ended.stdout)
            self.assertTrue(page.read_text(encoding="utf-8").startswith("<!doctype html>"))

    def test_help_lists_the_commands(self):
        ended = command("--help")
        self.assertEqual(ended.returncode, 0)
        for name in ("doctor", "replay", "report", "record"):
            self.assertIn(f"\n  {name} ", ended.stdout)
        for wrong in (["teapot"], ["record"], ["record", "--stacks", "log.csv"], ["record", "--teapot", "log.csv", "x.py"]):
            self.assertEqual(command(*wrong).returncode, 2, wrong)


if __name__ == "__main__":
    unittest.main()
