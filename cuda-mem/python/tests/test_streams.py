"""Streams of other libraries, with stubs in the place of cuda.core and CuPy, on the simulated driver or a GPU."""

import ctypes
import gc
import os
import pathlib
import subprocess
import sys
import textwrap
import threading
import unittest
import weakref
from types import SimpleNamespace

import cuda_mem
from cuda_mem import _streams

DRIVER = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
STUBS = pathlib.Path(__file__).parent / "stubs"


class Stream:
    """As cuda.core's: it goes with its object, and another one may get the handle."""

    def __init__(self):
        cuda_mem.device_count()  # starts the driver
        self.driver = ctypes.CDLL(os.environ.get("CUDA_DRIVER_SYS_LIBRARY", DRIVER))
        context, handle = ctypes.c_void_p(), ctypes.c_void_p()
        assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert self.driver.cuCtxSetCurrent(context) == 0
        assert self.driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
        self.handle = handle.value

    def __cuda_stream__(self):
        return 0, self.handle

    def close(self):
        handle, self.handle = self.handle, None
        if handle:
            assert self.driver.cuStreamDestroy_v2(ctypes.c_void_p(handle)) == 0

    __del__ = close


class Streams(unittest.TestCase):
    def test_a_stream_stays_while_memory_is_remembered_for_it(self):
        def of_resource(arena, stream):
            arena.deallocate(arena.allocate(1000, stream), 1000, stream)

        def of_free(arena, stream):
            arena.deallocate(arena.allocate(1000), 1000, stream)

        def of_free_after_it(arena, stream):
            arena.deallocate(arena.allocate(1000), 1000, others=[stream])

        def of_buffer(arena, stream):
            cuda_mem.Buffer(1000, "u1", arena, stream)

        for use in (of_resource, of_free, of_free_after_it, of_buffer):
            arena, stream = cuda_mem.Arena(), Stream()
            use(arena, stream)
            there, handle = weakref.ref(stream), stream.handle
            del stream
            gc.collect()
            self.assertIsNotNone(there(), use)
            cuda_mem.detach(0, handle)
            gc.collect()
            self.assertIsNone(there(), use)

    @unittest.skipUnless(os.environ.get("CUDA_DRIVER_SYS_LIBRARY"), "calls are counted by the simulated driver")
    def test_a_detached_stream_is_forgotten(self):
        arena, stream = cuda_mem.Arena(), Stream()
        ended = threading.Event()

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def wait(_):
            ended.wait(20)

        first = arena.allocate(1000, stream)
        self.assertEqual(stream.driver.cuLaunchHostFunc(ctypes.c_void_p(stream.handle), wait, None), 0)
        arena.deallocate(first, 1000, stream)
        for detached in (False, True):
            if detached:
                cuda_mem.detach(0, stream)
            before = stream.driver.simcuda_calls_total()
            again = arena.allocate(1000, stream)
            # As a new stream with the same handle, it has to be ordered after the work before the free.
            self.assertEqual(stream.driver.simcuda_calls_total() > before, detached)
            arena.deallocate(again, 1000, stream)
        ended.set()
        # The callback ends before it goes.
        self.assertEqual(stream.driver.cuStreamSynchronize(ctypes.c_void_p(stream.handle)), 0)
        cuda_mem.detach(0, stream)
        cuda_mem.detach(0, None)
        with self.assertRaises(ValueError):
            cuda_mem.detach(-1, stream)
        stream.close()

    def test_a_stream_with_the_handle_of_a_closed_one_takes_its_place(self):
        first, second = SimpleNamespace(handle=0x1000), SimpleNamespace(handle=0x1000)
        _streams.handle_for(0, first)
        # Another object for the same stream, which may not be its owner.
        _streams.handle_for(0, SimpleNamespace(handle=0x1000))
        self.assertIs(_streams._kept[0, 0x1000], first)
        # It was closed without `detach`: still, the new one must not end.
        first.handle = None
        _streams.handle_for(0, second)
        self.assertIs(_streams._kept.pop((0, 0x1000)), second)

    def test_a_buffer_may_go_after_its_stream_was_detached(self):
        arena, stream = cuda_mem.Arena(), Stream()
        buffer = cuda_mem.Buffer(1000, "u1", arena, stream)
        cuda_mem.detach(0, stream)
        there, handle = weakref.ref(stream), stream.handle
        del stream, buffer
        gc.collect()
        # The memory is remembered for it again.
        self.assertEqual(arena.stats().live, 0)
        self.assertIsNotNone(there())
        cuda_mem.detach(0, handle)

    def test_a_buffer_of_others_keeps_its_stream(self):
        buffer, stream = cuda_mem.Buffer(10, "u1", cuda_mem.Arena()), Stream()
        there = weakref.ref(stream)
        taken = cuda_mem.Buffer.from_dlpack(buffer, stream)
        viewed = cuda_mem.Buffer.from_cuda_array_interface(buffer, stream)
        del stream
        gc.collect()
        self.assertIsNotNone(there())
        self.assertEqual((len(taken.to_bytes()), len(viewed.to_bytes())), (10, 10))


