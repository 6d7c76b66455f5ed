"""The functions that PyTorch calls, without PyTorch, on the simulated driver or a GPU: a process for each test, because
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

SETUP = """
import ctypes, os, threading
import cuda_mem
from cuda_mem import _library as c
from cuda_mem._resources import arena_options, pool_options
from cuda_mem._errors import check
lib = c.library
DRIVER = os.environ.get("CUDA_DRIVER_SYS_LIBRARY") or ("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
MIB = 1 << 20
def stats():
    found = c.TorchStats()
    check(lib.cudamem_torch_read_stats(0, found, ctypes.sizeof(found)))
    return found
def use_arena(record=None, **options):
    check(lib.cudamem_torch_use_arena(arena_options(**options), record, 1))
def use_pool(record=None, **options):
    check(lib.cudamem_torch_use_pool(pool_options(**options), record, 1))

# A std::function<bool(cudaStream_t)> as libstdc++ lays it out, which counts its copies.
MANAGER = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
INVOKER = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
class Function(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64 * 2), ("manager", MANAGER), ("invoker", INVOKER)]
copies = asked = 0
def manage(to, source, operation):
    global copies
    if operation == 2:
        ctypes.memmove(to, source, 16)
        copies += 1
    elif operation == 3:
        copies -= 1
    return False
def takes(data, stream):
    global asked
    asked += 1
    return (stream.contents.value or 0) == ctypes.c_uint64.from_address(data).value
manager, invoker = MANAGER(manage), INVOKER(takes)
def filter_for(stream):
    return Function((ctypes.c_uint64 * 2)(stream, 0), manager, invoker)
class PoolId(ctypes.Structure):
    _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]
lib.cudamem_torch_begin_pool.argtypes = [ctypes.c_int, PoolId, ctypes.c_void_p]
lib.cudamem_torch_end_pool.argtypes = [ctypes.c_int, PoolId]
lib.cudamem_torch_release_pool.argtypes = [ctypes.c_int, PoolId]
def driver_with_context(device=0):
    cuda_mem.device_count()  # starts the driver
    driver, context = ctypes.CDLL(DRIVER), ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    return driver
def new_stream(driver):
    stream = ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    return stream
def begin_capture(driver, stream):
    assert driver.cuStreamBeginCapture_v2(stream, 0) == 0
def end_capture(driver, stream):
    graph = ctypes.c_void_p()
    assert driver.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0
def begin(number, stream):
    lib.cudamem_torch_begin_pool(0, PoolId(0, number), ctypes.byref(filter_for(stream)))
