"""One workload of PyTorch under one allocator; prints a line of JSON. `compare.py` runs them in turn.

    python workloads.py training --allocator arena
"""

import argparse
import json
import os
import random
import sys
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("workload", choices=["training", "parallel", "eager", "threads", "graph", "streams"])
parser.add_argument("--allocator", choices=["torch", "expandable", "async", "arena", "pool"], default="arena")
parser.add_argument("--steps", type=int)
parser.add_argument("--batch", type=int, default=12)
parser.add_argument("--cap", type=int, help="MiB that the allocator may hold")
parser.add_argument("--slack", type=float)
parser.add_argument("--growth-wait", type=float)
parser.add_argument("--record")
parser.add_argument("--wait", action="store_true", help="begin once a line comes, with PyTorch imported")
options = parser.parse_args()

settings = {"expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}
if options.allocator in settings:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = settings[options.allocator]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

if options.wait:
    sys.stdin.readline()

MIB = 1 << 20
cap = options.cap * MIB if options.cap else None
if options.allocator in ("arena", "pool"):
    import cuda_mem.torch

    if options.allocator == "arena":
        chosen = {"slack": options.slack, "growth_wait": options.growth_wait}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        cuda_mem.torch.use_arena(max_bytes=cap, record=options.record, **chosen)
    else:
        cuda_mem.torch.use_pool(max_bytes=cap, record=options.record)
elif cap:
    torch.cuda.set_per_process_memory_fraction(cap / torch.cuda.get_device_properties(0).total_memory)


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Gpt2(torch.nn.Module):
    """GPT-2 small."""

    def __init__(self, words=50257, places=1024, width=768, layers=12, heads=12):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(words, width), torch.nn.Embedding(places, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)


def parallel(steps):
    """The same on all devices, a process for each: `torchrun --nproc-per-node 2 workloads.py parallel`."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    yield from train(torch.nn.parallel.DistributedDataParallel(Gpt2().cuda()), steps)


def training(steps):
    """Trains GPT-2 small with sequences of 128 to 1024 tokens, in bf16."""
    torch.manual_seed(0)
    yield from train(Gpt2().cuda(), steps)


def train(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    lengths = random.Random(1)
    yield
    for _ in range(steps):
        length = lengths.randint(128, 1024)
        tokens = torch.randint(50257, (options.batch, length + 1), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def eager(steps):
    """Small operations, one after the other."""
    x = torch.randn(256, 256, device="cuda")
    yield
    for _ in range(steps):
        y = x * 2
        z = y + x
        z = torch.relu(z)
        x = z - y


def threads(steps):
    """Eight threads with a stream each, tensors of up to 2 MiB."""

    def serve(seed):
        sizes = random.Random(seed)
        kept = []
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(steps):
                kept.append(torch.empty(sizes.randint(1, 2 * MIB), dtype=torch.uint8, device="cuda").fill_(seed))
                if len(kept) > 16:
                    kept.pop(sizes.randrange(len(kept)))

    yield
    all_threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(8)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()


def graph(steps):
    """A captured training step, replayed."""
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU()) for _ in range(8))
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(512, 1024, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(captured):
        step()
    yield
    for _ in range(steps):
        captured.replay()


def streams(steps):
    """Tensors that a second stream also reads, with record_stream."""
    side = torch.cuda.Stream()
    sizes = random.Random(3)
    total = torch.zeros((), device="cuda")
    yield
    for _ in range(steps):
        x = torch.ones(sizes.randint(1, 4 * MIB), dtype=torch.uint8, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            total += x.max()
        x.record_stream(side)


STEPS = {"training": 100, "parallel": 60, "eager": 50_000, "threads": 4500, "graph": 1000, "streams": 5000}


def measure():
    steps = options.steps or STEPS[options.workload]
    workload = globals()[options.workload](steps)
    next(workload)
    torch.cuda.synchronize()
    start = time.perf_counter()
    failed = None
    try:
        next(workload, None)
        torch.cuda.synchronize()
    except (torch.OutOfMemoryError, RuntimeError) as error:
        failed = str(error).splitlines()[0][:200]
    seconds = time.perf_counter() - start
    found = torch.cuda.memory_stats()
    asked = found.get("requested_bytes.all.peak") or found["allocated_bytes.all.peak"]
    line = json.dumps(
        {
            "workload": options.workload,
            "allocator": options.allocator,
            "device": torch.cuda.current_device(),
            "cap": options.cap,
            "steps": steps,
            "seconds": round(seconds, 4),
            "asked": round(asked / MIB, 1),
            "reserved": round(found["reserved_bytes.all.peak"] / MIB, 1),
            "retries": found.get("num_alloc_retries", 0),
            "failed": failed,
        }
    )
    # In one piece with its end, because all ranks write to one pipe.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


measure()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
