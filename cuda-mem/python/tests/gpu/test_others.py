"""CuPy, Numba and cuda.core over cuda-mem, on a GPU: a process for each test."""

import subprocess
import sys
import textwrap
import unittest


def run(program):
    text = textwrap.dedent(program) + "\nprint('done')\n"
    outcome = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    shown = outcome.stdout + outcome.stderr
    if outcome.returncode != 0 or not outcome.stdout.endswith("done\n"):
        raise AssertionError(f"exit status {outcome.returncode}:\n{shown}")
    return shown


class Cupy(unittest.TestCase):
    def test_arrays_of_several_streams(self):
        for use in ("use_arena()", "use_pool()"):
            run(
                f"""
                import random, threading
                import cupy, cuda_mem.cupy
                cuda_mem.cupy.{use}
                errors = []
                def work(seed):
                    choice = random.Random(seed)
                    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
                    kept = []
                    for step in range(600):
                        stream = choice.choice(streams)
                        with stream:
                            value = seed * 10_000 + step
                            kept.append((value, stream, cupy.full(choice.randint(0, 1 << 17), value, dtype=cupy.int32)))
                        if len(kept) > 12:
                            value, stream, array = kept.pop(choice.randrange(len(kept)))
                            with stream:
                                if not bool((array == value).all()):
                                    errors.append((seed, step))
                            # Freed on its own stream, whichever is current.
                            del array
                threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
                [thread.start() for thread in threads]; [thread.join() for thread in threads]
                assert not errors, errors
                assert cuda_mem.cupy.resource(0) is not None
                """
            )

    def test_streams_that_come_and_go(self):
        run(
            """
            import gc
            import cupy, cuda_mem, cuda_mem.cupy
            cuda_mem.cupy.use_arena()
            arena = cuda_mem.Arena(0)
            held = []
            for step in range(300):
                stream = cupy.cuda.Stream(non_blocking=True)
                with stream:
                    array = cupy.full(1 << 20, step, dtype=cupy.int32)
                    buffer = cuda_mem.Buffer((1 << 20,), "i4", arena, stream)
                    cupy.asarray(buffer)[...] = array
                    assert int(cupy.asarray(buffer)[step]) == step
                del array, buffer
                gc.collect()
                cuda_mem.detach(0, stream)
                del stream
                held.append(arena.stats().reserved)
            assert held[-1] == held[20], (held[20], held[-1])
            assert arena.stats().live == 0, arena.stats()
            """
        )

    def test_out_of_memory(self):
        run(
            """
            import cupy, cuda_mem.cupy
            cuda_mem.cupy.use_arena(max_bytes=64 << 20)
            try:
                cupy.zeros(128 << 20, dtype=cupy.uint8)
                raise SystemExit("no limit")
            except cupy.cuda.memory.OutOfMemoryError:
                pass
            assert int(cupy.arange(1000).sum()) == 499500
            """
        )

    def test_exchange(self):
        run(
            """
            import gc
            import cupy, cuda_mem
            arena = cuda_mem.Arena(0)
            stream = cupy.cuda.Stream(non_blocking=True)
            buffer = cuda_mem.Buffer((4, 6), "i4", arena, stream)
            buffer.copy_from(bytes(96))
            with stream:
                by_dlpack = cupy.from_dlpack(buffer)
                by_interface = cupy.asarray(buffer)
                by_dlpack += cupy.arange(24, dtype=cupy.int32).reshape(4, 6)
                assert by_interface.data.ptr == buffer.address
                back = cuda_mem.Buffer.from_dlpack(by_dlpack[1:3], stream)
                assert back.shape == (2, 6)
                column = cuda_mem.Buffer.from_cuda_array_interface(by_dlpack[:, 2], stream)
                assert column.__cuda_array_interface__["strides"] == (24,)
            assert list(back.to_bytes()) == list(memoryview(by_dlpack.get()[1:3].tobytes()))
            del buffer, by_dlpack, by_interface, back, column
            gc.collect()
            assert arena.stats().live == 0, arena.stats()
            """
        )


class Numba(unittest.TestCase):
    def test_arrays(self):
        run(
            """
            import numpy
            from numba import cuda
            import cuda_mem.numba
            cuda_mem.numba.use_arena()
            @cuda.jit
            def add(x, y):
                place = cuda.grid(1)
                if place < x.size:
                    x[place] += y[place]
            for size in (1, 1000, 100_000):
                x, y = cuda.to_device(numpy.arange(size)), cuda.to_device(numpy.ones(size, dtype=numpy.int64))
                add[(size + 127) // 128, 128](x, y)
                assert (x.copy_to_host() == numpy.arange(size) + 1).all()
            assert cuda_mem.numba.resource(0).stats().live > 0
            assert cuda.current_context().get_memory_info().total > 0
            del x, y
            """
        )


class Core(unittest.TestCase):
    def test_buffers(self):
        run(
            """
            import gc
            from cuda.core import Device
            import cuda_mem, cuda_mem.core
            device = Device(0)
            device.set_current()
            stream = device.create_stream()
            arena = cuda_mem.Arena(0)
            memory = cuda_mem.core.MemoryResource(arena)
            assert memory.device_id == 0 and memory.is_device_accessible and not memory.is_host_accessible
            buffers = [memory.allocate(size, stream=stream) for size in (1, 1000, 1 << 20)]
            assert arena.stats().live_blocks == 3
            first, second = memory.allocate(4096, stream=stream), memory.allocate(4096, stream=stream)
            first.fill(b"\\x07", stream=stream) if hasattr(first, "fill") else None
            second.copy_from(first, stream=stream)
            stream.sync()
            for buffer in buffers + [first, second]:
                buffer.close(stream)
            stream.sync()
            assert arena.stats().live == 0, arena.stats()
            """
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
