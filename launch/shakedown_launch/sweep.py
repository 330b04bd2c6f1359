"""launch/variants --sweep: collective_perf with each of NCCL's algorithms and protocols, in launches of its own since NCCL
reads NCCL_ALGO and NCCL_PROTO once per process: which are wrong, what NCCL chose, and what would have been faster."""

import collections
import glob
import math
import os
import random
import re
import statistics

from reporting.words import size

from . import mpi, places, records
from .command import UsageError
from .job import RUNNING, Stopped
from .words import in_columns

FUNCTIONS = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
             "broadcast": "Broadcast", "reduce": "Reduce"}  # those that NCCL has algorithms for
WIDTHS = {"float64": 8, "int64": 8, "uint64": 8, "float32": 4, "int32": 4, "uint32": 4, "float16": 2, "bfloat16": 2}
CHOSEN, DEFAULT = "chosen", "default"  # the launch that logs, and those without NCCL_ALGO
NOT_AVAILABLE = "No algorithm/protocol available"
MISSED = 0.001  # chance at which a share of launches counts as found
BLAMED = 0.001  # of Fisher's exact test
REGRET = 0.05  # named above
CONFIRMED = 2  # combinations, those that seem to gain most
CONFIRMATIONS = 10  # launches each of the default and of what seemed better, alternately
LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING"}

Launch = collections.namedtuple("Launch", "operation combination number code path said")


# ---- what NCCL says ----

