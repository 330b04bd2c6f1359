"""One fault in one tool: what was found, after how long, and whether the place that it names is the right one."""

import json
import os
import shutil
import subprocess
import time

KILLED_AFTER = 60  # seconds, of a tool that was stopped or whose time is over
TYPES = {"tf32": 32, "fp32": 32, "fp64": 64, "fp16": 16, "bf16": 16, "fp8": 16, "int8": 32}  # bits of a result


def model_of(capsule, name):
    """A model of what a capsule of bin/soak shows: in this type an element with these bits becomes that one. Throws ValueError
    where no re-run of the soak showed an element."""
    if "expected_bits" not in capsule or "found_bits" not in capsule:
        raise ValueError(f"{name}: has no expected_bits and found_bits, as no re-run was wrong")
    width = TYPES[capsule["type"]] // 4
    expected, found = (int(capsule[key], 16) for key in ("expected_bits", "found_bits"))
    return {"class": f"as in {name}", "source": capsule.get("algorithm", ""),
            "faults": [{"on": "product", "types": [capsule["type"]], "when": f"0x{expected:0{width}x}",
                        "flip": f"0x{expected ^ found:0{width}x}"}]}


def placed(line, model, truth):
    """Whether SM, warp and lane, as far as they are named, are those of the first wrong element; None: none is named, or the
    fault is in no unit."""
    units = [key for fault in model["faults"] for key in fault.get("unit", ())]
    named = [key for key in ("sm", "warp", "lane") if key in line and key in units]
    return all(line[key] == truth[key] for key in named) if named and truth else None


def inject(tool, file, seed, library, options, gpu):
    """Runs the tool with the fault, on the GPU of this number (None: whichever it takes); the fields of a record."""
    name = f"{tool.name}-{file.stem}-{seed}"
    output = options.output.resolve() / name
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    model, log = json.loads(file.read_text()), output / "faulty.json"
    preload = [f"LD_PRELOAD={library}", f"FAULTY_MODEL={file.resolve()}", f"FAULTY_SEED={seed}", f"FAULTY_LOG={log}"]
    said = output / "said.log"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu} if gpu is not None else None
    with open(said, "w") as out:
        job = subprocess.Popen(list(map(str, tool.command(preload, output))), cwd=tool.folder, stdout=out, stderr=out,
                               env=environment, start_new_session=True)
        found, at, code = watch(job, lambda: tool.found(said.read_text(errors="replace")), tool.end,
                                options.seconds if not tool.ends_itself else 2 * options.seconds + KILLED_AFTER)
    counts = json.loads(log.read_text()) if log.exists() else {}
    started = counts.get("started")
    line = {"class": model["class"], "model": file.name, "tool": tool.name, "seed": seed, "limit_s": options.seconds,
            "exit_code": code, "found": found is not None, "ran_s": at - started if started else 0}
    for key in ("products", "wrong_products", "flips", "copies", "collectives"):
        line[key] = counts.get(key, 0)
    if not started:
        line["void"] = f"no call was wrapped: see {name}/{said.name}"
    if found is not None:
        line["seconds"] = line["ran_s"]
        line["named"] = found.get("where") or found.get("cause", "")
        right = placed(found, model, counts.get("first"))
        if right is not None:
            line["placed"] = right
    if "first_flip_at" in counts:
        line["first_flip_s"] = counts["first_flip_at"] - started
    return line


def watch(job, found, end, seconds):
    """(what was found or None, the time of that or of the end, exit code)"""
    limit, result = time.time() + seconds, None
    while job.poll() is None and result is None and time.time() < limit:
        time.sleep(0.02)
        result = found()
    at = time.time()
    if job.poll() is None:
        os.killpg(job.pid, end)
        try:
            job.wait(KILLED_AFTER)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, 9)
    return result or found(), at, job.wait()


def text_of(line):
    """An injection as one line."""
    what = line.get("void") or (f"found after {line['seconds']:.3g} s: {line['named']}" if line["found"] else
                                f"not found in {line['ran_s']:.3g} s")
    place = {True: ", rightly placed", False: ", wrongly placed"}.get(line.get("placed"), "")
    return f"{line['tool']}: {line['class']}, seed {line['seed']}: {what}{place}; {line['flips']} flips, {line['products']} products"
