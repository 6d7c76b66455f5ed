"""`cuda_mem.torch` with a stub in the place of PyTorch, on the simulated driver or a GPU: a process for each test, because
the memory is chosen once."""

import collections
import gzip
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

STUBS = pathlib.Path(__file__).parent / "stubs"

SETUP = f"""
import sys
sys.path.insert(0, {str(STUBS)!r})
import gc, os
import torch
import cuda_mem.torch
from cuda_mem import _library as c
lib = c.library
MIB = 1 << 20
def work(blocks):
    torch.cuda.initialized = True
    for size in range(1, blocks + 1):
        block = lib.cudamem_torch_alloc(size, 0, None)
        assert block
        lib.cudamem_torch_free(block, size, 0, None)
"""


def run(program, **variables):
    text = SETUP + textwrap.dedent(program) + "\nprint('done')\n"
    # Python warns of forks where there are threads, as the driver's are.
    python = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text]
    environment = {**os.environ, **variables}
    outcome = subprocess.run(python, capture_output=True, text=True, timeout=60, env=environment)
    if outcome.returncode != 0 or not outcome.stdout.endswith("done\n"):
        raise AssertionError(f"exit status {outcome.returncode}:\n{outcome.stdout}{outcome.stderr}")
    return outcome.stderr


def actions_in(path):
    text = gzip.decompress(path.read_bytes()).decode()
    return collections.Counter(line.split(",")[2] for line in text.splitlines()[1:])


class Logs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "run.csv.gz"

    def test_a_recorder_that_only_pytorch_has_completes_its_file(self):
        for use in ("use_arena", "use_pool"):
            told = run(
                f"""
                cuda_mem.torch.{use}(record=cuda_mem.Recorder(path={str(self.path)!r}), shim=False)
                gc.collect()
                work(100)
                """
            )
            self.assertEqual(told, "")
            actions = actions_in(self.path)
            self.assertEqual((actions["allocate"], actions["free"]), (100, 100))

    def test_a_log_of_another_process_is_left_alone(self):
        self.path.write_bytes(b"written")
        # As a worker does that runs the top of the program again, and never uses the GPU.
        run(f"cuda_mem.torch.use_arena(record={str(self.path)!r}, shim=False)")
        self.assertEqual(self.path.read_bytes(), b"written")

    def test_a_wrong_path_is_told_at_once(self):
        run(
            f"""
            try:
                cuda_mem.torch.use_arena(record={str(self.path / "no" / "place")!r}, shim=False)
                raise SystemExit("it cannot be written")
            except OSError:
                pass
            cuda_mem.torch.use_arena(record={str(self.path)!r}, shim=False)
            work(10)
            """
        )
        self.assertEqual(actions_in(self.path)["allocate"], 10)

    def test_a_recorder_of_a_mem_pool_completes_its_file(self):
        told = run(
            f"""
            import ctypes
            recorder = cuda_mem.Recorder(path={str(self.path)!r})
            alloc, free = cuda_mem.torch.mem_pool(cuda_mem.Arena(recorder=recorder))
            del recorder
            gc.collect()
            alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(alloc)
            assert alloc(2 * MIB, 0, None)
            """
        )
        self.assertEqual(told, "")
        self.assertEqual(actions_in(self.path)["allocate"], 1)


class Shims(unittest.TestCase):
    @unittest.skipIf(os.name == "nt", "none is built on Windows")
    def test_a_machine_that_cannot_build_one_goes_without(self):
        no_home = """
            import pathlib
            def home():
                raise RuntimeError("Could not determine home directory.")
            pathlib.Path.home = home
            """
        for prelude, variables in ((no_home, {"XDG_CACHE_HOME": ""}), ("", {"CXX": "'g++"}), ("", {"CXX": "/no/such"})):
            use = textwrap.dedent(prelude) + "cuda_mem.torch.use_arena()\nwork(1)"
            self.assertEqual(run(use, **variables), "")
            fails = """
                try:
                    cuda_mem.torch.use_arena(shim=True)
                    raise SystemExit("there is none")
                except RuntimeError as error:
                    assert "shim=True needs" in str(error), error
                """
            run(textwrap.dedent(prelude) + textwrap.dedent(fails), **variables)


class Statistics(unittest.TestCase):
    def test_questions_start_nothing(self):
        run(
            """
            cuda_mem.torch.use_arena(shim=False)
            for module in (torch.cuda, torch.cuda.memory):
                assert module.memory_stats_as_nested_dict() == {}
                module.reset_peak_memory_stats()
            assert cuda_mem.torch.memory_stats("cuda:0") == {}
            for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
                assert getattr(cuda_mem.torch, name)() == 0
            assert set(cuda_mem.torch.stats().values()) == {0}
            assert not torch.cuda.initialized
            work(10)
            assert cuda_mem.torch.max_memory_allocated() == 10 and cuda_mem.torch.stats()["allocations_total"] == 10
            """
        )

    def test_the_peak_does_not_fall(self):
        run(
            """
            cuda_mem.torch.use_arena(shim=False)
            torch.cuda.initialized = True
            found = {"allocated": 1, "allocated_peak": 100, "graphs_allocated": 50}
            zeros = dict.fromkeys(cuda_mem.torch.stats(), 0)
            cuda_mem.torch.stats = lambda device=None: zeros | found
            assert cuda_mem.torch.max_memory_allocated() == 150
            found["graphs_allocated"] = 10
            assert cuda_mem.torch.max_memory_allocated() == 150
            assert torch.cuda.memory_stats_as_nested_dict()["active_bytes"]["all"]["peak"] == 150
            found["allocated_peak"] = 200
            assert cuda_mem.torch.max_memory_allocated(0) == 210
            assert cuda_mem.torch.max_memory_allocated("cuda:1") == 210, "the same answer, of another device"
            found["allocated_peak"] = 1
            cuda_mem.torch.reset_peak_memory_stats()
            assert cuda_mem.torch.max_memory_allocated() == 11
            assert cuda_mem.torch.max_memory_allocated(1) == 210
            """
        )

    @unittest.skipUnless(hasattr(os, "fork"), "there are no forks")
    def test_a_fork_has_no_statistics(self):
        run(
            """
            cuda_mem.torch.use_arena(shim=False)
            work(10)
            child = os.fork()
            if child == 0:
                # As PyTorch says in a fork of a process that has used a GPU.
                torch.cuda.initialized = False
                try:
                    torch.cuda.reset_peak_memory_stats()
                    os._exit(cuda_mem.torch.memory_allocated() or len(torch.cuda.memory_stats_as_nested_dict(0)))
                except BaseException:
                    os._exit(100)
            assert os.waitpid(child, 0)[1] == 0
            """
        )


if __name__ == "__main__":
    unittest.main()
