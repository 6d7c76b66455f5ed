"""PyTorch over an arena and over a pool, on a GPU. Each test has a process of its own, because the allocator is chosen
once."""

import subprocess
import sys
import textwrap
import unittest

SETUP = """
import gc, sys, threading, warnings
import torch
import cuda_mem, cuda_mem.torch as over
def need(condition, *what):
    if not condition:
        raise SystemExit(f"failed: {what}")
"""


def run(program, use="over.use_arena()", fails=False):
    text = SETUP + use + "\n" + textwrap.dedent(program) + "\nprint('done')\n"
    outcome = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    shown = outcome.stdout + outcome.stderr
    if not fails and (outcome.returncode != 0 or not outcome.stdout.endswith("done\n")):
        raise AssertionError(f"exit status {outcome.returncode}:\n{shown}")
    return shown


BOTH = ("over.use_arena()", "over.use_pool()")
DEVICES = int(subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"], capture_output=True).stdout)


class Torch(unittest.TestCase):
    def test_tensors_and_statistics(self):
        for use in BOTH:
            shown = run(
                """
                need(over.is_used())
                x = torch.full((1000, 1000), 3.0, device="cuda")
                y = (x @ x).sum().item()
                need(abs(y / (9.0 * 1000**3) - 1) < 1e-5, y)
                need(torch.cuda.memory_allocated() >= 4_000_000, torch.cuda.memory_allocated())
                need(torch.cuda.memory_reserved() >= torch.cuda.memory_allocated())
                need("Allocated memory" in torch.cuda.memory_summary())
                peak = torch.cuda.max_memory_allocated()
                del x
                torch.cuda.reset_peak_memory_stats()
                need(torch.cuda.max_memory_allocated() < peak)
                gc.collect(); torch.cuda.empty_cache()
                need(over.stats()["allocated"] == over.memory_allocated())
                """,
                use,
            )
            self.assertNotIn("cuda-mem:", shown)

    def test_contents_under_streams_and_threads(self):
        for use in BOTH:
            run(
                """
                def work(seed, errors):
                    generator = torch.Generator().manual_seed(seed)
                    stream = torch.cuda.Stream()
                    kept = []
                    with torch.cuda.stream(stream):
                        for step in range(1500):
                            size = int(torch.randint(1, 1 << 18, (1,), generator=generator))
                            value = seed * 10_000 + step
                            kept.append((value, torch.full((size,), value, dtype=torch.int32, device="cuda")))
                            if len(kept) > 20:
                                place = int(torch.randint(0, len(kept), (1,), generator=generator))
                                value, tensor = kept.pop(place)
                                if not bool((tensor == value).all()):
                                    errors.append((seed, step))
                errors = []
                threads = [threading.Thread(target=work, args=(seed, errors)) for seed in range(8)]
                [thread.start() for thread in threads]; [thread.join() for thread in threads]
                need(not errors, errors)
                """,
                use,
            )

    RECORDED = """
        HOOK
        side = torch.cuda.Stream()
        wrong = 0
        for step in range(200):
            x = torch.full((1 << 20,), step, dtype=torch.int32, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(2_000_000)
                y = x + 1
            x.record_stream(side)
            del x
            other = torch.full((1 << 20,), -1, dtype=torch.int32, device="cuda")
            torch.cuda.current_stream().wait_stream(side)
            wrong += int((y != step + 1).any())
            del other
        print("wrong", wrong)
        """

    def test_record_stream_keeps_memory(self):
        for use in BOTH:
            shown = run(self.RECORDED.replace("HOOK", ""), use)
            self.assertIn("wrong 0\n", shown)

    def test_record_stream_matters(self):
        """The same program without the hook reads what others wrote."""
        hook = "over._allocator.allocator().set_record_stream_fn(NOTHING)"
        nothing = """
        import ctypes
        nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda block, stream: None)
        """
        hook = hook.replace("NOTHING", "ctypes.cast(nothing, ctypes.c_void_p).value")
        shown = run(self.RECORDED.replace("HOOK", textwrap.indent(textwrap.dedent(nothing), " " * 8).strip() + "\n        " + hook))
        self.assertIn("wrong ", shown)
        self.assertNotIn("wrong 0\n", shown)

    def test_a_graph_is_replayed(self):
        for use in BOTH:
            run(
                """
                model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
                optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
                x = torch.randn(64, 256, device="cuda")
                def step():
                    optimizer.zero_grad(set_to_none=True)
                    loss = model(x).square().mean()
                    loss.backward()
                    optimizer.step()
                    return loss
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(3):
                        step()
                torch.cuda.current_stream().wait_stream(side)
                before = {name: value.clone() for name, value in model.state_dict().items()}
                graph = torch.cuda.CUDAGraph()
                optimizer.zero_grad(set_to_none=True)
                with torch.cuda.graph(graph):
                    loss = step()
                need(over.stats()["graphs_reserved"] > 0)
                held = over.stats()["reserved"]
                others = []
                for replay in range(1000):
                    x.copy_(torch.randn(64, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(replay)))
                    graph.replay()
                    if replay % 50 == 0:
                        others.append(torch.full((1 << 18,), replay, dtype=torch.int32, device="cuda"))
                by_graph = loss.item()
                for place, tensor in enumerate(others):
                    need(bool((tensor == 50 * place).all()), place)
                # Eagerly the same.
                after = {name: value.clone() for name, value in model.state_dict().items()}
                model.load_state_dict(before)
                for replay in range(1000):
                    x.copy_(torch.randn(64, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(replay)))
                    eager = step()
                for name, value in model.state_dict().items():
                    need(torch.allclose(value, after[name], atol=1e-4), name)
                need(abs(eager.item() - by_graph) < 1e-4, eager.item(), by_graph)
                del loss, graph, eager
                optimizer.zero_grad(set_to_none=True)
                # The libraries' workspaces were allocated in the capture.
                torch._C._cuda_clearCublasWorkspaces()
                gc.collect(); torch.cuda.empty_cache()
                need(over.stats()["graphs_reserved"] == 0, over.stats())
                """,
                use,
            )

    def test_graphs_share_a_pool_and_fork(self):
        run(
            """
            x = torch.arange(1 << 16, device="cuda", dtype=torch.float32)
            side = torch.cuda.Stream()
            pool = torch.cuda.graph_pool_handle()
            graphs = []
            for power in range(1, 5):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    y = x * power
                    side.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(side):
                        z = y + 1
                        z.record_stream(side)
                        y.record_stream(side)
                    torch.cuda.current_stream().wait_stream(side)
                    out = y + z
                    del y, z
                graphs.append((graph, out))
            for power, (graph, out) in enumerate(graphs, 1):
                graph.replay()
                need(torch.equal(out, 2 * power * x + 1), power)
            """
        )

    def test_out_of_memory(self):
        program = """
        for step in range(3):
            try:
                x = torch.full((3 << 30,), 1, dtype=torch.uint8, device="cuda")
                need(False, "it was allocated")
            except torch.OutOfMemoryError as error:
                print("raised", error)
            except RuntimeError as error:
                print("other", error)
        need(over.stats()["failures"] == 3, over.stats())
        y = torch.ones(1000, device="cuda")
        need(y.sum().item() == 1000)
        """
        shown = run(program, "over.use_arena(max_bytes=1 << 30, shim=False)")
        self.assertEqual(shown.count("other CUDA out of memory. "), 3, shown)
        compiler = __import__("shutil").which("c++")
        if compiler:
            shown = run(program, "over.use_arena(max_bytes=1 << 30, shim=True)")
            self.assertIn("raised CUDA out of memory", shown)
        else:
            print("no C++ compiler: the library for PyTorch's errors is not tested")

    def test_fraction(self):
        run(
            """
            torch.cuda.set_per_process_memory_fraction(0.01)
            total = torch.cuda.get_device_properties(0).total_memory
            kept = [torch.empty(total // 1000, dtype=torch.uint8, device="cuda") for _ in range(5)]
            need(over.stats()["reserved"] <= total // 100)
            try:
                kept.append(torch.empty(total // 150, dtype=torch.uint8, device="cuda").fill_(1))
                need(False, "no limit")
            except RuntimeError:
                pass
            torch.cuda.set_per_process_memory_fraction(0.5)
            kept.append(torch.ones(total // 150, dtype=torch.uint8, device="cuda"))
            """
        )

    def test_empty_cache_gives_memory_back(self):
        for use in BOTH:
            run(
                """
                x = torch.ones(1 << 28, device="cuda")
                del x
                torch.cuda.empty_cache()
                need(over.stats()["reserved"] < 1 << 28, over.stats())
                """,
                use,
            )

    def test_a_capture_that_fails_is_forgotten(self):
        """PyTorch does not tell the end of a capture that failed."""
        for use in BOTH:
            shown = run(
                """
                import time
                x = torch.ones(1 << 20, device="cuda")
                graph = torch.cuda.CUDAGraph()
                try:
                    with torch.cuda.graph(graph):
                        y = x * 2
                        # The host may not wait in a capture.
                        y.sum().item()
                    need(False, "the capture did not fail")
                except RuntimeError as error:
                    print("raised")
                y = graph = None
                gc.collect()
                # From here on the end may be reported, for a second.
                torch.cuda.empty_cache()
                time.sleep(1.5)
                torch.cuda.empty_cache()
                need(over.stats()["graphs_reserved"] == 0, over.stats())
                again = torch.cuda.CUDAGraph()
                with torch.cuda.graph(again):
                    z = x * 3
                again.replay()
                need(bool((z == 3).all()))
                del x, z, again
                gc.collect(); torch.cuda.empty_cache()
                need(over.stats()["graphs_reserved"] == 0, over.stats())
                """,
                "import os; os.environ['CUDA_MEM_TEST_END_IS_REPORTED_IN'] = '1'\n" + use,
            )
            self.assertIn("raised\n", shown)

    def test_other_streams_go_on_beside_a_capture(self):
        """Of this thread and of another one, which allocate and free; a tensor ends that the captured stream has used."""
        for use in BOTH:
            run(
                """
                other, side = torch.cuda.Stream(), torch.cuda.Stream()
                x = torch.ones(1 << 20, device="cuda")
                with torch.cuda.stream(other):
                    used = torch.full((1 << 20,), 2.0, device="cuda")
                    spare = torch.empty(1 << 22, device="cuda")
                torch.cuda.synchronize()
                results = []
                def work(stream):
                    with torch.cuda.stream(stream):
                        for step in range(50):
                            kept = torch.full((1000 * (step + 1),), float(step), device="cuda")
                            results.append(kept)
                            if len(results) > 5:
                                results.pop(0)
                graph, captured = torch.cuda.CUDAGraph(), torch.cuda.Stream()
                used.record_stream(captured)
                with torch.cuda.graph(graph, stream=captured):
                    y = x * 2
                    del used, spare
                    work(other)
                    thread = threading.Thread(target=work, args=(side,))
                    thread.start(); thread.join()
                    y += 1
                graph.replay()
                need(bool((y == 3).all()))
                need(len(results) == 5 and bool((results[-1] == 49).all()), results)
                """,
                use,
            )

    def test_questions_do_not_start_cuda(self):
        """A process that has started CUDA cannot fork workers that use it."""
        run(
            """
            import os
            torch.cuda.memory_stats_as_nested_dict(); torch.cuda.reset_peak_memory_stats()
            need(over.memory_allocated() == 0 and over.stats()["allocated"] == 0, over.stats())
            need(not torch.cuda.is_initialized())
            child = os.fork()
            if child == 0:
                try:
                    os._exit(0 if torch.ones(1000, device="cuda").sum().item() == 1000 else 1)
                except BaseException as error:
                    print(error, file=sys.stderr)
                    os._exit(2)
            need(os.waitpid(child, 0)[1] == 0, "the child could not use the GPU")
            need(torch.ones(1000, device="cuda").sum().item() == 1000)
            """
        )

    @unittest.skipIf(DEVICES < 2, "needs two devices")
    def test_memory_of_another_device(self):
        run(
            """
            arena = cuda_mem.Arena(0)
            other = torch.cuda.Stream(device=1)
            try:
                cuda_mem.Buffer((8,), "f4", arena, other)
                need(False, "a stream of another device was taken")
            except ValueError as error:
                need("device 1" in str(error), error)
            there = torch.full((8,), 2.0, device="cuda:1")
            with torch.cuda.device(1):
                held = cuda_mem.Buffer.from_dlpack(there, other)
            need(held.__dlpack_device__()[1] == 1, held.__dlpack_device__())
            need(held.to_bytes() == there.cpu().numpy().tobytes())
            try:
                cuda_mem.Buffer.from_dlpack(there, torch.cuda.Stream(device=0))
                need(False, "an array of another device was taken")
            except (ValueError, BufferError) as error:
                need("device" in str(error), error)
            """,
            "",
        )

    def test_mem_pool(self):
        run(
            """
            for source in (cuda_mem.Pool(0), cuda_mem.Arena(0, max_bytes=1 << 30)):
                pool = over.mem_pool(source)
                with torch.cuda.use_mem_pool(pool):
                    x = torch.full((1 << 20,), 7, dtype=torch.int32, device="cuda")
                    need(bool((x == 7).all()))
                    if isinstance(source, cuda_mem.Arena):
                        need(source.stats().live >= 4 << 20, source.stats())
                        try:
                            torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
                            need(False, "more than the arena may have")
                        except torch.OutOfMemoryError as error:
                            pass
                    else:
                        need(source.stats().used >= 4 << 20, source.stats())
                del x
                del pool
                gc.collect()
            """,
            "",
        )

    def test_a_log_is_written(self):
        import gzip
        import pathlib
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "run.csv.gz"
            run(
                """
                for step in range(1000):
                    x = torch.empty(step + 1, device="cuda")
                """,
                f"over.use_arena(record={str(path)!r})",
            )
            lines = gzip.decompress(path.read_bytes()).decode().splitlines()
            self.assertEqual(lines[0], "Thread,Time,Action,Pointer,Size,Stream,Origin")
            self.assertGreaterEqual(sum(",allocate," in line for line in lines), 1000)

    def test_exchange(self):
        run(
            """
            arena = cuda_mem.Arena(0)
            buffer = cuda_mem.Buffer((3, 5), "f4", arena, torch.cuda.current_stream())
            there = torch.from_dlpack(buffer)
            need(there.shape == (3, 5) and there.data_ptr() == buffer.address)
            there.fill_(2.5)
            back = cuda_mem.Buffer.from_dlpack(there, torch.cuda.current_stream())
            need(back.to_bytes() == torch.full((3, 5), 2.5).numpy().tobytes())
            again = torch.as_tensor(buffer, device="cuda")
            need(again.data_ptr() == buffer.address)
            del there, buffer, back, again
            gc.collect()
            torch.cuda.synchronize()
            need(arena.stats().live == 0, arena.stats())
            """,
            "",
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
