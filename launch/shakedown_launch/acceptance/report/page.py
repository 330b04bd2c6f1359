"""acceptance.html: one file that needs nothing else, of bounded size for thousands of nodes."""

import pathlib

from ..model import FAIL, INCONCLUSIVE, MISSING, PASS, UNKNOWN, WARN
from ..words import clean, count, duration, figure, nodes
from . import charts, digest, plots, series
from .markup import document, element

SQUARES = {PASS: "#c5e0d5", FAIL: "#b3261e", INCONCLUSIVE: "#e39b1e"}
SIGNS = {PASS: "\u2713", FAIL: "\u2715", INCONCLUSIVE: "?", WARN: "!", UNKNOWN: "?"}
GROUPS = {FAIL: 24, INCONCLUSIVE: 12}  # of nodes, shown at most
KINDS, FINDINGS, LINES = 24, 8, 40  # shown at most
NODES, RUNS, SETTINGS = 64, 400, 200
METRICS, ALL_METRICS = 24, 400
LONGEST = 100_000  # characters of a command, which is never cut
FLEET = 16  # nodes from which on a map shows them
MORE = "more in acceptance.jsonl"


def html(acceptance, plots=True, sections=()):
    """`sections`: [(title, lines)] to add, as of the text: repeat offenders, Slurm lines."""
    title = f"Acceptance: {acceptance.outcome}, {digest.headline(acceptance)}"
    return document(element(
        "html", element("head", element("meta", charset="utf-8"),
                        element("meta", name="viewport",
                                content="width=device-width, initial-scale=1"),
                        element("title", title), style()),
        element("body", banner(acceptance), fleet_map(acceptance), node_cards(acceptance),
                cards("Links and job", digest.others(acceptance)),
                cards("Warnings", digest.warnings(acceptance)),
                stage_table(acceptance), figure_table(acceptance),
                plot_section(acceptance) if plots else None, statements(acceptance),
                [added(title, lines) for title, lines in sections if lines],
                details(acceptance)), lang="en"))


def style():
    made = element("style")
    made.text = pathlib.Path(__file__).with_name("page.css").read_text(encoding="ascii")
    return made


# ---- verdicts ------------------------------------------------------------------------------------

def banner(acceptance):
    outcome = acceptance.outcome
    return [element("h1", "Shakedown acceptance"),
            element("div", element("div", outcome, class_=f"verdict {outcome}"),
                    element("div", element("div", digest.headline(acceptance), class_="headline"),
                            element("div", digest.about(acceptance), class_="about"),
                            element("div", digest.would_have_found(acceptance), class_="about")),
                    class_="banner"),
            [element("p", f"A fault was injected for a test: {each}", class_="injected")
             for each in digest.injected(acceptance)],
            [element("p", line, class_="quiet") for line in digest.identity(acceptance)[:LINES]]]


def fleet_map(acceptance):
    if len(acceptance.verdicts) < FLEET:
        return None
    squares = [(SQUARES[each.outcome],
                "" if each.outcome == PASS else f"{each.node.name}: {each.outcome}")
               for each in digest.in_order(acceptance)]
    legend = ", ".join(f"{number:,} {outcome}"
                       for outcome, number in digest.tally(acceptance).items())
    return element("div", charts.fleet(squares),
                   element("p", f"A square per node, in the order of their names: {legend}.",
                           class_="quiet"), class_="map")


def chip(outcome):
    return element("span", f"{SIGNS[outcome]} {outcome}", class_=f"chip {outcome}")


def node_cards(acceptance):
    drawn, failed = [], digest.groups(acceptance)
    for outcome, most in GROUPS.items():
        groups = [group for group in failed if group.outcome == outcome]
        drawn += [element("div", chip(outcome),
                          element("span", nodes(group.names, 200), class_="name"),
                          [finding(each, outcome) for each in group.findings[:FINDINGS]],
                          more(len(group.findings) - FINDINGS, "finding"),
                          class_=f"node {outcome}") for group in groups[:most]]
        drawn += [element("div", chip(outcome),
                          element("span", f"{count(len(names), 'more node')}, {kind}",
                                  class_="name"),
                          element("p", nodes(names, 600)), class_=f"node {outcome}")
                  for kind, names in digest.kinds(groups[most:])[:KINDS]]
    return [element("h2", "Nodes that did not pass"), drawn] if drawn else None


