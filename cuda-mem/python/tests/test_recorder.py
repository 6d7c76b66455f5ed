"""Recorders, on the simulated driver or a GPU."""

import collections
import csv
import gzip
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
import zlib

import cuda_mem


def lines_of(path):
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path)
    with opened as file:
        return list(csv.DictReader(file))


class Recorders(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_a_ring_is_written(self):
        recorder = cuda_mem.Recorder(10_000)
        arena, pool = cuda_mem.Arena(recorder=recorder), cuda_mem.Pool(recorder=recorder)
        for resource in (arena, pool):
            resource.deallocate(resource.allocate(1000), 1000)
        with self.assertRaises(cuda_mem.OutOfMemoryError):
            pool.allocate(1 << 50)
        for name in ("run.csv", "run.csv.gz"):
            recorder.write(self.folder / name)
            lines = lines_of(self.folder / name)
            actions = collections.Counter(line["Action"] for line in lines)
            self.assertEqual((actions["allocate"], actions["free"], actions["allocate failure"]), (2, 2, 1))
            self.assertGreaterEqual(actions["map"], 1)
            self.assertEqual({line["Origin"] for line in lines}, {""})
        self.assertEqual(recorder.dropped, 0)

    def test_what_is_lost_is_counted(self):
        recorder = cuda_mem.Recorder(100)
        arena = cuda_mem.Arena(recorder=recorder)
        for _ in range(5000):
            arena.deallocate(arena.allocate(1000), 1000)
        recorder.write(self.folder / "run.csv")
        lines = lines_of(self.folder / "run.csv")
        self.assertEqual((lines[0]["Action"], int(lines[0]["Size"])), ("dropped", recorder.dropped))
        self.assertGreater(recorder.dropped, 5000)

    def test_a_file_is_complete_at_the_end(self):
        path = self.folder / "run.csv.gz"
        program = f"""
            import cuda_mem
            recorder = cuda_mem.Recorder(path={str(path)!r})
            arena = cuda_mem.Arena(recorder=recorder)
            for size in range(1, 2001):
                arena.deallocate(arena.allocate(size), size)
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
        actions = collections.Counter(line["Action"] for line in lines_of(path))
        self.assertEqual((actions["allocate"], actions["free"]), (2000, 2000))

    def test_an_arena_keeps_its_recorder(self):
        path = self.folder / "run.csv.gz"
        for made in ("cuda_mem.Arena(recorder=recorder)", "cuda_mem.Statistics(cuda_mem.Pool(recorder=recorder))"):
            ended = self.run_program(
                f"""
                import ctypes, gc
                recorder = cuda_mem.Recorder(path=path)
                resource = {made}
                # It outlives Python, as what is in a cycle may.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(resource))
                del recorder
                gc.collect()
                for size in range(1, 101):
                    resource.deallocate(resource.allocate(size), size)
                """,
                path,
            )
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))
            self.assertEqual(sum(line["Action"] == "allocate" for line in lines_of(path)), 100)

    def test_a_pool_that_is_current_keeps_its_recorder(self):
        path = self.folder / "run.csv.gz"
        ended = self.run_program(
            """
            import gc
            pool = cuda_mem.Pool(recorder=cuda_mem.Recorder(path=path))
            pool.deallocate(pool.allocate(1000), 1000)
            pool.make_current()
            del pool
            gc.collect()
            """,
            path,
        )
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertEqual(sum(line["Action"] == "allocate" for line in lines_of(path)), 1)

    def test_stacks(self):
        recorder = cuda_mem.Recorder()
        arena = cuda_mem.Arena(recorder=recorder)

        def forward():
            arena.deallocate(arena.allocate(1000), 1000)

        cuda_mem.record_stacks()
        self.addCleanup(cuda_mem.record_stacks, 0)
        forward()
        thread = threading.Thread(target=forward)
        thread.start()
        thread.join()
        cuda_mem.record_stacks(1)
        forward()
        cuda_mem.record_stacks(0)
        forward()
        recorder.write(self.folder / "run.csv")
        origins = [line["Origin"] for line in lines_of(self.folder / "run.csv") if line["Action"] == "allocate"]
        first, of_thread, short, none = (origin.split(";") for origin in origins)
        for frames in (first, of_thread, short):
            self.assertRegex(frames[0], r"test_recorder\.py:\d+ forward$")
        self.assertRegex(first[1], r"test_recorder\.py:\d+ test_stacks$")
        self.assertRegex(of_thread[1], r"threading\.py:\d+ run$")
        self.assertEqual((len(short), none), (1, [""]))

    def test_snapshots_and_timelines(self):
        recorder = cuda_mem.Recorder()
        arena, pool = cuda_mem.Arena(recorder=recorder), cuda_mem.Pool(recorder=cuda_mem.Recorder())
        cuda_mem.record_stacks()
        self.addCleanup(cuda_mem.record_stacks, 0)
        kept = arena.allocate(1000)
        arena.deallocate(arena.allocate(5_000_000), 5_000_000)
        snapshot = arena.snapshot(recorder)
        blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
        (alive,) = [block for block in blocks if block["state"] == "active_allocated"]
        self.assertEqual((alive["address"], alive["size"], alive["requested_size"]), (kept, 1024, 1000))
        self.assertTrue(alive["frames"][0]["filename"].endswith("test_recorder.py"))
        self.assertEqual(sum(block["size"] for block in blocks), arena.stats().reserved)
        actions = collections.Counter(entry["action"] for entry in snapshot["device_traces"][0])
        self.assertEqual((actions["alloc"], actions["free_completed"]), (2, 1))
        of_pool = pool.allocate(3000)
        (segment,) = pool.snapshot()["segments"]
        self.assertEqual((segment["address"], segment["blocks"][0]["requested_size"]), (of_pool, 3000))

        arena.write_snapshot(self.folder / "snapshot.pickle", recorder)
        with open(self.folder / "snapshot.pickle", "rb") as file:
            pickled = json.loads(json.dumps(pickle.load(file)))
            self.assertEqual(pickled["segments"], snapshot["segments"])
        recorder.write_timeline(self.folder / "timeline.json")
        with open(self.folder / "timeline.json") as file:
            events = json.load(file)["traceEvents"]
        self.assertEqual(sum(event["ph"] == "b" for event in events), 2)
        with self.assertRaisesRegex(cuda_mem.InvalidValueError, "adaptor"):
            cuda_mem.Statistics(arena).snapshot()
        with self.assertRaisesRegex(cuda_mem.InvalidValueError, "not the one"):
            arena.snapshot(cuda_mem.Recorder())
        arena.deallocate(kept, 1000)
        pool.deallocate(of_pool, 3000)

    def test_what_comes_after_the_end_is_counted(self):
        recorder = cuda_mem.Recorder(path=self.folder / "run.csv")
        arena = cuda_mem.Arena(recorder=recorder)
        arena.deallocate(arena.allocate(1000), 1000)
        recorder.end()
        lines = len(lines_of(self.folder / "run.csv"))
        for _ in range(10_000):
            arena.deallocate(arena.allocate(1000), 1000)
        recorder.end()
        self.assertGreaterEqual(recorder.dropped, 20_000)
        self.assertEqual(len(lines_of(self.folder / "run.csv")), lines)

    @unittest.skipUnless(os.path.exists("/proc/self/fd"), "open files are counted in /proc")
    def test_recorders_end_with_their_objects(self):
        def files():
            return len(os.listdir("/proc/self/fd"))

        before = files()
        for number in range(20):
            cuda_mem.Recorder(path=self.folder / f"{number}.csv.gz")
        self.assertEqual(files(), before)

    def run_program(self, program, path):
        program = f"import os, sys\nimport cuda_mem\npath = {str(path)!r}\n" + textwrap.dedent(program)
        # Python warns of forks where there are threads, as the driver's are.
        python = [sys.executable, "-W", "ignore::DeprecationWarning"]
        return subprocess.run([*python, "-c", program], capture_output=True, text=True, timeout=60)

    @unittest.skipUnless(hasattr(os, "fork"), "there are no forks")
    def test_a_fork_leaves_the_file_alone(self):
        path = self.folder / "run.csv.gz"
        ended = self.run_program(
            """
            recorder = cuda_mem.Recorder(path=path)
            arena = cuda_mem.Arena(recorder=recorder)
            for size in range(1, 10_001):
                arena.deallocate(arena.allocate(size), size)
            if os.fork() == 0:
                sys.exit(0)
            os.wait()
            """,
            path,
        )
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertEqual(sum(line["Action"] == "allocate" for line in lines_of(path)), 10_000)

    @unittest.skipUnless(hasattr(os, "fork"), "there are no forks")
    def test_a_fork_before_the_driver_leaves_the_file_alone(self):
        for name in ("run.csv", "run.csv.gz"):
            path = self.folder / name
            ended = self.run_program(
                """
                recorder = cuda_mem.Recorder(path=path)
                child = os.fork()
                arena = cuda_mem.Arena(recorder=recorder)
                for size in range(1, 10_001):
                    arena.deallocate(arena.allocate(size), size)
                if child == 0:
                    assert recorder.dropped > 0
                    recorder.end()
                    sys.exit(0)
                assert os.wait()[1] == 0
                """,
                path,
            )
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))
            self.assertEqual(sum(line["Action"] == "allocate" for line in lines_of(path)), 10_000)

    def test_a_program_that_dies_of_want_leaves_its_log(self):
        path = self.folder / "run.csv.gz"
        ended = self.run_program(
            """
            arena = cuda_mem.Arena(recorder=cuda_mem.Recorder(path=path), max_bytes=1 << 30)
            arena.allocate(1000)
            try:
                arena.allocate(2 << 30)
            except cuda_mem.OutOfMemoryError:
                os._exit(7)
            """,
            path,
        )
        self.assertEqual(ended.returncode, 7, ended.stderr)
        # The file has no end.
        log = zlib.decompressobj(31).decompress(path.read_bytes()).decode()
        self.assertEqual(log.splitlines()[-1].split(",")[2:5], ["allocate failure", "0x0", str(2 << 30)])

    def test_threads_with_stacks_may_outlive_python(self):
        program = """
            import threading, time
            cuda_mem.record_stacks()
            arena = cuda_mem.Arena(recorder=cuda_mem.Recorder())
            def work():
                while True:
                    arena.deallocate(arena.allocate(1000), 1000)
            for _ in range(8):
                threading.Thread(target=work, daemon=True).start()
            time.sleep(0.1)
            """
        for _ in range(4):
            ended = self.run_program(program, "")
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    @unittest.skipIf(os.name == "nt", "no file is always full")
    def test_a_log_that_cannot_be_written_leaves_the_others_complete(self):
        # Each is the first in turn, as sets have no order.
        for full in range(3):
            ended = self.run_program(
                f"""
                recorders = []
                for number in range(3):
                    name = "/dev/full" if number == {full} else f"{{path}}-{{number}}.csv.gz"
                    recorders.append(cuda_mem.Recorder(path=name))
                    arena = cuda_mem.Arena(recorder=recorders[-1])
                    arena.deallocate(arena.allocate(1000), 1000)
                # They outlive Python.
                import ctypes
                for kept in (recorders, arena):
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
                """,
                self.folder / "run",
            )
            self.assertIn("No space left", ended.stderr)
            for number in {0, 1, 2} - {full}:
                actions = collections.Counter(line["Action"] for line in lines_of(self.folder / f"run-{number}.csv.gz"))
                self.assertEqual((actions["allocate"], actions["free"]), (1, 1))

    def test_mistakes(self):
        with self.assertRaises(ValueError):
            cuda_mem.Recorder(0)
        with self.assertRaisesRegex(cuda_mem.Error, "no/such/place"):
            cuda_mem.Recorder(path="/no/such/place")
        with self.assertRaises(TypeError):
            cuda_mem.Arena().__class__(recorder=cuda_mem.Recorder().__reduce__())
        written = cuda_mem.Recorder(path=self.folder / "log.csv")
        with self.assertRaises(cuda_mem.InvalidValueError):
            written.write(self.folder / "other.csv")
        # It may go before what it records.
        arena = cuda_mem.Arena(recorder=cuda_mem.Recorder())
        arena.deallocate(arena.allocate(1000), 1000)


if __name__ == "__main__":
    unittest.main()
