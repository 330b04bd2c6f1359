#!/usr/bin/env python3
"""The peer of train: PyTorch's ResNet training step on synthetic data that is already on the GPU.

Forward, loss, backward and SGD with momentum of torchvision's ResNet, channels last, cuDNN's benchmark on, fused
optimizer, autocast in fp16 and bf16: each the faster of PyTorch's own settings. A configuration is
PRECISION:BATCH per GPU; a PRECISION that ends in g runs the step as one CUDA graph (with a static loss scale, which
can be captured), in c through torch.compile (mode reduce-overhead on one GPU; max-autotune still tuned ResNet-50's
convolutions after 200 s on an H100). Medians of --blocks windows of --steps steps
after --warmup steps. One JSON line per configuration, printed by rank 0: images/s over all ranks, GiB at the peak.

    python3 torch_resnet.py --configs fp16:256,fp16g:256,fp16c:256
    torchrun --nproc_per_node=2 torch_resnet.py        # DistributedDataParallel
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

WORLD = int(os.environ.get("WORLD_SIZE", 1))
RANK = int(os.environ.get("RANK", 0))
GPU = int(os.environ.get("LOCAL_RANK", 0))
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": None, "fp32": None}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", default="fp16:256,fp16g:256,fp16c:256,fp16:64,fp16g:64")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--steps", type=int, default=20, help="steps per window")
    parser.add_argument("--blocks", type=int, default=5, help="windows")
    parser.add_argument("--warmup", type=int, default=15)
    parser.add_argument("--bucket-mb", type=int, default=25)
    return parser.parse_args()


def network(options, compiled, graph):
    """The model, and what a step calls: the model itself, or DDP and torch.compile around it."""
    model = getattr(torchvision.models, options.model)().cuda().to(memory_format=torch.channels_last)
    called = model
    if WORLD > 1:
        side = torch.cuda.Stream()  # DDP's step can be captured only where DDP was built on a side stream
        with torch.cuda.stream(side if graph else torch.cuda.current_stream()):
            called = DistributedDataParallel(model, device_ids=[GPU], bucket_cap_mb=options.bucket_mb, gradient_as_bucket_view=True,
                                             broadcast_buffers=False, static_graph=not graph)
        torch.cuda.current_stream().wait_stream(side)
    if compiled:
        called = torch.compile(called, mode="reduce-overhead" if WORLD == 1 else "default")
    return model, called


def make_step(options, precision, batch, compiled, graph):
    dtype = DTYPES[precision]
    model, called = network(options, compiled, graph)
    rate = 1e-5 if graph and precision == "fp16" else 0.01
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, enabled=precision == "fp16")
    x = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (batch,), device="cuda")
    criterion = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            loss = criterion(called(x), y)
        if graph:
            (loss * (1024.0 if precision == "fp16" else 1.0)).backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss

    return step, optimizer


def captured(step, optimizer):
    """The step as one CUDA graph. Returns its replay and the loss that each replay writes."""
    optimizer.zero_grad(set_to_none=True)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(11):
            step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        loss = step()
    return graph.replay, loss


def wait():
    if WORLD > 1:
        dist.barrier()
    torch.cuda.synchronize()


def windows(options, run, images):
    """images/s of each window."""
    for _ in range(options.blocks):
        wait()
        start = time.perf_counter()
        for _ in range(options.steps):
            run()
        wait()
        yield options.steps * images / (time.perf_counter() - start)


def measure(options, config):
    name, batch = config.split(":")
    precision, compiled, graph = name.rstrip("cg"), name.endswith("c"), name.endswith("g")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    step, optimizer = make_step(options, precision, int(batch), compiled, graph)
    start = time.time()
    run, loss = captured(step, optimizer) if graph else (step, None)
    for _ in range(options.warmup):
        run()
    wait()
    warmup_s = time.time() - start
    rates = list(windows(options, run, int(batch) * WORLD))
    if loss is None:
        loss = step()
    return {"peer": "pytorch-" + torch.__version__, "gpu": torch.cuda.get_device_name(), "model": options.model, "world": WORLD,
            "precision": precision, "compiled": compiled, "graph": graph, "batch_per_gpu": int(batch),
            "images_per_s": round(statistics.median(rates), 1), "lo": round(min(rates), 1), "hi": round(max(rates), 1),
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2), "warmup_s": round(warmup_s, 1),
            "loss": round(float(loss.detach()), 3)}


def main():
    options = parse_options()
    torch.cuda.set_device(GPU)
    if WORLD > 1:
        dist.init_process_group("nccl", device_id=torch.device("cuda", GPU))
    torch.backends.cudnn.benchmark = True
    for config in options.configs.split(","):
        try:
            line = measure(options, config)
        except Exception as error:  # one configuration that does not fit leaves the others
            line = {"config": config, "error": str(error)[:300]}
        if RANK == 0:
            print(json.dumps(line), flush=True)
        torch.cuda.empty_cache()
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