def finding(shown, outcome=None):
    """Cause, action, class, check and evidence. Of what blames nobody, and of what did not run, only
    what is known."""
    unknown = ("no action known", "class unknown") if shown.outcome in (FAIL, INCONCLUSIVE) and \
        shown.check != MISSING else ("", "")
    action, class_ = shown.action or unknown[0], shown.class_ or unknown[1]
    about = " \u00b7 ".join(filter(None, (class_, shown.check, shown.evidence)))
    return element("div", [chip(shown.outcome), " "] if shown.outcome != outcome else None,
                   shown.text,
                   element("div", [element("span", action, class_="do"), " \u00b7 "]
                           if action else None, about, class_="quiet"), class_="finding")


def more(number, noun):
    return element("p", f"and {count(number, noun)} {MORE}", class_="quiet") if number > 0 else None


def cards(title, found):
    """A card for each outcome."""
    drawn = [element("div", [finding(each) for each in found[:LINES] if each.outcome == outcome],
                     class_=f"node {outcome}")
             for outcome in dict.fromkeys(each.outcome for each in found[:LINES])]
    return [element("h2", title), drawn, more(len(found) - LINES, "finding")] if found else None


# ---- tables --------------------------------------------------------------------------------------

def table(head, rows, numbers=()):
    """`numbers`: columns of figures. A cell is text, an element, or (text, class). Columns without
    any content are left out."""
    def cell(name, at, value):
        value, kind = value if isinstance(value, tuple) else (value, None)
        kinds = " ".join(filter(None, ("n" if at in numbers else None, kind)))
        return element(name, value, class_=kinds or None)
    shown = [at for at in range(len(head))
             if any((row[at][0] if isinstance(row[at], tuple) else row[at]) != "" for row in rows)]
    return element("div", element(
        "table", element("thead", element("tr", [cell("th", at, head[at]) for at in shown])),
        element("tbody", [element("tr", [cell("td", at, row[at]) for at in shown])
                          for row in rows])), class_="scroll")


def stage_table(acceptance):
    stages = digest.stages(acceptance)
    if not stages:
        return None
    kinds = (PASS, FAIL, INCONCLUSIVE, digest.MISSING)
    rows = [[stage.name, duration(stage.seconds), f"{stage.nodes:,}", f"{stage.runs:,}",
             f"{stage.rounds}", *((f"{stage.outcomes[kind]:,}", "missed" * (kind == FAIL))
                                  if kind in stage.outcomes else "" for kind in kinds)]
            for stage in stages]
    ladder = f"{count(acceptance.tests, 'test')} of the isolation, " \
             f"{count(acceptance.rounds, 'round')}." if acceptance.tests else None
    return [element("h2", "What ran"),
            table(["stage", "time", "nodes", "runs", "rounds", *kinds], rows, range(1, 9)),
            element("p", ladder, class_="quiet") if ladder else None]


def figure_table(acceptance):
    found = series.measured(acceptance)
    if not found:
        return None
    chosen = series.chosen(found, METRICS)
    return [element("h2", "Figures"), figure_rows(acceptance, chosen),
            fold("All figures", figure_rows(acceptance, found[:ALL_METRICS]),
                 len(found) - ALL_METRICS, "metric") if len(found) > len(chosen) else None]