"""


def run(program, **variables):
    text = SETUP + textwrap.dedent(program) + "\nprint('done')\n"
    environment = {**os.environ, **variables}
    outcome = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, env=environment)
    shown = outcome.stdout + outcome.stderr
    if outcome.returncode != 0 or not outcome.stdout.endswith("done\n"):
        raise AssertionError(f"exit status {outcome.returncode}:\n{shown}")
    return outcome.stderr


filtered = unittest.skipIf(os.name == "nt", "filters of captures are not read on Windows")


class Hooks(unittest.TestCase):
    def test_blocks_and_statistics(self):
        for use in ("use_arena()", "use_pool()"):
            told = run(
                f"""
                {use}
                assert stats().allocated == 0
                first = lib.cudamem_torch_alloc(1000, 0, None)
                second = lib.cudamem_torch_alloc(5 * MIB, 0, 2)
                assert first and second and lib.cudamem_torch_alloc(0, 0, None) is None
                found = stats()
                assert (found.allocated, found.allocations) == (1000 + 5 * MIB, 2)
                assert found.reserved >= found.allocated
                lib.cudamem_torch_free(first, 1000, 0, None)
                lib.cudamem_torch_record_stream(second, None)
                lib.cudamem_torch_free(second, 5 * MIB, 0, 2)
                lib.cudamem_torch_free(None, 0, 0, None)
                check(lib.cudamem_torch_reset_peaks(0))
                assert (stats().allocated, stats().allocated_peak, stats().allocated_total) == (0, 0, 1000 + 5 * MIB)
                lib.cudamem_torch_reset()
                assert stats().reserved == 0, stats().reserved
                """
            )
            self.assertEqual(told, "")

    def test_failures_are_told(self):
        told = run(
            """
            assert lib.cudamem_torch_alloc(10, 0, None) is None
            use_arena(max_bytes=8 * MIB)
            assert lib.cudamem_torch_alloc(16 * MIB, 0, None) is None
            assert lib.cudamem_last_error_status() == 2
            assert lib.cudamem_torch_alloc(10, 63, None) is None
            assert lib.cudamem_torch_alloc(-1, 0, None) is None
            assert (stats().failures, stats().retries) == (1, 1)
            try:
                use_pool()
                raise SystemExit("twice")
            except cuda_mem.InUseError:
                pass
            """
        )
        for text in ("call cudamem_torch_use_arena", "8.0 MiB", "-1 bytes"):
            self.assertIn(text, told)
        self.assertEqual(told.count("cuda-mem: allocation: "), 4, told)

    def test_fractions(self):
        for use, fails in (("use_arena()", False), ("use_pool()", True)):
            told = run(
                f"""
                {use}
                total = cuda_mem.device_memory()[1]
                lib.cudamem_torch_set_memory_fraction(64 * MIB / total, 0)
                block = lib.cudamem_torch_alloc(60 * MIB, 0, None)
                assert block
                assert lib.cudamem_torch_alloc(60 * MIB, 0, None) is None
                lib.cudamem_torch_set_memory_fraction(0.5, 0)
                if not {fails}:
                    assert lib.cudamem_torch_alloc(60 * MIB, 0, None)
                lib.cudamem_torch_set_memory_fraction(2.0, 0)
                """
            )
            self.assertIn("a fraction of 2", told)
            self.assertEqual("set the fraction before" in told, fails)

    @unittest.skipUnless(hasattr(os, "mkfifo"), "a pipe in the place of the log")
    def test_a_fraction_of_the_time_of_the_first_allocation_counts(self):
        told = run(
            """
            import tempfile, time
            with tempfile.TemporaryDirectory() as folder:
                # Opened after the fraction is looked up, which waits for a reader.
                log = os.path.join(folder, "log.csv")
                os.mkfifo(log)
                use_arena(log.encode())
                first = threading.Thread(target=lib.cudamem_torch_alloc, args=(MIB, 0, None))
                first.start()
                time.sleep(0.5)
                lib.cudamem_torch_set_memory_fraction(32 * MIB / cuda_mem.device_memory()[1], 0)
                reader = open(os.open(log, os.O_RDONLY))
                threading.Thread(target=reader.read, daemon=True).start()
                first.join()
                assert lib.cudamem_torch_alloc(40 * MIB, 0, None) is None
                check(lib.cudamem_torch_end_record())
            """
        )
        self.assertIn("the arena may hold", told)

    def test_fractions_leave_the_limit(self):
        for limit in ("max_bytes=64 * MIB", "max_share=64 * MIB / cuda_mem.device_memory()[1]"):
            told = run(
                f"""
                use_arena({limit})
                kept = lib.cudamem_torch_alloc(10 * MIB, 0, None)
                lib.cudamem_torch_set_memory_fraction(0.9, 0)
                assert lib.cudamem_torch_alloc(100 * MIB, 0, None) is None
                lib.cudamem_torch_set_memory_fraction(32 * MIB / cuda_mem.device_memory()[1], 0)
                assert lib.cudamem_torch_alloc(40 * MIB, 0, None) is None
                lib.cudamem_torch_set_memory_fraction(1.0, 0)
                assert lib.cudamem_torch_alloc(40 * MIB, 0, None)
                """
            )
            self.assertEqual(told.count("the arena may hold"), 2, told)

    @filtered
    def test_captures_have_memory_of_their_own(self):
        for use in ("use_arena()", "use_pool()"):
            told = run(
                f"""
                {use}
                eager = lib.cudamem_torch_alloc(1000, 0, None)
                begin(1, 2)
                first = lib.cudamem_torch_alloc(1000, 0, 2)
                assert stats().graphs_allocated == 1024 and stats().graphs_reserved >= 2 * MIB
                # Other streams are served as before.
                other = lib.cudamem_torch_alloc(1000, 0, None)
                assert stats().graphs_allocated == 1024
                lib.cudamem_torch_free(first, 1000, 0, 2)
                assert lib.cudamem_torch_alloc(1000, 0, 2) == first, "reused in the capture"
                # Used by another stream, too: not reused in this capture.
                lib.cudamem_torch_record_stream(first, 1)
                lib.cudamem_torch_free(first, 1000, 0, 2)
                second = lib.cudamem_torch_alloc(1000, 0, 2)
                assert second != first
                lib.cudamem_torch_end_pool(0, PoolId(0, 1))
                assert copies == 0, copies
                # After the capture the stream is served as any other.
                later = lib.cudamem_torch_alloc(1000, 0, 2)
                assert stats().graphs_allocated == 2048
                # PyTorch empties the cache before it captures.
                lib.cudamem_torch_reset()
                assert stats().graphs_allocated == 1024, "what other streams used was waited for"
                # A second graph of the pool.
                begin(1, 2)
                lib.cudamem_torch_reset()
                lib.cudamem_torch_end_pool(0, PoolId(0, 1))
                lib.cudamem_torch_release_pool(0, PoolId(0, 1))
                lib.cudamem_torch_release_pool(0, PoolId(0, 1))
                lib.cudamem_torch_reset()
                assert stats().graphs_reserved > 0, "a block is still allocated"
                lib.cudamem_torch_free(second, 1000, 0, 2)
                lib.cudamem_torch_reset()
                assert stats().graphs_reserved == 0
                for block, stream in ((eager, None), (other, None), (later, 2)):
                    lib.cudamem_torch_free(block, 1000, 0, stream)
                lib.cudamem_torch_reset()
                assert (stats().allocated, stats().reserved) == (0, 0), (stats().allocated, stats().reserved)
                """
            )
            self.assertEqual(told, "")

    def test_a_free_in_a_capture_of_others_is_done_later(self):
        told = run(
            """
            use_arena()
            cuda_mem.device_count()  # starts the driver
            driver = ctypes.CDLL(DRIVER)
            context, stream, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
            assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert driver.cuCtxSetCurrent(context) == 0
            assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
            block = lib.cudamem_torch_alloc(1000, 0, stream)
            lib.cudamem_torch_record_stream(block, 2)
            assert driver.cuStreamBeginCapture_v2(stream, 0) == 0
            lib.cudamem_torch_free(block, 1000, 0, stream)
            assert stats().allocated == 1000
            assert driver.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0
            other = lib.cudamem_torch_alloc(10, 0, None)
            assert stats().allocated == 10
            """
        )
        self.assertEqual(told, "")

    @filtered
    def test_blocks_of_other_streams_do_not_spoil_a_capture(self):
        for use in ("use_arena()", "use_pool()"):
            with self.subTest(use):
                told = run(
                    use
                    + """