def available(log):
    """{(function, algorithm, protocol)} that NCCL's own table gives a bandwidth: naming LL128 overrides where it is safe."""
    found, algorithms, protocols = set(), [], []
    for line in log.splitlines():
        head, _, cells = line.partition("|")
        cells = [cell.split() for cell in cells.split("|")[:-1]]
        name = head.split()[-1] if head.split() else ""
        if name == "Algorithm":
            algorithms = [cell[0] for cell in cells if cell]
        elif name == "Protocol":
            protocols = [cell[0] for cell in cells]
        elif name in FUNCTIONS.values() and algorithms and protocols:
            columns = [(algorithms[i // 3], protocol) for i, protocol in enumerate(protocols) if i // 3 < len(algorithms)]
            for column, cell in zip(columns, cells):
                _, _, bandwidth = "".join(cell).partition("/")
                if re.fullmatch(r"[\d.]+", bandwidth) and float(bandwidth) > 0:
                    found.add((name, *column))
    return found


def choices(log):
    """{(function, bytes): "Ring Simple"} of rank 0's log."""
    spelled = re.findall(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)", log)
    return {(function, int(count)): f"{capital(algorithm)} {protocol if protocol.startswith('LL') else capital(protocol)}"
            for function, count, algorithm, protocol in spelled}


def capital(word):
    """RING as Ring; NVLS and PAT stay."""
    return word if word in ("NVLS", "PAT") else word.capitalize()


def settings(combination):
    """{variable: value} of "Ring LL", of "8 channels" or of the default."""
    if combination in (CHOSEN, DEFAULT) or combination[0].isdigit():
        return {}
    return dict(zip(("NCCL_ALGO", "NCCL_PROTO"), combination.split()))


def options(combination):
    """collective_perf's, which configure its communicator: of "8 channels"."""
    return ["--ctas", combination.split()[0]] if combination[0].isdigit() else []


# ---- the launches ----

def run(what, environ, path, timeout):
    """The job's result; its record and its output are PATH.jsonl and PATH.log."""
    job = mpi.job(what._replace(words=[*what.words, "--record", f"{path}.jsonl"]), environ, log=f"{path}.log", shown=False,
                  limit=timeout)
    job.start()
    job.wait()
    return job.result


class Sweep:
    def __init__(self, what, folder, environ, timeout):
        self.what, self.folder, self.environ, self.timeout = what, folder, environ, timeout
        self.launches = []

    def run(self, operation, combination, number, more=(), log=False):
        """The Launch; None where the sweep is being stopped."""
        path = os.path.join(self.folder, f"{operation}-{combination.replace(' ', '-')}-{number}")
        environ = {**self.environ, **settings(combination), "NCCL_DEBUG_FILE": f"{path}.nccl.%h.%p",
                   **(LOG if log else {"NCCL_DEBUG": "WARN"})}
        words = [*self.what.words, "--operation", operation, *options(combination), *more]
        result = run(self.what._replace(words=words), environ, path, self.timeout)
        said = "\n".join(places.text_of(file) or "" for file in [f"{path}.log", *sorted(glob.glob(f"{glob.escape(path)}.nccl.*"))])
        launch = Launch(operation, combination, number, 3 if result.late else result.code, path, said)
        if RUNNING.stopped:
            raise Stopped
        self.launches.append(launch)
        return launch


def operations_of(words):
    """Those that collective_perf is to measure and that have algorithms; the other words."""
    named, rest, words = ["all_reduce"], [], list(words)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in ("--operation", "--operations"):
            named = (value if equals else words.pop(0) if words else "").split(",")
        else:
            rest.append(word)
    if "all" in named:
        named = list(FUNCTIONS)
    for name in named:
        if name not in FUNCTIONS:
            raise UsageError(f"--sweep: --operation {name}: NCCL has no choice of algorithm for it; it has for {', '.join(FUNCTIONS)}")
    return list(dict.fromkeys(named)), rest


def times(launch):
    """{(dtype, bytes, bytes of the call): us} of a launch's record, out of place where there is such a form."""
    lines = [line for line in records.read(f"{launch.path}.jsonl") if line.get("kind") == "collective"]
    lines = [line for line in lines if not line["in_place"]] or lines
    return {(line["dtype"], line["bytes"], line["count"] * WIDTHS.get(line["dtype"], 1)):
            line["time_us_p50"] for line in lines}


def is_wrong(launch):
    """By wrong data, a crash or a hang; not by what NCCL does not have, nor by a rate that nothing judges."""
    if launch.code == 2 or NOT_AVAILABLE in launch.said:
        return False
    lines = records.read(f"{launch.path}.jsonl")
    return any(line.get("wrong_elements") or line["kind"] == "failure" for line in lines) or \
        all(line["kind"] != "end" for line in lines)


def fisher(failed, of, others_failed, of_others):
    """The chance that a group of launches alike the others has this many failures or more (hypergeometric)."""
    total, bad = of + of_others, failed + others_failed
    return sum(math.comb(bad, k) * math.comb(total - bad, of - k) for k in range(failed, min(of, bad) + 1)) / math.comb(total, of)


def found_share(launches):
    """The share of wrong launches that this many launches miss with a chance of MISSED."""
    return 1 - MISSED ** (1 / launches)


def launches_to_find(share):
    """How many launches miss a fault in this share of them with a chance of MISSED."""
    return math.ceil(math.log(MISSED) / math.log(1 - share))


def found_text(launches):
    return f": a fault in {100 * found_share(launches):.0f} % of launches is missed once in {1 / MISSED:,.0f}" if launches > 1 else ""


def interval(values, resamples=2000):
    """95 % bootstrap interval of the median."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples) - 1]


# ---- what came of it ----

def medians(launches):
    """{combination: {key: median us over its launches}} of launches that are right."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for launch in launches:
        for key, time in times(launch).items() if not is_wrong(launch) else ():
            found[launch.combination][key].append(time)
    return {combination: {key: statistics.median(each) for key, each in keys.items()} for combination, keys in found.items()}


def best(of_combination):
    """{key: (combination, us)}: the fastest of those that were set."""
    found = {}
    for combination, keys in of_combination.items():
        for key, time in keys.items() if combination != DEFAULT else ():
            if key not in found or time < found[key][1]:
                found[key] = combination, time
    return found


def table(operation, launches, chosen):
    """Rows: size, what NCCL chose and its time, each combination's time, the regret."""
    of_combination = medians(launches)
    fastest = best(of_combination)
    named = [each for each in dict.fromkeys(launch.combination for launch in launches) if each != DEFAULT and each in of_combination]
    yield operation, "NCCL chose", "us", *named, "regret"
    for key, time in of_combination.get(DEFAULT, {}).items():
        other, least = fastest.get(key, (None, None))
        regret = f"{100 * (time - least) / least:.0f} %: {other}" if least and time > least * (1 + REGRET) else ""
        yield (f"{key[0]} {size(key[1])}", chosen.get((FUNCTIONS[operation], key[2]), "-"), f"{time:.4g}",
               *(f"{of_combination[each][key]:.4g}" if key in of_combination[each] else "-" for each in named), regret)


def candidates(launches):
    """Combinations that seem faster than the default somewhere by more than REGRET, the best first."""
    of_combination = medians(launches)
    gains = {}
    for key, (combination, least) in best(of_combination).items():
        time = of_combination.get(DEFAULT, {}).get(key)
        if time and time > least * (1 + REGRET):
            gains[combination] = max(gains.get(combination, 0), time / least)
    return sorted(gains, key=gains.get, reverse=True)


def confirmed(launches, combination):
    """Lines: where the combination is faster than the default in launches next to one another."""
    pairs = collections.defaultdict(list)
    of = {each: [times(launch) for launch in launches if launch.combination == each and not is_wrong(launch)]
          for each in (DEFAULT, combination)}
    for default, other in zip(of[DEFAULT], of[combination]):
        for key in default.keys() & other.keys():
            pairs[key].append(default[key] / other[key] - 1)
    for key, regrets in sorted(pairs.items()):
        low, high = interval(regrets)
        if statistics.median(regrets) > REGRET and low > 0:
            yield (f"{key[0]} {size(key[1])}: NCCL's choice takes {100 * statistics.median(regrets):.0f} % longer than "
                   f"{combination} ({100 * low:.0f} to {100 * high:.0f} %, {len(regrets)} pairs of launches)")


def blame(launches, wrong=is_wrong):
    """Lines: which combination is wrong more often than the others are, or is wrong at all."""
    failed = collections.Counter(launch.combination for launch in launches if wrong(launch))
    of = collections.Counter(launch.combination for launch in launches)
    for combination, count in failed.items():
        others = {each: of[each] for each in of if each != combination}
        chance = fisher(count, of[combination], sum(failed[each] for each in others), sum(others.values()))
        verdict = "FAIL" if chance < BLAMED else "WARN"
        yield (f"{verdict} {combination}: {count} of {of[combination]} launches wrong, of the others "
               f"{sum(failed[each] for each in others)} of {sum(others.values())}: by chance in {100 * chance:.2g} % of cases")


# ---- the command ----

def plan(log, operation, environ):
    """The combinations of an operation, LL128 where NCCL's table has it, NVLS where that has it and it is not forbidden."""
    order = {"Ring": 0, "Tree": 1}
    nvls = environ.get("NCCL_NVLS_ENABLE") != "0"
    found = {(algorithm, protocol) for function, algorithm, protocol in available(log)
             if function == FUNCTIONS[operation] and (nvls or not algorithm.startswith("NVLS"))}
    return [f"{algorithm} {protocol}" for algorithm, protocol in sorted(found, key=lambda each: (order.get(each[0], 2), *each))]


def sweep(what, folder, environ, channels, launches, timeout, write):
    """The exit code: 1 for wrong data, a crash or a hang; 3 where nothing could be compared."""
    operations, words = operations_of(what.words)
    runs = Sweep(what._replace(words=words), folder, environ, timeout)
    worst, compared = 0, True
    for operation in operations:
        first = runs.run(operation, CHOSEN, 0, ("--iterations", "1", "--warmup", "1", "--repeats", "1"), log=True)
        if first.code == 2:
            write(first.said.strip())
            return 2
        combinations = plan(first.said, operation, environ)
        if not combinations:
            write(f"{operation}: NCCL logged no table of algorithms (one rank, another transport, or a tuner plugin): {first.path}.log")
            compared = False
            continue
        combinations += [f"{count} channels" for count in channels]
        total = launches * (1 + len(combinations))
        write(f"{operation}: {', '.join(combinations)}; {launches} launches of each and of the default, {total} in all, and at most "
              f"{2 * CONFIRMED * CONFIRMATIONS + (total if launches > 1 else 0)} to confirm{found_text(launches)}")

        def rounds(numbers):
            return [runs.run(operation, combination, number) for number in numbers for combination in (DEFAULT, *combinations)]
        done = rounds(range(launches))
        if launches > 1 and any(line.startswith("WARN") for line in blame(done)):
            write("wrong, but not yet more often than by chance: as many launches again")
            done += rounds(range(launches, 2 * launches))
        for line in in_columns(table(operation, done, choices(first.said))):
            write(line)
        missing = [each.combination for each in done if NOT_AVAILABLE in each.said]
        if missing:
            write(f"not available: {', '.join(dict.fromkeys(missing))}")
        empty = [each.combination for each in done if each.combination not in missing and not is_wrong(each) and not times(each)]
        if empty:
            write(f"no figures, see {folder}: {', '.join(dict.fromkeys(empty))}")
        for place, combination in enumerate(candidates(done)[:CONFIRMED]):
            again = [runs.run(operation, each, f"again{place}.{number}")
                     for number in range(CONFIRMATIONS) for each in (DEFAULT, combination)]
            done += again
            by_chance = f"{combination}: not faster in {CONFIRMATIONS} more pairs of launches: its regret above is by chance"
            for line in list(confirmed(again, combination)) or [by_chance]:
                write(line)
        for line in blame(done):
            write(line)
            worst = 1
        compared = compared and not empty and DEFAULT in medians(done)
    return worst or (0 if compared else 3)