# For programs: a driver, streams, and work that does not end before `go` is set.
WORK = """
import ctypes, os, threading, time
import cuda_mem
cuda_mem.device_count()  # starts the driver
driver = ctypes.CDLL(os.environ["CUDA_DRIVER_SYS_LIBRARY"])
go = threading.Event()
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def wait(_):
    go.wait(20)
def enter():
    context = ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
def new_stream():
    stream = ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(stream), 0) == 0
    return stream.value
def fill(address, byte, stream):
    arguments = ctypes.c_uint64(address), ctypes.c_ubyte(byte), ctypes.c_size_t(1000), ctypes.c_void_p(stream)
    assert driver.cuMemsetD8Async(*arguments) == 0
def fill_late(address, byte, stream):
    assert driver.cuLaunchHostFunc(ctypes.c_void_p(stream), wait, None) == 0
    fill(address, byte, stream)
def contents(address, stream):
    time.sleep(0.2)  # for work that nothing holds up
    go.set()
    assert driver.cuCtxSynchronize() == 0
    data = (ctypes.c_char * 1000)()
    assert driver.cuMemcpyDtoH_v2(data, ctypes.c_uint64(address), ctypes.c_size_t(1000)) == 0
    return set(data.raw)
def begin(stream):
    assert driver.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 1) == 0
def end(stream):
    graph = ctypes.c_void_p()
    assert driver.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == 0
enter()
"""


def run(program, before=""):
    text = f"import sys\nsys.path.insert(0, {str(STUBS)!r})\n{before}{textwrap.dedent(program)}\nprint('done')\n"
    environment = {**os.environ, "CUDA_SIM_DEVICES": "2"}
    command = [sys.executable, "-c", text]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    if (outcome.returncode, outcome.stdout, outcome.stderr) != (0, "done\n", ""):
        raise AssertionError(f"exit status {outcome.returncode}:\n{outcome.stdout}{outcome.stderr}")