driver = driver_with_context()
captured, other = new_stream(driver), new_stream(driver)
first = lib.cudamem_torch_alloc(1000, 0, other)
used = lib.cudamem_torch_alloc(1000, 0, other)
lib.cudamem_torch_record_stream(used, captured)
begin(1, captured.value)
begin_capture(driver, captured)
second = lib.cudamem_torch_alloc(5000000, 0, other)
for block, size in ((first, 1000), (used, 1000), (second, 5000000)):
    assert block
    lib.cudamem_torch_free(block, size, 0, other)
end_capture(driver, captured)
lib.cudamem_torch_end_pool(0, PoolId(0, 1))
lib.cudamem_torch_release_pool(0, PoolId(0, 1))
lib.cudamem_torch_free(lib.cudamem_torch_alloc(10, 0, other), 10, 0, other)
assert stats().allocated == 0, stats().allocated
"""
                )
                self.assertEqual(told, "")

    @filtered
    @unittest.skipUnless(os.environ.get("CUDA_DRIVER_SYS_LIBRARY"), "calls are counted by the simulated driver")
    def test_parked_frees_are_seldom_tried_during_captures(self):
        told = run(
            """
            use_arena()
            driver = driver_with_context()
            stream = new_stream(driver)
            block = lib.cudamem_torch_alloc(1000, 0, stream)
            lib.cudamem_torch_record_stream(block, 2)
            begin(1, stream.value)
            begin_capture(driver, stream)
            in_graph = lib.cudamem_torch_alloc(1000, 0, stream)
            # Of before the capture.
            lib.cudamem_torch_free(block, 1000, 0, stream)
            assert stats().allocated == 1000
            other = lib.cudamem_torch_alloc(1000, 0, None)
            lib.cudamem_torch_free(other, 1000, 0, None)
            before = driver.simcuda_calls_total()
            for _ in range(100):
                other = lib.cudamem_torch_alloc(1000, 0, None)
                lib.cudamem_torch_free(other, 1000, 0, None)
            # One for each allocation: whether the capture goes on. The frees were tried once or twice.
            calls = driver.simcuda_calls_total() - before
            assert 100 < calls < 120, calls
            end_capture(driver, stream)
            lib.cudamem_torch_end_pool(0, PoolId(0, 1))
            assert stats().allocated == 0
            """
        )
        self.assertEqual(told, "")

    @filtered
    def test_parked_frees_are_tried_after_a_capture_that_failed_unnoticed(self):
        told = run(
            """
            use_arena()
            driver = driver_with_context()
            stream = new_stream(driver)
            block = lib.cudamem_torch_alloc(1000, 0, stream)
            # It allocates nothing on its stream, and its end is never reported.
            begin(1, stream.value)
            begin_capture(driver, stream)
            lib.cudamem_torch_record_stream(block, 2)
            lib.cudamem_torch_free(block, 1000, 0, stream)
            assert stats().allocated == 1000
            end_capture(driver, stream)
            for _ in range(100):
                other = lib.cudamem_torch_alloc(1000, 0, None)
                lib.cudamem_torch_free(other, 1000, 0, None)
            assert stats().allocated == 0
            """
        )
        self.assertEqual(told, "")

    @unittest.skipUnless(os.environ.get("CUDA_DRIVER_SYS_LIBRARY"), "two devices are simulated")
    def test_a_recorded_stream_is_of_its_own_device(self):
        # The older driver says of which context a stream is.
        for version in ("12000", "13000"):
            told = run(
                """
                use_arena()
                driver = driver_with_context(1)
                other = new_stream(driver)
                driver_with_context(0)
                stream = new_stream(driver)
                block = lib.cudamem_torch_alloc(1000, 0, stream)
                lib.cudamem_torch_record_stream(block, other)
                lib.cudamem_torch_free(block, 1000, 0, stream)
                # Seen before, or not: a stream of device 1 is one.
                block = lib.cudamem_torch_alloc(1000, 1, other)
                assert block
                lib.cudamem_torch_free(block, 1000, 1, other)
                block = lib.cudamem_torch_alloc(1000, 0, stream)
                before = driver.simcuda_calls(b"cuStreamWaitEvent")
                lib.cudamem_torch_record_stream(block, other)
                lib.cudamem_torch_free(block, 1000, 0, stream)
                assert driver.simcuda_calls(b"cuStreamWaitEvent") == before + 1, "its own stream waits for the other device"
                assert stats().allocated == 0
                """,
                CUDA_SIM_DEVICES="2",
                CUDA_SIM_DRIVER_VERSION=version,
            )
            self.assertEqual(told, "")

    @filtered
    def test_a_short_request_gets_what_graphs_left(self):
        told = run(
            """
            use_pool(max_bytes=96 * MIB)
            begin(1, 2)
            block = lib.cudamem_torch_alloc(60 * MIB, 0, 2)
            lib.cudamem_torch_free(block, 60 * MIB, 0, 2)
            lib.cudamem_torch_end_pool(0, PoolId(0, 1))
            lib.cudamem_torch_release_pool(0, PoolId(0, 1))
            assert lib.cudamem_torch_alloc(80 * MIB, 0, None)
            assert (stats().graphs_reserved, stats().retries) == (0, 1)
            """
        )
        self.assertEqual(told, "")

    @filtered
    def test_captures_that_cannot_begin_get_nothing(self):
        told = run(
            """
            use_arena()
            # Without a filter all streams count as captured.
            lib.cudamem_torch_begin_pool(0, PoolId(0, 1), None)
            assert lib.cudamem_torch_alloc(1000, 0, None) and stats().allocated == 0
            lib.cudamem_torch_end_pool(0, PoolId(0, 1))
            assert lib.cudamem_torch_alloc(1000, 0, None) and stats().allocated == 1000
            # A capture that failed is followed by another one of its name.
            begin(2, 2)
            begin(2, 2)
            assert copies == 1, copies
            lib.cudamem_torch_end_pool(0, PoolId(0, 2))
            assert copies == 0, copies
            lib.cudamem_torch_begin_pool(63, PoolId(0, 3), ctypes.byref(filter_for(2)))
            lib.cudamem_torch_end_pool(63, PoolId(0, 3))
            """
        )
        self.assertIn("without a filter", told)
        self.assertEqual(told.count("beginning of a capture"), 2, told)

    @filtered
    def test_a_capture_that_failed_is_forgotten(self):
        for waits in (True, False):
            told = run(
                f"""
                use_arena()
                driver = driver_with_context()
                stream = new_stream(driver)
                begin(1, stream.value)
                begin_capture(driver, stream)
                block = lib.cudamem_torch_alloc(1000, 0, stream)
                assert stats().graphs_allocated == 1024
                # Not yet: PyTorch reports the end of a capture after the driver's.
                lib.cudamem_torch_reset()
                assert copies == 1
                end_capture(driver, stream)
                # PyTorch raises an error here, and its filter must not be called any more.
                before = asked
                lib.cudamem_torch_free(block, 1000, 0, stream)
                block = lib.cudamem_torch_alloc(1000, 0, None)
                assert asked == before
                assert copies == 0
                lib.cudamem_torch_free(block, 1000, 0, None)
                lib.cudamem_torch_reset()
                assert (stats().graphs_reserved > 0) == (stats().reserved > 0) == {waits}, "its end may still come"
                # Out of memory is tried again.
                assert lib.cudamem_torch_alloc(1 << 50, 0, None) is None
                assert stats().retries == 1
                """,
                CUDA_MEM_TEST_END_IS_REPORTED_IN="1000000" if waits else "0",
            )
            self.assertEqual(told.count("cuda-mem: allocation: a block of an arena has less than"), 1, told)

    LATE = """
            use_arena()
            driver = driver_with_context()
            stream = new_stream(driver)
            begin(1, stream.value)
            begin_capture(driver, stream)
            block = lib.cudamem_torch_alloc(1000, 0, stream)
            lib.cudamem_torch_free(block, 1000, 0, stream)
            end_capture(driver, stream)
            """

    @filtered
    def test_an_end_that_is_reported_late_keeps_the_graphs_memory(self):
        for emptied, reported_in in ((True, "1000000"), (False, "0")):
            told = run(
                self.LATE
                + f"""
            # Another thread empties the cache, or allocates, before this one reports the end.
            if {emptied}:
                lib.cudamem_torch_reset()
            else:
                lib.cudamem_torch_alloc(1000, 0, None)
            assert copies == 0
            lib.cudamem_torch_end_pool(0, PoolId(0, 1))
            lib.cudamem_torch_reset()
            assert stats().graphs_reserved > 0, "the graph uses it"
            lib.cudamem_torch_release_pool(0, PoolId(0, 1))
            lib.cudamem_torch_reset()
            assert stats().graphs_reserved == 0
            """,
                CUDA_MEM_TEST_END_IS_REPORTED_IN=reported_in,
            )
            self.assertEqual(told, "")

    @filtered
    def test_an_end_that_is_reported_too_late_is_told(self):
        told = run(
            self.LATE
            + """
            lib.cudamem_torch_reset()
            assert stats().graphs_reserved == 0
            lib.cudamem_torch_end_pool(0, PoolId(0, 1))
            """,
            CUDA_MEM_TEST_END_IS_REPORTED_IN="0",
        )
        self.assertIn("cuda-mem: end of a capture: ", told)
        self.assertIn("do not launch the graph", told)

    @filtered
    def test_an_end_that_is_reported_late_does_not_end_the_next_capture(self):
        told = run(
            self.LATE
            + """
            # Another thread captures for the same pool before this one reports the end.
            other = new_stream(driver)
            begin(1, other.value)
            begin_capture(driver, other)
            first = lib.cudamem_torch_alloc(1000, 0, other)
            lib.cudamem_torch_end_pool(0, PoolId(0, 1))
            assert copies == 1
            second = lib.cudamem_torch_alloc(1000, 0, other)
            assert stats().graphs_allocated == 2048 and stats().allocated == 0
            lib.cudamem_torch_free(first, 1000, 0, other)
            lib.cudamem_torch_free(second, 1000, 0, other)
            end_capture(driver, other)
            lib.cudamem_torch_end_pool(0, PoolId(0, 1))
            assert copies == 0
            lib.cudamem_torch_release_pool(0, PoolId(0, 1))
            lib.cudamem_torch_reset()
            assert stats().graphs_reserved > 0, "there are two graphs"
            lib.cudamem_torch_release_pool(0, PoolId(0, 1))
            lib.cudamem_torch_reset()
            assert stats().graphs_reserved == 0
            """
        )
        self.assertEqual(told, "")

    @filtered
    def test_a_pool_whose_capture_failed_can_be_used_again(self):
        told = run(
            """
            use_arena()
            # The second capture has the name of the one that failed.
            begin(1, 2)
            begin(1, 2)
            block = lib.cudamem_torch_alloc(1000, 0, 2)
            lib.cudamem_torch_free(block, 1000, 0, 2)
            lib.cudamem_torch_end_pool(0, PoolId(0, 1))
            lib.cudamem_torch_release_pool(0, PoolId(0, 1))
            lib.cudamem_torch_reset()
            assert stats().graphs_reserved == 0, "one graph was there, and is gone"
            """
        )
        self.assertEqual(told, "")

    @filtered
    def test_frees_do_not_wait_for_who_waits(self):
        told = run(
            """
            import time
            use_arena()
            begin(1, 2)
            kept = lib.cudamem_torch_alloc(1000, 0, 2)
            lib.cudamem_torch_end_pool(0, PoolId(0, 1))
            lib.cudamem_torch_release_pool(0, PoolId(0, 1))
            block = lib.cudamem_torch_alloc(1000, 0, None)
            driver = ctypes.CDLL(DRIVER)
            freed, entered = threading.Event(), threading.Event()
            @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
            def wait(_):
                entered.set()
                assert freed.wait(20)
            context = ctypes.c_void_p()
            assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert driver.cuCtxSetCurrent(context) == 0
            assert driver.cuLaunchHostFunc(ctypes.c_void_p(1), wait, None) == 0
            assert entered.wait(20)
            emptying = threading.Thread(target=lib.cudamem_torch_reset)
            emptying.start()
            time.sleep(0.2)
            assert emptying.is_alive(), "it waits for the device"
            lib.cudamem_torch_free(block, 1000, 0, None)
            lib.cudamem_torch_alloc(1000, 0, 2)
            lib.cudamem_torch_free(kept, 1000, 0, 2)
            freed.set()
            emptying.join()
            assert stats().graphs_reserved > 0, "work with a block may come after the wait"
            lib.cudamem_torch_reset()
            assert stats().graphs_reserved == 0
            """
        )
        self.assertEqual(told, "")

    @unittest.skipUnless(hasattr(os, "fork"), "there are no forks")
    def test_a_fork_frees_nothing(self):
        run(
            """
            use_arena()
            block = lib.cudamem_torch_alloc(1000, 0, None)
            child = os.fork()
            if child == 0:
                lib.cudamem_torch_free(block, 1000, 0, None)
                lib.cudamem_torch_reset()
                served = lib.cudamem_torch_alloc(10, 0, None)
                try:
                    stats()
                except cuda_mem.Error as error:
                    os._exit(0 if served is None and error.status == 10 else 1)
                os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
            lib.cudamem_torch_free(block, 1000, 0, None)
            assert stats().allocated == 0
            """
        )

    def test_a_base_is_known_of_an_arena(self):
        told = run(
            """
            use_arena()
            block = lib.cudamem_torch_alloc(MIB, 0, None)
            lib.cudamem_torch_base.restype = ctypes.c_void_p
            lib.cudamem_torch_base.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
            size = ctypes.c_size_t()
            base = lib.cudamem_torch_base(block, ctypes.byref(size))
            assert base <= block and block + MIB <= base + size.value
            assert lib.cudamem_torch_base(4096, ctypes.byref(size)) is None and size.value == 0
            """
        )
        self.assertIn("base allocation", told)

    def test_a_log_is_packed_and_complete(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "run.csv.gz"
            run(
                f"""
                use_arena(record={str(path)!r}.encode())
                for step in range(2000):
                    block = lib.cudamem_torch_alloc(step + 1, 0, None)
                    lib.cudamem_torch_free(block, step + 1, 0, None)
                check(lib.cudamem_torch_end_record())
                check(lib.cudamem_torch_end_record())
                lib.cudamem_torch_alloc(1, 0, None)
                """
            )
            lines = gzip.decompress(path.read_bytes()).decode().splitlines()
            self.assertEqual(lines[0], "Thread,Time,Action,Pointer,Size,Stream,Origin")
            actions = collections.Counter(line.split(",")[2] for line in lines[1:])
            self.assertEqual((actions["allocate"], actions["free"]), (2000, 2000))
            self.assertGreaterEqual(actions["map"], 1)

    @unittest.skipIf(os.name == "nt", "no file is always full")
    @unittest.skipUnless(os.environ.get("CUDA_DRIVER_SYS_LIBRARY"), "two devices are simulated")
    def test_a_log_that_cannot_be_written_leaves_that_of_another_device_complete(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "run.csv.gz"
            path.symlink_to("/dev/full")
            run(
                f"""
                use_arena(record={str(path)!r}.encode())
                for device in range(2):
                    lib.cudamem_torch_free(lib.cudamem_torch_alloc(10, device, None), 10, device, None)
                try:
                    check(lib.cudamem_torch_end_record())
                    raise SystemExit("it cannot be written")
                except cuda_mem.Error as error:
                    assert "No space left" in str(error), error
                print("done", flush=True)
                os._exit(0)
                """,
                CUDA_SIM_DEVICES="2",
            )
            log = gzip.decompress((pathlib.Path(folder) / "run-device1.csv.gz").read_bytes()).decode()
            self.assertIn(",free,", log)

    def test_a_recorder_may_go_before_a_device_is_used(self):
        run(
            """
            recorder = cuda_mem.Recorder()
            options = arena_options(recorder=recorder)
            check(lib.cudamem_torch_use_arena(options, None, 1))
            del recorder
            block = lib.cudamem_torch_alloc(1000, 0, None)
            lib.cudamem_torch_free(block, 1000, 0, None)
            """
        )

    @unittest.skipUnless(os.environ.get("CUDA_DRIVER_SYS_LIBRARY"), "calls are counted by the simulated driver")
    def test_streams_recorded_for_other_memory_are_forgotten(self):
        for use in ("use_arena()", "use_pool()"):
            told = run(
                f"""
                {use}
                driver = driver_with_context()
                stream, other = new_stream(driver), new_stream(driver)
                block = lib.cudamem_torch_alloc(1000, 0, stream)
                lib.cudamem_torch_free(block, 1000, 0, stream)
                # Not ours now, as memory of another library.
                lib.cudamem_torch_record_stream(block, other)
                assert lib.cudamem_torch_alloc(1000, 0, stream) == block
                waits = driver.simcuda_calls(b"cuStreamWaitEvent"), driver.simcuda_calls(b"cuEventRecord")
                lib.cudamem_torch_free(block, 1000, 0, stream)
                found = driver.simcuda_calls(b"cuStreamWaitEvent"), driver.simcuda_calls(b"cuEventRecord")
                assert found == waits, "the other stream is of no concern"
                """
            )
            self.assertEqual(told, "")

    @filtered
    def test_blocks_of_captures_have_recorded_streams(self):
        for use in ("use_arena()", "use_pool()"):
            run(
                f"""
                {use}
                begin(1, 2)
                for size in (1000, 300_000, 50 * MIB):
                    block = lib.cudamem_torch_alloc(size, 0, 2)
                    lib.cudamem_torch_record_stream(block, 1)
                    lib.cudamem_torch_free(block, size, 0, 2)
                    # Others used it, so it is not reused in this capture.
                    assert lib.cudamem_torch_alloc(size, 0, 2) != block
                lib.cudamem_torch_end_pool(0, PoolId(0, 1))
                """
            )

    def test_threads(self):
        run(
            """
            use_arena()
            def work(seed):
                kept = []
                for step in range(500):
                    size = 1 + (seed * 7919 + step * 104729) % 300_000
                    block = lib.cudamem_torch_alloc(size, 0, 2)
                    if step % 3 == 0:
                        lib.cudamem_torch_record_stream(block, None)
                    kept.append((block, size))
                    if len(kept) > 20:
                        lib.cudamem_torch_free(*kept.pop(step % 20), 0, 2)
                for block, size in kept:
                    lib.cudamem_torch_free(block, size, 0, 2)
            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
            [thread.start() for thread in threads]; [thread.join() for thread in threads]
            assert (stats().allocated, stats().failures) == (0, 0)
            """
        )

    def test_segments_come_from_a_resource(self):
        told = run(
            """
            arenas = [cuda_mem.Arena(max_bytes=64 * MIB) for _ in range(17)]
            pointers = []
            for arena in arenas[:16]:
                alloc, free = ctypes.c_void_p(), ctypes.c_void_p()
                check(lib.cudamem_torch_segments(arena.handle, ctypes.byref(alloc), ctypes.byref(free)))
                pointers.append((alloc.value, free.value))
            assert len(set(pointers)) == 16
            try:
                check(lib.cudamem_torch_segments(arenas[16].handle, ctypes.byref(alloc), ctypes.byref(free)))
                raise SystemExit("more than there are")
            except cuda_mem.InUseError as error:
                assert "use one of them again" in str(error), error
            arena = arenas[3]
            alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(pointers[3][0])
            free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(pointers[3][1])
            block = alloc(2 * MIB, 0, None)
            assert arena.stats().live == 2 * MIB
            assert alloc(128 * MIB, 0, None) is None
            free(block, 2 * MIB, 0, None)
            assert arena.stats().live == 0
            """
        )
        self.assertIn("a segment", told)

    def test_a_resource_has_one_pair_of_functions(self):
        run(
            """
            def functions(resource):
                alloc, free = ctypes.c_void_p(), ctypes.c_void_p()
                check(lib.cudamem_torch_segments(resource.handle, ctypes.byref(alloc), ctypes.byref(free)))
                return alloc.value, free.value
            arena, pool = cuda_mem.Arena(), cuda_mem.Pool()
            first = functions(arena)
            for _ in range(20):
                assert functions(arena) == first
            assert functions(pool) != first
            """
        )

    def test_segments_are_refused_on_a_captured_stream(self):
        for made in ("cuda_mem.Pool()", "cuda_mem.Limit(cuda_mem.Pool(), 64 * MIB)", "cuda_mem.Arena()"):
            told = run(
                f"""
                driver = driver_with_context()
                resource, stream = {made}, new_stream(driver)
                alloc, free = ctypes.c_void_p(), ctypes.c_void_p()
                check(lib.cudamem_torch_segments(resource.handle, ctypes.byref(alloc), ctypes.byref(free)))
                alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(alloc.value)
                assert alloc(2 * MIB, 0, stream) and alloc(2 * MIB, 0, None) and alloc(2 * MIB, 0, 2)
                begin_capture(driver, stream)
                assert alloc(2 * MIB, 0, stream) is None
                end_capture(driver, stream)
                assert alloc(2 * MIB, 0, stream)
                """
            )
            self.assertIn("captured", told, made)

    def test_segments_freed_in_a_capture_come_back_after_it(self):
        for made in ("cuda_mem.Pool()", "cuda_mem.Arena()"):
            told = run(
                f"""
                driver = driver_with_context()
                below = {made}
                resource, stream = cuda_mem.Limit(below, 64 * MIB), new_stream(driver)
                alloc, free = ctypes.c_void_p(), ctypes.c_void_p()
                check(lib.cudamem_torch_segments(resource.handle, ctypes.byref(alloc), ctypes.byref(free)))
                alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(alloc.value)
                free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(free.value)
                block = alloc(48 * MIB, 0, stream)
                begin_capture(driver, stream)
                free(block, 48 * MIB, 0, stream)
                end_capture(driver, stream)
                assert alloc(48 * MIB, 0, stream), "it is lost"
                """
            )
            self.assertNotIn("cuda-mem:", told, made)

    def test_a_stream_is_not_forgotten_while_a_segment_waits_for_its_capture(self):
        run(
            """
            driver = driver_with_context()
            pool, stream = cuda_mem.Pool(), new_stream(driver)
            alloc, free = ctypes.c_void_p(), ctypes.c_void_p()
            check(lib.cudamem_torch_segments(pool.handle, ctypes.byref(alloc), ctypes.byref(free)))
            alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(alloc.value)
            free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(free.value)
            block = alloc(2 * MIB, 0, stream)
            begin_capture(driver, stream)
            free(block, 2 * MIB, 0, stream)
            try:
                cuda_mem.detach(0, stream.value)
                raise SystemExit("forgotten, and the segment will be freed on it")
            except cuda_mem.Error as error:
                assert error.status == 11, error
            end_capture(driver, stream)
            cuda_mem.detach(0, stream.value)
            assert pool.stats().used == 0, pool.stats()
            """
        )

if __name__ == "__main__":
    unittest.main()
