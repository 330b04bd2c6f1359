"""Records made by hand, for the tests of results/report."""

STARTED = "2026-11-21T16:14:04Z"
IDENTITY = {"backend": "gpu", "model": "resnet50", "image_size": 224, "classes": 1000,
            "precision": "fp16", "batch_size": 64, "accumulate": 1, "world_size": 4,
            "optimizer": "sgd", "data": "synthetic"}


def header(**changes):
    return {"kind": "run", "program": "train", "started": STARTED, "host": "n1",
            "hosts": ["n1"] * 4, "gpu": "NVIDIA H200", "transport": "nccl", "world_size": 4,
            "git_revision": "abc1234", "driver": "580", **changes}


def record(kind, strategy, **figures):
    return {"kind": kind, **IDENTITY, "strategy": strategy, **figures}


def step(strategy, images_per_s, spread=None, **figures):
    if spread:
        figures = {"images_per_s_low": images_per_s * (1 - spread),
                   "images_per_s_high": images_per_s * (1 + spread),
                   "images_per_s_interval": "block_bootstrap_mean", **figures}
    return record("step", strategy, images_per_s=images_per_s, ranks_computing=figures.pop(
        "ranks_computing", figures.get("world_size", 4)), **figures)


def training(strategy, accuracies, images_per_s=1000, images=10000, data="photos", **figures):
    return [record("epoch", strategy, data=data, epoch=i, train_loss=2 / i, val_loss=2.5 / i,
                   val_top1=accuracy, validated_images=images, images_per_s=images_per_s,
                   epoch_s=50000 / images_per_s, input_stall_ms=100, **figures)
            for i, accuracy in enumerate(accuracies, 1)]


def breakdown(strategy, **terms):
    return record("breakdown", strategy, step_ms=sum(terms.values()), **terms)


def exchange(strategy, index, hidden_ms, exposed_ms=0.0, **figures):
    """A `bucket` record: exchanges of a ms, each half a ms after the one before."""
    start = 1.5 * index
    return record("bucket", strategy, **{
        "index": index, "exchange": "all_reduce", "bytes": 2 ** 20, "ready_ms": start,
        "launch_ms": start, "start_ms": start, "end_ms": start + hidden_ms + exposed_ms,
        "hidden_ms": hidden_ms, "exposed_ms": exposed_ms, "wait_ms": 0, "straggler_rank": 1,
        **figures})


def prediction(strategy, step_ms, **figures):
    return record("prediction", strategy, step_ms_predicted=step_ms, **{
        "images_per_s_predicted": 1000, "efficiency_predicted": 0.9, **figures})


def link_cost(path="ring", **figures):
    return {"kind": "link_cost", "path": path, "backend": "gpu", "world_size": 4, "alpha_us": 10,
            "bandwidth_gbs": 100, "worst_error": 0.05, **figures}


def winner(strategy, gbs, margin, **figures):
    return record("winner", strategy, bandwidth_gbs=gbs, second="fsdp", margin=margin, **figures)


def collective(size, time_us, spread=0.005, **figures):
    """An all_reduce of four ranks."""
    return {"kind": "collective", "operation": "all_reduce", "dtype": "float32", "bytes": size,
            "in_place": False, "launch_mode": "back_to_back", "transport": "nccl",
            "world_size": 4, "time_us_p50": time_us, "time_us_low": time_us * (1 - spread),
            "time_us_high": time_us * (1 + spread), "algbw_gbs": size / time_us / 1e3,
            "busbw_gbs": 1.5 * size / time_us / 1e3, "wrong_elements": 0, **figures}


def link(a, b, gbs, **figures):
    return {"kind": "link", "from": a, "to": b, "direction": "unidirectional",
            "concurrency": "alone", "bytes": 2 ** 26, "world_size": 4, "bandwidth_gbs": gbs,
            **figures}


def metric(name, unit, gpu, *samples, **more):
    return {"kind": "metric", "metric": name, "unit": unit, "scope": "gpu", "name": gpu, "hosts": ["n1"],
            "board": "NVIDIA H200", "samples": list(samples), **more}


