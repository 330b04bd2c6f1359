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


def everything():
    """Records of every kind that is drawn."""
    strategies = {"none": (1000, 30.0, 0, 0), "ddp": (970, 31.0, 0.8, 4.0),
                  "all-reduce": (880, 34.0, 4.0, 4.0),
                  "parameter-server": (450, 45.0, 15.0, 16.0)}
    records = []
    for ranks in (1, 2, 4, 8):
        for name, (rate, step_ms, exposed, alone) in strategies.items():
            workers = ranks - (name == "parameter-server")
            if workers < 1 or (ranks == 1 and name != "none"):
                continue
            served = {}
            if name == "parameter-server":
                served = {"push_ms": 7.0, "pull_ms": 9.0, "comm_ms": 16.0}
            records.append(step(name, rate * workers * 0.98 ** ranks, 0.01, world_size=ranks,
                                ranks_computing=workers, step_ms_p50=step_ms, **served))
            if ranks == 8:
                records.append(record(
                    "breakdown", name, world_size=8, compute_ms=step_ms - exposed - 1,
                    exposed_comm_ms=exposed, interference_ms=0.4, input_stall_ms=0,
                    optimizer_ms=0.5, residual_ms=0.1, step_ms=step_ms, comm_alone_ms=alone))
    records += [link_cost()]
    records += [prediction("ddp", 31, world_size=n, images_per_s_predicted=960 * n)
                for n in (8, 16, 32)]
    records += [winner("ddp" if gbs > 3 else "zero1", gbs, 0.02 * (gbs > 1), batch_size=batch)
                for batch in (64, 256) for gbs in (1, 10, 100)]
    records += [exchange("ddp", i, 3.0 - (i == 4), float(i == 4), world_size=8, repeat=n,
                         straggler_rank=i % 3) for n in (1, 2) for i in range(5)]
    for i, (name, best) in enumerate((("ddp", 0.91), ("all-reduce", 0.908),
                                      ("parameter-server", 0.905))):
        records += training(name, [best * (1 - 0.6 ** n) for n in range(1, 11)], 3500 - 800 * i)
    records += [link(a, b, 120 if (a, b) == (2, 5) else 300 + a - b, world_size=8,
                     latency_us=10 + a)
                for a in range(8) for b in range(8) if a != b]
    records += [collective(2 ** n, 10 + 2 ** n / 3e5, operation=name, world_size=8,
                           busbw_gbs=330 * 2 ** n / (2 ** n + 2 ** 22))
                for name in ("all_reduce", "all_gather") for n in range(10, 31, 2)]
    records += [{"kind": "health", "host": "n1", "index": gpu, "time": f"2026-11-21T16:{t // 60:02}:"
                 f"{t % 60:02}Z", "utilisation_percent": min(99, 4 * t), "memory_used_bytes": 2 ** 34,
                 "temperature_c": 40 + t / 4 + 5 * gpu, "power_w": 690 - gpu * t,
                 "sm_clock_mhz": 1980 - t, "reasons": "sw_power_cap" if t > 60 else ""}
                for gpu in range(4) for t in range(0, 120, 2)]
    return records
