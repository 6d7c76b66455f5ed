"""Resources and arrays, on the simulated driver or a GPU."""

import copy
import ctypes
import gc
import os
import subprocess
import sys
import threading
import unittest
import unittest.mock
import warnings

import cuda_mem
from cuda_mem import _errors
from cuda_mem._streams import handle_of

DRIVER = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"


class Resources(unittest.TestCase):
    def test_devices(self):
        self.assertGreaterEqual(cuda_mem.device_count(), 1)
        self.assertGreaterEqual(cuda_mem.driver_version(), 11020)
        free, total = cuda_mem.device_memory()
        self.assertTrue(0 < free <= total)
        with self.assertRaises(cuda_mem.InvalidValueError):
            cuda_mem.Arena(100)

    def test_an_error_is_of_the_call_that_failed(self):
        pool = cuda_mem.Pool()

        class Disturbed(cuda_mem.OutOfMemoryError):
            """As if garbage were collected for it, and a finalizer failed."""

            def __init__(self, message):
                with test.assertRaises(cuda_mem.InvalidValueError):
                    cuda_mem.Arena(100)
                super().__init__(message)

        test = self
        with self.assertRaises(cuda_mem.OutOfMemoryError) as plain:
            pool.allocate(1 << 50)
        with unittest.mock.patch.dict(_errors._CLASSES, {2: Disturbed}):
            with self.assertRaises(Disturbed) as disturbed:
                pool.allocate(1 << 50)
        for name in ("status", "driver_code", "had_no_effect"):
            self.assertEqual(getattr(disturbed.exception, name), getattr(plain.exception, name), name)
        self.assertEqual(plain.exception.driver_code, 2)

    def test_an_arena_serves_and_counts(self):
        arena = cuda_mem.Arena(slack=1.0, growth_wait=0.1)
        first = arena.allocate(1000)
        self.assertEqual(first % 256, 0)
        self.assertEqual((arena.stats().live, arena.stats().live_blocks), (1024, 1))
        arena.deallocate(first, 1000)
        self.assertEqual(arena.allocate(1000), first)
        arena.deallocate(first, 1000)
        self.assertEqual(arena.allocate(0), 0)
        arena.deallocate(0, 0)
        cuda_mem.Buffer(1, "u1", arena).to_bytes()  # waits for the stream
        arena.trim()
        arena.reset_peak()
        self.assertEqual(arena.stats().reserved, arena.stats().reserved_peak)

    def test_numbers_are_not_cut_off(self):
        wrong = [
            {"max_bytes": -1},
            {"max_bytes": 0},
            {"max_bytes": 2**64},
            {"max_share": 2.0},
            {"max_share": -3.0},
            {"growth_wait": -1},
            {"slack": 0.0},
            {"slack": 0.5},
            {"reuse": 8},
            {"device": 2**32},
        ]
        for options in wrong:
            with self.assertRaises(ValueError, msg=options):
                cuda_mem.Arena(**options)
        arena = cuda_mem.Arena()
        with self.assertRaises(ValueError):
            arena.allocate(2**64 + 5)
        with self.assertRaises(cuda_mem.InvalidValueError):
            arena.allocate(1, alignment=1 << 63)
        with self.assertRaises(ValueError):
            cuda_mem.Limit(arena, -1)

    def test_resources_are_not_copied(self):
        arena = cuda_mem.Arena()
        for copied in (arena, cuda_mem.Buffer(1, "u1", arena)):
            with self.assertRaises(TypeError):
                copy.copy(copied)
            with self.assertRaises(TypeError):
                copy.deepcopy(copied)

    def test_tensors_may_outlive_python(self):
        program = """
import ctypes, sys
import cuda_mem
from cuda_mem import _dlpack
buffer = cuda_mem.Buffer(1000, "u1", cuda_mem.Arena())
sys.capsule = buffer.__dlpack__()
capsule = buffer.__dlpack__(max_version=(1, 0))
sys.tensor = cuda_mem.Buffer.from_dlpack(buffer)
api = ctypes.pythonapi
api.PyCapsule_SetDestructor.argtypes = [ctypes.py_object, ctypes.c_void_p]
for _ in range(100):
    # As JAX does with a capsule that it has taken.
    taken = buffer.__dlpack__()
    _dlpack.take(taken)
    api.PyCapsule_SetDestructor(taken, None)
    del taken
print("done")
"""
        outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        self.assertEqual((outcome.returncode, outcome.stdout, outcome.stderr), (0, "done\n", ""))

    def test_adaptors_stack(self):
        counting = cuda_mem.Statistics(cuda_mem.Limit(cuda_mem.Arena(), 1 << 20))
        checked = cuda_mem.Checked(counting)
        block = checked.allocate(1 << 19)
        with self.assertRaises(cuda_mem.OutOfMemoryError) as raised:
            checked.allocate(1 << 20)
        self.assertIsInstance(raised.exception, MemoryError)
        self.assertEqual(raised.exception.status, 2)
        with self.assertRaises(cuda_mem.InvalidValueError) as raised:
            checked.deallocate(block, 1000)
        self.assertTrue(raised.exception.had_no_effect)
        checked.deallocate(block, 1 << 19)
        with self.assertRaises(cuda_mem.InvalidValueError):
            checked.deallocate(block, 1 << 19)
        counts = counting.counts()
        self.assertEqual((counts.bytes, counts.bytes_peak, counts.allocations_total), (0, 1 << 19, 1))

    def test_pools(self):
        pool = cuda_mem.Pool(release_threshold=0)
        block = pool.allocate(1 << 20)
        self.assertEqual(pool.stats().used, 1 << 20)
        pool.deallocate(block, 1 << 20, others=[1])
        self.assertEqual(pool.stats().used, 0)
        arena = cuda_mem.Arena(upstream=pool)
        arena.deallocate(arena.allocate(100), 100)
        self.assertGreater(pool.stats().used, 0)
        default = cuda_mem.Pool.default()
        default.make_current()
        with self.assertRaises(ValueError):
            cuda_mem.Arena(1, upstream=pool)

    def test_threads(self):
        arena = cuda_mem.Arena()
        errors = []

        def work(seed):
            kept = []
            for step in range(300):
                size = 1 + (seed * 7919 + step * 104729) % 100_000
                kept.append((arena.allocate(size, stream=2), size))
                if len(kept) > 10:
                    address, size = kept.pop(step % 10)
                    arena.deallocate(address, size, stream=2)
            for address, size in kept:
                arena.deallocate(address, size, stream=2)

        def guarded(seed):
            try:
                work(seed)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(arena.stats().live, 0)

    def test_streams_of_other_libraries(self):
        class Protocol:
            def __cuda_stream__(self):
                return 0, 77

        class Torch:
            cuda_stream = 78

        class Cupy:
            ptr = 79

        self.assertEqual([handle_of(x) for x in (None, 5, Protocol(), Torch(), Cupy())], [0, 5, 77, 78, 79])
        with self.assertRaises(TypeError):
            handle_of("stream")


