"""One fault in one tool: what was found, after how long, and whether the place that it names is the right one."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import time

MODELS = json.loads(pathlib.Path(__file__).with_name("models.json").read_text())
KILLED_AFTER = 300  # seconds, of a tool whose time is over
TYPES = {"tf32": 32, "fp32": 32, "fp64": 64, "fp16": 16, "bf16": 16, "fp8": 16, "int8": 32}  # bits of a result
# What bin/soak's verdicts say of where an error is; an SM by its number where it names one.
PLACES = {"unit": r"stays at its place of the launch|(?:SM|core) (?P<sm>\d+): right without it",
          "memory": r"element \d+,\d+ in memory|sticks to the memory of C",
          "everywhere": r"follows the data|wherever it is computed"}


def model_of(capsule, name):
    """A model of what a capsule of bin/soak shows: the bits that were wrong, in this type, as often as the re-runs were; in one lane,
    or, where the error followed the data, wherever the right bits are the capsule's. Throws ValueError where no re-run showed an
    element."""
    if "expected_bits" not in capsule or "found_bits" not in capsule:
        raise ValueError(f"{name}: has no expected_bits and found_bits, as no re-run was wrong")
    width = TYPES[capsule["type"]] // 4
    expected, found = (int(capsule[key], 16) for key in ("expected_bits", "found_bits"))
    seen = capsule["circumstances"]
    fault = {"on": "product", "types": [capsule["type"]], "flip": f"0x{expected ^ found:0{width}x}"}
    if re.search(PLACES["everywhere"], seen.get("cause", "")):
        fault["when"] = f"0x{expected:0{width}x}"
    else:
        fault["unit"] = {"sm": None, "warp": None, "lane": None}
    if 0 < seen.get("reproduced", 0) < seen["repeats"]:
        fault["rate"] = seen["reproduced"] / seen["repeats"]
    return {"class": f"as in {name}", "source": capsule["algorithm"], "faults": [fault]}


def place_of(fault):
    if fault["on"] == "product":
        return "unit" if "unit" in fault else "everywhere"
    return fault["on"]


def placed(line, model, truth, ranks=1):
    """Whether what is named is where the fault is: on the last one of several ranks; in a unit (and on which SM, if that is named), in
    memory, or everywhere. None: nothing is named."""
    names_rank = ranks > 1 and line.get("kind") == "mismatch"
    if names_rank and line["rank"] != ranks - 1:
        return False
    said = f"{line.get('where', '')} {line.get('cause', '')}"
    for place, pattern in PLACES.items():
        if named := re.search(pattern, said):
            right_sm = place != "unit" or named["sm"] is None or not truth or int(named["sm"]) == truth["sm"]
            return right_sm and place in {place_of(fault) for fault in model["faults"]}
    return names_rank or None


def inject(tool, model_name, model, seed, library, options, gpu):
    """Runs the tool with the fault, on the GPU of this number (None: whichever it takes); the fields of a record."""
    name = f"{tool.name}-{model_name}-{seed}"
    output = options.output.resolve() / name
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    file, log = output / "model.json", output / "faulty.json"
    file.write_text(json.dumps(model))
    preload = [f"LD_PRELOAD={library}", f"FAULTY_MODEL={file}", f"FAULTY_SEED={seed}", f"FAULTY_LOG={log}"]
    said = output / "said.log"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu} if gpu is not None else None
    with open(said, "w") as out:
        job = subprocess.Popen(list(map(str, tool.command(preload, output))), cwd=tool.folder, stdout=out, stderr=out,
                               env=environment, start_new_session=True)
        found, at, over, code = watch(job, lambda: tool.found(said.read_text(errors="replace")), tool.end,
                                      options.seconds if not tool.ends_itself else 2 * options.seconds + KILLED_AFTER)
    counts = json.loads(log.read_text()) if log.exists() else {}
    started = counts.get("started")
    line = {"class": model["class"], "model": f"{model_name}.json", "tool": tool.name, "seed": seed, "limit_s": options.seconds,
            "exit_code": code, "found": found is not None, "ran_s": at - started if started else 0}
    if options.ranks > 1:
        line["ranks"] = options.ranks
    for key in ("products", "wrong_products", "flips", "copies", "collectives"):
        line[key] = counts.get(key, 0)
    why = ("no call was wrapped" if not started else "" if found is not None else
           "it did not come to its end" if over and tool.ends_itself else
           f"it ended with exit code {code}" if not over and code not in (0, 1, 3) else "")  # 3: inconclusive
    if why:
        line["void"] = f"{why}: see {name}/{said.name}"
    if found is not None:
        line["seconds"] = line["ran_s"]
        line["named"] = found.get("where") or found.get("cause", "")
        right = placed(found, model, counts.get("first"), options.ranks)
        if right is not None:
            line["placed"] = right
    if "first_flip_at" in counts:
        line["first_flip_s"] = counts["first_flip_at"] - started
    return line


def placements(tool, library, options):
    """Runs the tool without a fault; where the blocks of its kernels ran, by libplacement.so: a dictionary per kernel."""
    output = options.output.resolve() / f"{tool.name}-placement"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    log = output / "placement.jsonl"
    with open(output / "said.log", "w") as out:
        job = subprocess.Popen(list(map(str, tool.command([f"LD_PRELOAD={library}", f"PLACEMENT_LOG={log}"], output))),
                               cwd=tool.folder, stdout=out, stderr=out, start_new_session=True)
        watch(job, lambda: None, tool.end, 2 * options.seconds + KILLED_AFTER)
    type_of = {"type": options.type} if tool.name == "loop" else {}  # a kernel's name has it, the library's own way
    return [{"tool": tool.name, **type_of, **json.loads(line)} for line in log.read_text().splitlines()] if log.exists() else []


def watch(job, found, end, seconds):
    """(what was found or None, the time of that or of the end, whether it was stopped as its time was over, exit code)"""
    limit, result = time.time() + seconds, None
    while job.poll() is None and result is None and time.time() < limit:
        time.sleep(0.02)
        result = found()
    at, over = time.time(), result is None and job.poll() is None
    for sent, patience in (end, 2 if result else KILLED_AFTER), (end, 10), (9, None):  # launch/mpi: the second one kills
        if job.poll() is None:
            os.killpg(job.pid, sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(patience)
    return result or found(), at, over, job.wait()


def text_of(line):
    """An injection as one line."""
    what = line.get("void") or (f"found after {line['seconds']:.3g} s: {line['named']}" if line["found"] else
                                f"not found in {line['ran_s']:.3g} s")
    place = {True: ", rightly placed", False: ", wrongly placed"}.get(line.get("placed"), "")
    return f"{line['tool']}: {line['class']}, seed {line['seed']}: {what}{place}; {line['flips']} flips, {line['products']} products"