@unittest.skipUnless(os.environ.get("CUDA_DRIVER_SYS_LIBRARY"), "two devices are simulated")
class Devices(unittest.TestCase):
    def test_cupy_arrays_of_another_device_are_refused(self):
        run(
            """
            import cupy, cuda_mem, cuda_mem.cupy
            cupy.cuda.set_allocator(cuda_mem.cupy.allocator(cuda_mem.Arena(0)))
            kept = cupy.current.allocator(1000)
            cupy.current.device = 1
            try:
                cupy.current.allocator(1000)
                raise SystemExit("memory of device 0 for device 1")
            except ValueError as error:
                for part in ("device 1", "device 0", "use_arena()"):
                    assert part in str(error), error
            cuda_mem.cupy.use_arena()
            other = cupy.current.allocator(1000)
            assert cuda_mem.cupy.resource(1).device == 1
            """
        )

    def test_streams_of_another_device_are_refused(self):
        run(
            """
            from types import SimpleNamespace
            import cupy, cuda_mem, cuda_mem.core
            arena = cuda_mem.Arena(0)
            memory = cuda_mem.core.MemoryResource(arena)
            named = [
                SimpleNamespace(handle=0x1000, device=SimpleNamespace(device_id=1)),
                SimpleNamespace(cuda_stream=0x1000, device=SimpleNamespace(index=1)),
                # PyTorch has a default stream of each device.
                SimpleNamespace(cuda_stream=0, device=SimpleNamespace(index=1)),
                cupy.Stream(0x1000, 1),
            ]
            for stream in named:
                for resource in (memory, arena):
                    try:
                        resource.allocate(1000, stream=stream)
                        raise SystemExit("a stream of device 1")
                    except ValueError as error:
                        assert "device 1" in str(error) and "device 0" in str(error), error
            # One that names no device, or the right one, as default streams of no device do.
            for stream in (cupy.Stream(0), SimpleNamespace(handle=0, device=SimpleNamespace(device_id=0)), None):
                memory.allocate(1000, stream=stream).close()
            assert arena.stats().live == 0
            """
        )

    def test_streams_that_cannot_name_their_device_are_taken(self):
        run(
            """
            import ctypes, os
            import cuda.core, cuda_mem, cuda_mem.core
            arenas = cuda_mem.Arena(0), cuda_mem.Arena(1)
            # One object for all devices, which keeps the first that it is asked for.
            for default in (cuda.core.LEGACY_DEFAULT_STREAM, cuda.core.PER_THREAD_DEFAULT_STREAM):
                assert default.device.device_id == 0
                for arena in arenas:
                    cuda_mem.core.MemoryResource(arena).allocate(1000, stream=default).close()
            driver = ctypes.CDLL(os.environ["CUDA_DRIVER_SYS_LIBRARY"])
            context, handle = ctypes.c_void_p(), ctypes.c_void_p()
            assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == 0
            assert driver.cuCtxSetCurrent(context) == 0
            assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
            stream = cuda.core.Stream.from_handle(handle.value)
            try:
                stream.device
                raise SystemExit("a device")
            except ValueError:
                pass
            cuda_mem.core.MemoryResource(arenas[1]).allocate(1000, stream=stream).close()
            assert [arena.stats().live for arena in arenas] == [0, 0]
            """
        )

    def test_a_buffer_of_cuda_core_may_go_while_its_stream_is_captured(self):
        run(
            """
            import ctypes, os
            import cuda.core, cuda_mem, cuda_mem.core
            arena = cuda_mem.Arena(0)
            memory = cuda_mem.core.MemoryResource(arena)
            driver = ctypes.CDLL(os.environ["CUDA_DRIVER_SYS_LIBRARY"])
            context, handle, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
            assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert driver.cuCtxSetCurrent(context) == 0
            assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
            stream = cuda.core.Stream.from_handle(handle.value)
            buffer = memory.allocate(1000, stream=stream)
            assert driver.cuStreamBeginCapture_v2(handle, 0) == 0
            buffer.close()
            assert driver.cuStreamEndCapture(handle, ctypes.byref(graph)) == 0
            again = memory.allocate(1000, stream=stream)
            assert arena.stats().live_blocks == 1
            again.close()
            assert arena.stats().live_blocks == 0
            """
        )

    def test_a_stream_is_not_forgotten_while_a_block_waits_for_its_capture(self):
        run(
            """
            import cuda.core, cuda_mem, cuda_mem.core, ctypes, os
            pool = cuda_mem.Pool(0)
            memory = cuda_mem.core.MemoryResource(pool)
            driver = ctypes.CDLL(os.environ["CUDA_DRIVER_SYS_LIBRARY"])
            handle, graph, context = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
            assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert driver.cuCtxSetCurrent(context) == 0
            assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
            buffer = memory.allocate(1000, stream=cuda.core.Stream.from_handle(handle.value))
            assert driver.cuStreamBeginCapture_v2(handle, 0) == 0
            buffer.close()
            try:
                cuda_mem.detach(0, handle.value)
                raise SystemExit("forgotten, and the block will be freed on it")
            except cuda_mem.Error as error:
                assert error.status == 11 and error.had_no_effect, error
            assert driver.cuStreamEndCapture(handle, ctypes.byref(graph)) == 0
            cuda_mem.detach(0, handle.value)
            assert not pool._parked and pool.stats().used == 0, pool.stats()
            assert driver.cuStreamDestroy_v2(handle) == 0
            """
        )

    def test_a_free_of_cuda_core_on_a_wrong_stream_is_an_error(self):
        run(
            """
            import cuda.core, cuda_mem, cuda_mem.core
            checked = cuda_mem.Checked(cuda_mem.Arena(0), streams=True)
            buffer = cuda_mem.core.MemoryResource(checked).allocate(1000, stream=cuda.core.LEGACY_DEFAULT_STREAM)
            try:
                buffer.close(cuda.core.PER_THREAD_DEFAULT_STREAM)
                raise SystemExit("a free on a wrong stream")
            except cuda_mem.InvalidValueError as error:
                assert error.had_no_effect
            assert not checked._parked
            buffer.close()
            """
        )

    def test_a_block_that_cuda_core_refuses_is_freed(self):
        run(
            """
            import cuda.core, cuda_mem, cuda_mem.core
            def refuse(ptr, size, mr=None, stream=None):
                raise TypeError(f"{stream!r} is no stream")
            cuda.core.Buffer.from_handle = refuse
            arena = cuda_mem.Arena(0)
            try:
                cuda_mem.core.MemoryResource(arena).allocate(1000, stream=1)
                raise SystemExit("a number as a stream")
            except TypeError:
                pass
            assert arena.stats().live_blocks == 0
            """
        )

    def test_cuda_core_frees_a_block_of_another_threads_default_stream(self):
        run(
            """
            import cuda.core, cuda_mem.core
            memory = cuda_mem.core.MemoryResource(cuda_mem.Pool(0))
            stream, made = cuda.core.PER_THREAD_DEFAULT_STREAM, threading.Event()
            kept = []
            def work():
                enter()
                kept.append(memory.allocate(1000, stream=stream))
                fill_late(kept[0].handle, 7, 2)
                made.set()
                go.wait(20)
            threading.Thread(target=work, daemon=True).start()
            made.wait(20)
            threading.Timer(0.3, go.set).start()
            kept.pop().close()
            again = memory.allocate(1000, stream=stream)
            fill(again.handle, 9, 2)
            assert contents(again.handle, 2) == {9}
            """,
            WORK,
        )

    def test_cupy_frees_a_block_of_another_threads_default_stream(self):
        run(
            """
            import gc
            import cupy, cuda_mem.cupy
            cuda_mem.cupy.use_pool()
            cupy.current.stream = cupy.Stream(2)
            made = threading.Event()
            kept = []
            def work():
                enter()
                kept.append(cupy.current.allocator(1000))
                fill_late(kept[0].ptr, 7, 2)
                made.set()
                go.wait(20)
            threading.Thread(target=work, daemon=True).start()
            made.wait(20)
            threading.Timer(0.3, go.set).start()
            kept.clear()
            gc.collect()
            again = cupy.current.allocator(1000)
            fill(again.ptr, 9, 2)
            assert contents(again.ptr, 2) == {9}
            del again
            """,
            WORK,
        )

    def test_a_block_that_is_parked_stays_of_its_thread(self):
        run(
            """
            import cuda.core, cuda_mem.core
            pool = cuda_mem.Pool(0)
            memory = cuda_mem.core.MemoryResource(pool)
            stream, made = cuda.core.PER_THREAD_DEFAULT_STREAM, threading.Event()
            def work():
                enter()
                buffer = memory.allocate(1000, stream=stream)
                fill_late(buffer.handle, 7, 2)
                begin(2)
                buffer.close()
                end(2)
                made.set()
                go.wait(20)
            threading.Thread(target=work, daemon=True).start()
            made.wait(20)
            assert len(pool._parked) == 1
            threading.Timer(0.3, go.set).start()
            again = memory.allocate(1000, stream=stream)
            assert not pool._parked
            fill(again.handle, 9, 2)
            assert contents(again.handle, 2) == {9}
            """,
            WORK,
        )

    def test_blocks_of_numba_are_reused_after_its_streams(self):
        run(
            """
            import gc
            from types import SimpleNamespace
            from numba import cuda
            import cuda_mem.numba
            cuda_mem.numba.use_arena()
            manager = cuda.current.manager(context=SimpleNamespace(device=SimpleNamespace(id=0)))
            first, second = new_stream(), new_stream()
            block = manager.memalloc(1000)
            fill_late(block.device_pointer.value, 7, first)
            del block
            gc.collect()
            again = manager.memalloc(1000)
            fill(again.device_pointer.value, 9, second)
            assert contents(again.device_pointer.value, second) == {9}
            """,
            WORK,
        )

    def test_a_block_of_numba_may_go_while_a_stream_is_captured(self):
        run(
            """
            import gc
            from types import SimpleNamespace
            from numba import cuda
            import cuda_mem.numba
            cuda_mem.numba.use_arena()
            manager = cuda.current.manager(context=SimpleNamespace(device=SimpleNamespace(id=0)))
            stream = new_stream()
            block, empty = manager.memalloc(1000), manager.memalloc(0)
            begin(stream)
            del block, empty
            gc.collect()
            arena = cuda_mem.numba.resource(0)
            assert arena.stats().live_blocks == 1
            end(stream)
            again = manager.memalloc(1000)
            assert arena.stats().live_blocks == 1
            """,
            WORK,
        )

    def test_an_array_that_names_no_device_is_of_its_memorys(self):
        run(
            """
            from types import SimpleNamespace
            import cuda_mem
            kept = cuda_mem.Buffer(1000, "u1", cuda_mem.Arena(1))
            found = kept.__cuda_array_interface__
            of = lambda **changed: SimpleNamespace(__cuda_array_interface__={**found, **changed})
            take = cuda_mem.Buffer.from_cuda_array_interface
            assert take(of()).device == 1
            assert take(of(data=(kept.address + 10, False), shape=(10,))).device == 1
            assert take(of(data=(0, False), shape=(0,), stream=None)).device == 0
            try:
                take(of(data=(id(found), False)))
                raise SystemExit("memory that is not of a device")
            except cuda_mem.InvalidValueError:
                pass
            """
        )

    def test_other_streams_of_a_free_are_of_its_device(self):
        run(
            """
            from types import SimpleNamespace
            import cuda_mem
            arena = cuda_mem.Arena(0)
            block = arena.allocate(1000)
            for other in (
                SimpleNamespace(handle=0x1000, device=SimpleNamespace(device_id=1)),
                SimpleNamespace(cuda_stream=0, device=SimpleNamespace(index=1)),
            ):
                try:
                    arena.deallocate(block, 1000, others=[None, other])
                    raise SystemExit("a stream of device 1")
                except ValueError as error:
                    assert "device 1" in str(error) and "device 0" in str(error), error
            assert arena.stats().live_blocks == 1
            arena.deallocate(block, 1000, others=[None, 2])
            assert arena.stats().live_blocks == 0
            """
        )


if __name__ == "__main__":
    unittest.main()
