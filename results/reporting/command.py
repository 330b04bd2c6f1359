"""The command line of results/report."""

import argparse
import errno
import os
import pathlib
import sys
import time
import traceback
from typing import NamedTuple

from . import (against, communication_tables, exports, findings, layers, machine_tables, power, tables, text,
               training_logs, what_if_tables, words)
from .headline import headline
from .options import distinguish
from .page import render_page
from .reading import read_runs
from .records import NotComparable, UsageError, machines_of, texts
from .summary import Summary

TITLE = "Shakedown: performance report"
PASS, USAGE, INCONCLUSIVE, INTERNAL = 0, 2, 3, 4
LETTERS = 12  # configurations on page one, if no more are compared
STANDARD_OUTPUT = "standard output"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def parse(usage, arguments):
    parser = argparse.ArgumentParser(prog="results/report", description=usage, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help=".jsonl files or folders of them")
    parser.add_argument("--output", metavar="DIR", type=pathlib.Path,
                        help="folder for the files (default: report-<time> in SHAKEDOWN_RUNS, or "
                             "in runs/ of the current folder; the tables of --against are "
                             "written only with --output or --csv)")
    parser.add_argument("--verbose", action="store_true",
                        help="print the appendix too (it is written in any case)")
    parser.add_argument("--csv", action="store_true",
                        help="write the tables as CSV files too")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--against", metavar="OLD",
                      help="compare RUN (NEW) with this run, and judge the differences")
    mode.add_argument("--history", action="store_true",
                      help="write training_history.json, .csv and curves.png of the training that RUN records")
    mode.add_argument("--mllog", action="store_true",
                      help="write mllog.txt, MLPerf's log of the training that RUN records")
    mode.add_argument("--power", action="store_true",
                      help="print which faults a soak finds at the rates of products that RUN records; with placements.jsonl "
                           "as another RUN, which ones other tools find")
    parser.add_argument("--threshold", metavar="PERCENT", type=float,
                        help="of --against: slower by more is a regression (default 3)")
    options = parser.parse_args(arguments)
    if options.threshold is None:
        options.threshold = 3
    elif not options.against:
        raise UsageError(f"--threshold {options.threshold:g}: has no effect without --against")
    if not 0 <= options.threshold < 100:
        raise UsageError(f"--threshold {options.threshold:g}: must be from 0 to less than 100")
    return options


def machine_lines(runs):
    """Who measured, when, with what: one line for each kind of machine, then the versions."""
    started = sorted(run.header["started"] for run in runs if run.header.get("started"))
    lines = []
    for machine in machines_of(runs):
        of = [run for run in runs if run.machine == machine]
        hosts = sorted({host for run in of for host in run.hosts})
        hosts = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
        lines.append(f"{gpus_of(of)}{machine}, on {hosts}")
    if started:
        lines.append(f"measured {started[0]}" +
                     (f" to {started[-1]}" if started[-1] != started[0] else ""))
    versions = version_words(runs)
    return lines + ([versions] if versions else [])


def gpus_of(runs):
    """How many GPUs the runs used; empty where no UUIDs were recorded."""
    counts = sorted({len(set(texts(run.header, "gpu_uuids"))) for run in runs} - {0})
    if not counts:
        return ""
    return f"{counts[0]} x " if len(counts) == 1 else f"{counts[0]} to {counts[-1]} x "


def version_words(runs):
    """Versions that ran; `versions.NAME_built`, from compile time, are left out."""
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


class Content(NamedTuple):
    """What text and page show."""
    title: str
    machines: list
    outcome: str
    reason: str
    sentences: list  # [(what, sentence)]
    configurations: list  # [(letter, what it stands for)]; those for which there is room on page one
    more_configurations: list  # the others
    front: list  # tables
    sections: list  # as findings.sections
    tables: list


def content_of(summary):
    machines = machine_lines(summary.runs)
    if summary.shared:
        machines.append(f"throughout: {shared_setting(summary)}")
    outcome, reason, sentences = headline(summary)
    letters = [(letter, summary.name(conditions)) for conditions, letter in summary.letters.items()]
    room = max(LETTERS, sum(len(group) > 1 for _, group in summary.groups))
    return Content(TITLE, machines, outcome, reason, sentences, letters[:room], letters[room:],
                   [*tables.front(summary), *machine_tables.tables(summary)],
                   findings.sections(summary),
                   [*tables.throughputs(summary), *communication_tables.tables(summary),
                    *tables.scalings(summary), *layers.tables(summary), *what_if_tables.tables(summary),
                    *machine_tables.timed_windows(summary), *machine_tables.samples(summary)])


def no_plots(error):
    print(f"results/report: no plots: matplotlib is missing ({error}); apt-get install python3-matplotlib",
          file=sys.stderr)


