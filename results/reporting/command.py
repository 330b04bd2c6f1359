"""The command line of results/report."""

import argparse
import errno
import os
import pathlib
import sys
import time
import traceback

from . import against, exports, sentences, tables, text, words
from .page import render_page
from .reading import read_runs
from .records import UsageError
from .summary import Summary

TITLE = "Shakedown: performance report"
PASS, USAGE, INCONCLUSIVE, INTERNAL = 0, 2, 3, 4
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
PACKAGES = {"matplotlib": ("plots", "python3-matplotlib"),
            "jinja2": ("HTML page", "python3-jinja2")}


def parse(usage, arguments):
    parser = argparse.ArgumentParser(prog="results/report", description=usage, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help=".jsonl files or folders of them")
    parser.add_argument("--output", metavar="DIR", type=pathlib.Path,
                        help="where to write (default: report-<time> in SHAKEDOWN_RUNS, or in "
                             "runs/ of the current folder)")
    parser.add_argument("--against", metavar="OLD", help="compare RUN (NEW) with this run instead")
    parser.add_argument("--threshold", metavar="PERCENT", type=float, default=3,
                        help="with --against: slower by more is a regression (default 3)")
    options = parser.parse_args(arguments)
    if not 0 <= options.threshold < 100:
        raise UsageError(f"--threshold {options.threshold:g}: percent, from 0 to less than 100")
    return options


def machine_lines(runs):
    """Who measured, when, with what: one line for each kind of machine, then the versions."""
    started = sorted(run.header["started"] for run in runs if run.header.get("started"))
    lines = []
    for machine in sorted({run.machine for run in runs}):
        of = [run for run in runs if run.machine == machine]
        hosts = sorted({host for run in of for host in
                        run.header.get("hosts") or [run.header.get("host", "host unknown")]})
        hosts = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
        lines.append(f"{machine}, on {hosts}")
    if started:
        lines.append(f"measured {started[0]}" +
                     (f" to {started[-1]}" if started[-1] != started[0] else ""))
    versions = version_words(runs)
    return lines + ([versions] if versions else [])


def version_words(runs):
    """Of what ran: `versions.NAME_built`, what it was compiled with, is left out."""
    found = {"git_revision": set(), "driver": set()}
    for run in runs:
        for key, value in run.header.items():
            if key in found or key.startswith("versions.") and not key.endswith("_built"):
                found.setdefault(key, set()).add(str(value))
    named = {key.replace("versions.", "").replace("git_", ""): sorted(values - {""})
             for key, values in found.items()}
    return ", ".join(f"{name} {', '.join(values)}" for name, values in named.items() if values)


def shared_setting(summary):
    conditions = next(iter(summary.measured))[0]
    return words.setting(conditions, set(words.parts(conditions)) - summary.shared)


def lacks(module, error):
    what, package = PACKAGES[module]
    print(f"results/report: no {what}: {module} is missing ({error}); "
          f"apt-get install {package}", file=sys.stderr)


def draw(summary, machines, folder):
    try:
        from . import plots  # the only part that needs matplotlib
    except ImportError as error:
        lacks("matplotlib", error)
        return []
    return plots.write_plots(summary, "; ".join(machines[:-1]) or machines[0], folder / "plots")


def write_report(runs, folder):
    """Text and JSON first: they need nothing but Python."""
    summary = Summary(runs)
    machines = machine_lines(runs)
    if len(summary.groups()) > 1 and summary.shared:
        machines.append(f"throughout: {shared_setting(summary)}")
    parts = (TITLE, machines, tables.methods(summary), sentences.sections(summary),
             tables.others(summary))
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "performance_report.txt"]
    written[0].write_text(text.report_text(*parts), encoding="utf-8")
    written += exports.write_exports(summary, folder)
    plots = draw(summary, machines, folder)
    written += [path for _, path in plots]
    try:
        page = render_page(*parts, plots)
        written.append(folder / "comparison_report.html")
        written[-1].write_text(page, encoding="utf-8")
    except ImportError as error:
        lacks("jinja2", error)
    for run in runs:
        if run.end is None:
            print(f"results/report: {run.name} crashed: it has no end record", file=sys.stderr)
    print("\n".join(str(path) for path in written))


def default_folder():
    return pathlib.Path(os.environ.get("SHAKEDOWN_RUNS") or "runs",
                        time.strftime("report-%Y%m%d-%H%M%S"))


def compare(options):
    table, code = against.compared(Summary(read_runs([options.against])),
                                   Summary(read_runs(options.runs)), options.threshold)
    shown = text.table_text(table)
    print(shown)
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "against_report.txt").write_text(shown + "\n", encoding="utf-8")
    return code


def main(usage, arguments):
    try:
        options = parse(usage, arguments)
        if options.against:
            return compare(options)
        write_report(read_runs(options.runs), options.output or default_folder())
        return PASS
    except UsageError as error:
        print(f"results/report: {error}", file=sys.stderr)
    except OSError as error:
        print(f"results/report: --output {error.filename or options.output or default_folder()}: "
              f"{error.strerror}", file=sys.stderr)
        return INCONCLUSIVE if error.errno in DISK_FULL else USAGE
    except Exception:  # Python would end with 1, which means a regression
        traceback.print_exc()
        return INTERNAL
    return USAGE