def figure_rows(acceptance, found):
    gpus = digest.gpus_of(acceptance)
    rows = [[each.name, each.unit, f"{len(each.figures):,}",
             (figure(each.worst.value), "missed" * each.missed), series.where(each.worst, gpus),
             each.slower, known(each.median), figure(each.best), known(each.limit), known(each.usual),
             each.witness] for each in found]
    return table(["metric", "unit", "values", "worst", "of", "slower", "median", "best",
                  "limit", "usual", "by"], rows, (2, 3, 5, 6, 7, 8, 9))


def known(value):
    return figure(value) if value == value else ""


def plot_section(acceptance):
    how, first, rest, left_out = plots.drawn(acceptance)
    if not first:
        return None
    return [element("h2", "Figures over nodes"), element("p", how, class_="quiet"),
            element("div", first, class_="charts"),
            fold("More plots", element("div", rest, class_="charts"), left_out,
                 "plot") if rest else None]


# ---- the rest ------------------------------------------------------------------------------------

def statements(acceptance):
    open_ = digest.not_judged(acceptance)[:LINES]
    return [[element("h2", "What the soak proves"), element("p", acceptance.statement)]
            if acceptance.statement else None,
            [element("h2", "Not judged"), element("ul", [element("li", line) for line in open_])]
            if open_ else None]


def added(title, lines):
    block = element("pre")
    block.text = "\n".join(clean(line, LONGEST) for line in lines[:RUNS])
    return [element("h2", title), block, more(len(lines) - RUNS, "line")]


def fold(title, content, left_out, noun):
    return element("details", element("summary", title), content, more(left_out, noun))


def details(acceptance):
    return [element("h2", "Details"), gpu_details(acceptance), stage_details(acceptance),
            run_details(acceptance), setting_details(acceptance),
            [fold(f"{title} ({len(found)})",
                  element("ul", [element("li", f"{each.text} [{each.check}]")
                                 for each in found[:LINES]]), len(found) - LINES, "finding")
             for title, found in digest.apart(acceptance).items() if found]]


def shown_first(acceptance):
    """Verdicts: those that did not pass, then the others, by name."""
    return sorted(digest.in_order(acceptance), key=lambda each: each.outcome == PASS)[:NODES]


def gpu_details(acceptance):
    rows = [[verdict.node.name, str(gpu.index), gpu.model, gpu.serial, gpu.uuid, gpu.pci_id]
            for verdict in shown_first(acceptance) for gpu in verdict.node.gpus]
    head = ["node", "GPU", "model", "serial", "UUID", "PCI"]
    return fold("GPUs", table(head, rows, (1,)), len(acceptance.verdicts) - NODES,
                "node") if rows else None


def stage_details(acceptance):
    names = list(dict.fromkeys(name for each in acceptance.verdicts for name in each.stages))
    rows = [[each.node.name, chip(each.outcome),
             *((SIGNS.get(each.stages.get(name), "\u2013"), "sign") for name in names)]
            for each in shown_first(acceptance)]
    return fold("Stages by node", table(["node", "verdict", *names], rows),
                len(acceptance.verdicts) - NODES, "node") if names else None


def run_details(acceptance):
    # What went wrong first.
    runs = sorted(acceptance.runs, key=lambda run: (run.code == 0, run.started))
    rows = [[run.stage, nodes(run.nodes, 80), str(run.round), str(run.code), duration(run.seconds),
             run.started, run.record, run.log, (ending(run), "long")] for run in runs[:RUNS]]
    head = ["stage", "nodes", "round", "code", "time", "started", "record", "log", "how it ended"]
    return fold("Runs", table(head, rows, (2, 3, 4)), len(runs) - RUNS, "run") if rows else None


def ending(run):
    return "; ".join(filter(None, [
        *(f"rank {rank} on {host}: {how}" for rank, host, how in run.dead),
        *(f"lost {host}" for host in run.lost), run.note]))


def setting_details(acceptance):
    rows = [[key, (str(value), "long")] for key, value in acceptance.settings.items()]
    return fold("Settings", table(["setting", "value"], rows[:SETTINGS]), len(rows) - SETTINGS,
                "setting") if rows else None