def draw(summary, machines, folder):
    try:
        from . import plots  # the only part that needs matplotlib
    except ImportError as error:
        no_plots(error)
        return []
    return plots.write_plots(summary, "; ".join(machines[:-1]) or machines[0], folder / "plots")


def write_history(runs, folder):
    """The exit code."""
    lists = training_logs.history_of(runs)
    folder.mkdir(parents=True, exist_ok=True)
    training_logs.write_history(lists, folder)
    code = PASS
    try:
        from .plots import training
        training.history(lists, folder)
    except ImportError as error:
        no_plots(error)
        code = INCONCLUSIVE
    say(f"written to {words.printable(folder)}")
    return code


def write_mllog(runs, folder):
    lines = training_logs.lines_of(runs)
    folder.mkdir(parents=True, exist_ok=True)
    log = write(folder / "mllog.txt", "".join(f"{line}\n" for line in lines))
    say(f"written: {words.printable(log)}")
    return PASS


def say(shown):
    """What is printed comes last; a reader that went away (head) is no failure."""
    try:
        print(words.lines(shown), flush=True)
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        drop_output()
        raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from error


def drop_output():
    """Python flushes what is left at its exit, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write(path, content):
    path.write_text(words.lines(content), encoding="utf-8", errors="backslashreplace")
    return path


def earlier(folder, time_s):
    """Files in the folder that an earlier report has written, and this one, which began at that time, has not."""
    return sorted(file.name for pattern in ("results_*.json", "*.csv", "plots/*.png") for file in folder.glob(pattern)
                  if file.stat().st_mtime < time_s)


def write_report(runs, folder, options):
    """Text, JSON and CSV first: they need nothing but Python."""
    summary = Summary(runs)
    content = content_of(summary)
    page, appendix = text.report_text(content)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "performance_report.txt", page)
    write(folder / "appendix.txt", appendix)
    exports.write_exports(summary, folder)
    if options.csv:
        exports.write_csv(summary, [*content.front, *content.tables], folder)
    plots = draw(summary, content.machines, folder)
    write(folder / "comparison_report.html", render_page(summary, content, plots))
    for run in runs:
        if run.end is None:
            print(f"results/report: {run.title} crashed: it has no end record", file=sys.stderr)
    stale = earlier(folder, (folder / "performance_report.txt").stat().st_mtime)
    if stale:
        print(f"results/report: {words.printable(folder)}: not written by this report: {words.listed(stale)}", file=sys.stderr)
    page, appendix = text.report_text(content, text.terminal_width())
    say(page + ("\n" + appendix if options.verbose and appendix else "") +
        f"\nwritten to {words.printable(folder)}")


def default_folder():
    return pathlib.Path(os.environ.get("SHAKEDOWN_RUNS") or "runs",
                        time.strftime("report-%Y%m%d-%H%M%S"))


def show(found, options):
    """Prints tables; writes them to --output."""
    def shown(width):
        return "\n\n".join(text.table_text(table, width) for table in found)
    if options.output or options.csv:
        folder = options.output or default_folder()
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "against_report.txt", shown(None) + "\n")
        if options.csv:
            exports.write_tables(found, folder)
    say(shown(text.terminal_width()))


def run(options):
    """The exit code."""
    if options.history or options.mllog:
        tell = write_history if options.history else write_mllog
        return tell(read_runs(options.runs), options.output or default_folder())
    if options.power:
        say(power.page(read_runs(options.runs)).rstrip())
    elif options.against:
        sides = read_runs([options.against]), read_runs(options.runs)
        distinguish(*sides)
        found, code = against.compared(*map(Summary, sides), options.threshold, everything=options.csv)
        show(found, options)
        return code
    else:
        write_report(read_runs(options.runs), options.output or default_folder(), options)
    return PASS


def main(usage, arguments):
    options = None
    for stream in (sys.stdout, sys.stderr):  # a path's bytes need not be UTF-8
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        options = parse(usage, arguments)
        return run(options)
    except UsageError as error:
        print(f"results/report: {error}", file=sys.stderr)
    except NotComparable as error:
        print(f"results/report: {error}", file=sys.stderr)
        return INCONCLUSIVE
    except OSError as error:
        if options is None or error.filename == STANDARD_OUTPUT:  # None: the help was written
            where = STANDARD_OUTPUT
            drop_output()
        else:
            where = f"--output {words.printable(error.filename or options.output or default_folder())}"
        print(f"results/report: {where}: {error.strerror}", file=sys.stderr)
        return INCONCLUSIVE if error.errno in DISK_FULL else USAGE
    except Exception:  # Python would end with 1, which means a regression
        traceback.print_exc()
        return INTERNAL
    return USAGE