class Arrays(unittest.TestCase):
    def setUp(self):
        self.arena = cuda_mem.Arena()

    def test_contents(self):
        buffer = cuda_mem.Buffer((3, 4), "f8", self.arena)
        self.assertEqual((buffer.nbytes, buffer.typestr, buffer.shape), (96, "<f8", (3, 4)))
        data = bytes(range(96))
        buffer.copy_from(data)
        self.assertEqual(buffer.to_bytes(), data)
        buffer.copy_from(bytearray(96))
        self.assertEqual(buffer.to_bytes(), bytes(96))
        with self.assertRaises(ValueError):
            buffer.copy_from(bytes(95))
        del buffer
        gc.collect()
        self.assertEqual(self.arena.stats().live, 0)

    def test_dlpack_there_and_back(self):
        buffer = cuda_mem.Buffer(6, "i4", self.arena)
        buffer.copy_from(bytes(range(24)))
        back = cuda_mem.Buffer.from_dlpack(buffer)
        self.assertEqual((back.address, back.shape, back.typestr), (buffer.address, (6,), "<i4"))
        self.assertEqual(buffer.__dlpack_device__(), (2, 0))
        del buffer
        gc.collect()
        # The tensor keeps the memory.
        self.assertEqual(self.arena.stats().live_blocks, 1)
        self.assertEqual(back.to_bytes(), bytes(range(24)))
        again = cuda_mem.Buffer.from_dlpack(back, stream=2)
        del back
        gc.collect()
        self.assertEqual(again.to_bytes(), bytes(range(24)))
        del again
        gc.collect()
        self.assertEqual(self.arena.stats().live, 0)

    def test_capsules(self):
        buffer = cuda_mem.Buffer(6, "u1", self.arena)
        # Nobody takes it.
        for version in (None, (1, 0)):
            del version
            capsule = buffer.__dlpack__()
            del capsule
        versioned = buffer.__dlpack__(max_version=(1, 1), stream=-1)
        self.assertIn("dltensor_versioned", repr(versioned))
        self.assertIn('"dltensor"', repr(buffer.__dlpack__(stream=1)))
        for wrong in ({"stream": 0}, {"copy": True}, {"dl_device": (1, 0)}):
            with self.assertRaises((ValueError, BufferError)):
                buffer.__dlpack__(**wrong)
        del versioned, buffer
        gc.collect()
        self.assertEqual(self.arena.stats().live, 0)

    def test_a_capsule_may_go_while_an_exception_is_raised(self):
        for version in (None, (1, 0)):
            buffer = cuda_mem.Buffer(6, "u1", self.arena)
            with self.assertRaises(TypeError):
                int(buffer.__dlpack__(max_version=version))
            del buffer
            gc.collect()
            self.assertEqual(self.arena.stats().live, 0, version)

    def test_array_interface(self):
        buffer = cuda_mem.Buffer((2, 3), "u2", self.arena)
        buffer.copy_from(bytes(range(12)))
        found = buffer.__cuda_array_interface__
        self.assertEqual(found["data"], (buffer.address, False))
        self.assertEqual((found["shape"], found["typestr"], found["version"]), ((2, 3), "<u2", 3))

        class Column:
            """Another library's view: the second column."""

            __cuda_array_interface__ = {
                "shape": (2,),
                "typestr": "<u2",
                "data": (buffer.address + 2, True),
                "strides": (6,),
                "version": 3,
                "stream": 1,
            }

        column = cuda_mem.Buffer.from_cuda_array_interface(Column())
        self.assertEqual(column.__cuda_array_interface__["strides"], (6,))
        with self.assertRaises(ValueError):
            column.to_bytes()
        with self.assertRaises(ValueError):
            column.copy_from(bytes(4))
        # Only consumers of DLPack 1.0 know that it is read-only.
        with self.assertRaises(BufferError):
            column.__dlpack__()
        again = cuda_mem.Buffer.from_dlpack(column)
        self.assertTrue(again.__cuda_array_interface__["data"][1])

    def test_a_buffer_may_go_while_its_stream_is_captured(self):
        stream, begin, end = self.captured()
        buffer = cuda_mem.Buffer(1000, "u1", self.arena, stream)
        begin()
        del buffer
        gc.collect()
        self.assertEqual(end(), 0)
        again = cuda_mem.Buffer(1000, "u1", self.arena, stream)
        self.assertEqual(self.arena.stats().live_blocks, 1)
        del again

    def captured(self):
        """A stream, its driver, and the start and end of a capture."""
        driver = ctypes.CDLL(os.environ.get("CUDA_DRIVER_SYS_LIBRARY", DRIVER))
        context, stream, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.assertEqual(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), 0)
        self.assertEqual(driver.cuCtxSetCurrent(context), 0)
        self.assertEqual(driver.cuStreamCreate(ctypes.byref(stream), 1), 0)

        def begin():
            self.assertEqual(driver.cuStreamBeginCapture_v2(stream, 0), 0)

        def end():
            return driver.cuStreamEndCapture(stream, ctypes.byref(graph))

        self.addCleanup(end)
        return stream.value, begin, end

    def test_a_resource_frees_what_is_parked_before_it_goes(self):
        stream, begin, end = self.captured()
        below = cuda_mem.Arena()
        counting = cuda_mem.Statistics(below)
        buffer = cuda_mem.Buffer(1000, "u1", counting, stream)
        begin()
        del buffer
        gc.collect()
        end()
        self.assertEqual(below.stats().live_blocks, 1)
        del counting
        gc.collect()
        self.assertEqual(below.stats().live_blocks, 0)

    def test_a_resource_that_cannot_free_yet_says_so(self):
        stream, begin, end = self.captured()
        counting = cuda_mem.Statistics(cuda_mem.Arena())
        buffer = cuda_mem.Buffer(1000, "u1", counting, stream)
        begin()
        del buffer
        with self.assertWarnsRegex(RuntimeWarning, "memory is lost"):
            del counting
            gc.collect()
        end()

    def test_a_resource_goes_as_usual_if_warnings_are_errors(self):
        failed = cuda_mem.Error("a free that failed")
        failed.status, failed.had_no_effect = 999, False

        class Failing(cuda_mem.Statistics):
            released = []

            def deallocate(self, address, size, stream=None, **others):
                if not address:
                    raise failed
                super().deallocate(address, size, stream, **others)

            def _release(self, handle):
                self.released.append(handle)
                cuda_mem.Resource._release(handle)

        stream, begin, end = self.captured()
        below = cuda_mem.Arena()
        counting = Failing(below)
        buffer, handle = cuda_mem.Buffer(1000, "u1", counting, stream), counting.handle
        begin()
        del buffer
        gc.collect()
        end()
        # Before the one that can be freed now.
        counting._parked.insert(0, (0, 1000, 0, None, None, False))
        with warnings.catch_warnings(), unittest.mock.patch.object(sys, "unraisablehook") as told:
            warnings.simplefilter("error")
            del counting
            gc.collect()
        self.assertIn("a free that failed", str(told.call_args.args[0].exc_value))
        self.assertEqual((below.stats().live_blocks, Failing.released), (0, [handle]))

    @unittest.skipUnless(hasattr(os, "fork"), "there are no forks")
    def test_buffers_that_go_in_a_fork_are_the_parents(self):
        program = """
import gc, os, sys
import cuda_mem
arena = cuda_mem.Arena()
buffer, other = cuda_mem.Buffer(1000, "u1", arena), cuda_mem.Buffer(1000, "u1", cuda_mem.Statistics(cuda_mem.Pool()))
child = os.fork()
if child == 0:
    del buffer, other
    gc.collect()
    os._exit(len(arena._parked))
assert os.waitpid(child, 0)[1] == 0
assert arena.stats().live_blocks == 1
"""
        # Python warns of forks where there are threads, as the driver's are.
        python = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
        outcome = subprocess.run(python, capture_output=True, text=True, timeout=60)
        self.assertEqual((outcome.returncode, outcome.stderr), (0, ""))

    def test_types_and_shapes(self):
        self.assertEqual(cuda_mem.Buffer((), "c16", self.arena).nbytes, 16)
        self.assertEqual(cuda_mem.Buffer((0, 5), "f2", self.arena).to_bytes(), b"")
        for wrong in ("x4", "f3"):
            with self.assertRaises(TypeError):
                cuda_mem.Buffer(1, wrong, self.arena)
        for shape in (-1, (1 << 33, 1 << 31)):
            with self.assertRaises(ValueError):
                cuda_mem.Buffer(shape, "u1", self.arena)
        with self.assertRaises(TypeError):
            cuda_mem.Buffer((3.7,), "u1", self.arena)
        with self.assertRaises(ValueError):
            cuda_mem.Buffer(1, "u1", self.arena, stream=2)
        with self.assertRaises(cuda_mem.OutOfMemoryError):
            cuda_mem.Buffer(1 << 50, "u1", self.arena)


if __name__ == "__main__":
    unittest.main()