def ladder(strategy, step_ms, exposed, serial_ms=None, **figures):
    """A `breakdown` record of eight ranks, with what overlap is compared with; 0.3 ms of the exposed time are waits."""
    return breakdown(strategy, compute_ms=step_ms - exposed - 1.25, exposed_comm_ms=exposed, interference_ms=0.5,
                     input_stall_ms=0.0, optimizer_ms=0.5, residual_ms=0.25) | {
        "world_size": 8, "none_step_ms": 30.0, "comm_alone_ms": 4.0, "comm_ms": exposed + 2.7, "hidden_comm_ms": 3.0,
        "residual": 0.008, **({"serial_step_ms": serial_ms, "interference_slowdown": 0.125} if serial_ms else {}), **figures}


def everything():
    """Records of every kind that is shown or drawn."""
    strategies = {"none": (1000, 30.0, 0), "ddp": (970, 31.0, 0.8), "zero1": (950, 31.5, 1.5), "fsdp": (940, 32.0, 2.0),
                  "all-reduce": (880, 34.0, 4.0), "parameter-server": (450, 45.0, 15.0), "peer": (960, 31.1, 0.9)}
    records = []
    for ranks in (1, 2, 4, 8):
        for name, (rate, step_ms, exposed) in strategies.items():
            workers = ranks - (name == "parameter-server")
            if workers < 1 or (ranks == 1 and name != "none"):
                continue
            served = {}
            if name == "parameter-server":
                served = {"push_ms": 7.0, "pull_ms": 9.0, "comm_ms": 16.0}
            gpus = {"sm_clock_mhz": [1980, 1750], "power_w": [650, 700], "temperature_c": [50, 61], "tflops_per_rank": 200.5,
                    "joules_per_image": 0.25, "throttle_reasons": ["", "sw_power_cap"], "peak_memory_bytes": [2 ** 33, 2 ** 32],
                    "bytes_source": "nvlink", "bytes_per_step_predicted": [100, 100], "bytes_per_step_counted": [105, 105],
                    "bytes_per_step_measured": [101, 110]} if ranks == 8 else {}
            records += [step(name, rate * workers * 0.98 ** ranks * (1 + 0.001 * at), 0.01, world_size=ranks, repeat=at + 1,
                             ranks_computing=workers, step_ms_p50=step_ms, **served, **gpus) for at in range(1 + (ranks == 8))]
    # ddp's rounds drift by more than its overlap saves, zero1's overlap costs, fsdp's rounds disagree.
    for name, *rounds in (("ddp", (31.25, 0.8, 33.75), (35.25, 0.8, 37.75)), ("zero1", (31.5, 1.5, 30.5)),
                          ("fsdp", (32, 2, 33), (36, 2, 35)), ("all-reduce", (34, 4)), ("parameter-server", (45, 15))):
        records += [ladder(name, *of, repeat=at) for at, of in enumerate(rounds, 1)]
    records += [breakdown("none", compute_ms=29.5, input_stall_ms=0.0, optimizer_ms=0.5, residual_ms=-0.001) | {
        "world_size": 8, "none_step_ms": 30.0, "comm_alone_ms": 0.01}]
    records += [step("ddp", 900, 0.01, setting="no-overlap", speedup_vs_plain=0.9, world_size=8),
                step("parameter-server-async", 3000, 0.01, world_size=8, ranks_computing=7, staleness_updates=[60, 30, 10])]
    records += [record("certificate", name, reference="all-reduce", world_size=8, **{"pass": True}) for name in ("ddp", "zero1")]
    records += [{"kind": "skipped", "strategy": "data-parallel", "world_size": n, "cause": "needs GPUs"} for n in (1, 2)]
    records += [link_cost(), link_cost("star", alpha_us=3.5, bandwidth_gbs=None, worst_error=0)]
    records += [prediction("ddp", 31, world_size=n, images_per_s_predicted=960 * n, extrapolated=n == 32)
                for n in (8, 16, 32)]
    records += [prediction("zero1", 30, world_size=8)]
    records += [record("advice", "ddp", world_size=8, change=f"change {i}", gain_percent=gain, extrapolated=gain == 5)
                for i, gain in enumerate((1.25, 30, 5, 0.5, 2, 4, 3))]
    records += [winner(name, gbs, margin, batch_size=batch, world_size=8) for batch in (64, 256) for name, gbs, margin in (
        ("zero1", 1, 0.0004), ("ddp", 10, 0.137), ("ddp", 100, 0.02))]
    records += [exchange("ddp", i, 3.0 - (i == 4), float(i == 4), world_size=8, repeat=n, wait_ms=0.06,
                         straggler_rank=3 * (i < 3), straggler_share=0.75) for n in (1, 2) for i in range(5)]
    for i, (name, best) in enumerate((("ddp", 0.91), ("all-reduce", 0.908),
                                      ("parameter-server", 0.875))):
        epochs = training(name, [best * (1 - 0.6 ** n) for n in range(1, 11)], 3500 - 800 * i)
        epochs[0].update(images_per_s=1000, epoch_s=50 + 150 * (i == 0), workers=1, stage_decode_ms=10, input_stall_ms=9000)
        records += epochs
    records += [link(a, b, 120 if (a, b) == (2, 5) else 300 + a - b, world_size=8,
                     latency_us=10 + a)
                for a in range(8) for b in range(8) if a != b]
    records += [{"kind": "split", "scope": "rail", "name": "3", "world_size": 2, "bytes": 2 ** 20, "busbw_gbs": 48.5}]
    records += [collective(2 ** n if n else 0, 10 + 2 ** n / 3e5, operation=name, world_size=8, launch_mode=mode,
                           busbw_gbs=330 * 2 ** n / (2 ** n + 2 ** 22))
                for name, mode, last in (("all_reduce", "back_to_back", 31), ("all_reduce", "graph", 27), ("all_gather", "graph", 31))
                for n in (0, *range(10, last, 2))]
    records += [metric("product/fp16/flop_per_cycle_sm", "FLOP/cycle/SM", gpu, value, value, None)
                for gpu, value in (("GPU-a", 4001), ("GPU-b", 4003))]
    records += [metric("product/fp16/clock_mhz", "MHz", "GPU-a", 1400), metric("memory/read", "GB/s", "GPU-a", None),
                metric("memory/copy", "GB/s", "GPU-a", 2900), metric("memory/copy", "GB/s", "GPU-b", 1000),
                metric("memory/copy", "GB/s", "GPU-b", 2800, look=2), metric("train/compute_ms", "ms", "GPU-a", 26),
                metric("train/compute_ms", "ms", "GPU-b", 27),
                {"kind": "found", "rates": "host_link", "metric": "m", "slow_down": 0.0381},
                {"kind": "verdict", "scope": "gpu", "name": "GPU-b", "verdict": "WARN", "cause": "slow in 1 of 2 looks"}]
    records += [record("layer", "none", layer=name, calls=2, time_ms=1.0 + at, flop=4e9, bytes=1e9, roof_ms=0.5, roof="memory",
                       copy_gbs=2000, matrix_tflops=100, step_ms=2.0, logged_step_ms=1.5, calls_ms=1.0, logged_steps=1,
                       copy_bytes=2 ** 30, matrix_size=8192, rest="copying the batch", forward_ms=0.25, backward_ms=0.75)
                for at, name in enumerate(("conv1", "fc"))]
    records += [{"kind": "health", "host": "n1", "index": gpu, "time": f"2026-11-21T16:{t // 60:02}:"
                 f"{t % 60:02}Z", "utilisation_percent": min(99, 4 * t), "memory_used_bytes": 2 ** 34,
                 "temperature_c": 40 + t / 4 + 5 * gpu, "power_w": 690 - gpu * t,
                 "sm_clock_mhz": 1980 - t, "reasons": "sw_power_cap" if t > 60 else ""}
                for gpu in range(4) for t in range(0, 120, 2)]
    return records
