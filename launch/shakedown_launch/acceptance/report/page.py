"""acceptance.html: one file that needs nothing else, of bounded size for thousands of nodes."""

import math

from reporting.html import document, element, fold, listed, quiet, table, titled

from ...words import clean, count, duration, figure, nodes
from ..model import FAIL, INCONCLUSIVE, MISSING, PASS, UNKNOWN, WARN
from . import digest, series

SQUARES = {PASS: "#c5e0d5", FAIL: "#b3261e", INCONCLUSIVE: "#e39b1e"}
SIGNS = {PASS: "\u2713", FAIL: "\u2715", INCONCLUSIVE: "?", WARN: "!", UNKNOWN: "?"}
BLUE, RED = "#0072B2", "#b3261e"
GROUPS = {FAIL: 24, INCONCLUSIVE: 12}  # of nodes, shown at most
KINDS, FINDINGS, LINES = 24, 8, 40  # shown at most
NODES, RUNS, SETTINGS = 64, 400, 200
METRICS, ALL_METRICS = 24, 400
LONGEST = 100_000  # characters of a command, which is never cut
FLEET = 16  # nodes from which on a map shows them
WIDTH, HEIGHT, DOTS = 150, 34, 96  # of a plot; values that are named in it
SPREAD = 0.04  # of the value, at least, from bottom to top: noise is not blown up
MORE = "more in acceptance.jsonl"


def html(acceptance, sections=()):
    """`sections`: [(title, lines)] to add, as of the text: repeat offenders, Slurm lines."""
    return document(
        f"Acceptance: {acceptance.outcome}, {digest.headline(acceptance)}",
        banner(acceptance), fleet_map(acceptance), node_cards(acceptance),
        [cards(title, found) for title, found in digest.concerns(acceptance)],
        stage_table(acceptance), figure_table(acceptance),
        [titled(title, listed(lines[:LINES])) for title, lines in digest.sentences(acceptance)],
        [titled(title, added(lines)) for title, lines in sections if lines],
        titled("Details", list(details(acceptance))))


def more(number, noun):
    return quiet(f"and {count(number, noun)} {MORE}" if number > 0 else "")


# ---- verdicts ------------------------------------------------------------------------------------

def banner(acceptance):
    outcome = acceptance.outcome
    return [element("h1", "Shakedown acceptance"),
            element("div", element("div", outcome, class_=f"verdict {outcome}"),
                    element("div", element("div", digest.headline(acceptance), class_="name"),
                            quiet(digest.about(acceptance)), quiet(digest.would_have_found(acceptance))),
                    class_="banner"),
            [element("p", f"A fault was injected for a test: {each}", class_="do")
             for each in digest.injected(acceptance)]]


def fleet_map(acceptance):
    """A square per node; those that passed, which are many, are one path."""
    if len(acceptance.verdicts) < FLEET:
        return None
    across, passed, named = 64 if len(acceptance.verdicts) <= 1024 else 128, [], []
    for at, each in enumerate(digest.in_order(acceptance)):
        y, x = (13 * part for part in divmod(at, across))
        if each.outcome == PASS:
            passed.append(f"M{x} {y}h11v11h-11z")
        else:
            named.append(element("rect", element("title", f"{each.node.name}: {each.outcome}"), x=x, y=y,
                                 width=11, height=11, fill=SQUARES[each.outcome]))
    legend = ", ".join(f"{number:,} {outcome}" for outcome, number in digest.tally(acceptance).items())
    wide = 13 * min(len(acceptance.verdicts), across)
    return [element("svg", element("path", d="".join(passed), fill=SQUARES[PASS]), named, class_="map",
                    viewBox=f"0 0 {wide} {13 * math.ceil(len(acceptance.verdicts) / across)}", role="img",
                    aria_label="verdicts of the nodes", style=f"max-width: {1.4 * wide:.0f}px"),
            quiet(f"A square per node, in the order of their names: {legend}.")]


def chip(outcome):
    return element("span", f"{SIGNS[outcome]} {outcome}", class_=f"chip {outcome}")


def card(outcome, *content):
    return element("div", content, class_=f"node {outcome}")


def node_cards(acceptance):
    drawn, failed = [], digest.groups(acceptance)
    for outcome, most in GROUPS.items():
        groups = [group for group in failed if group.outcome == outcome]
        drawn += [card(outcome, chip(outcome), element("span", " ", nodes(group.names, 200), class_="name"),
                       [finding(each, outcome) for each in group.findings[:FINDINGS]],
                       more(len(group.findings) - FINDINGS, "finding")) for group in groups[:most]]
        drawn += [card(outcome, chip(outcome), f" {count(len(names), 'more node')}, {kind}",
                       element("p", nodes(names, 600)))
                  for kind, names in digest.kinds(groups[most:])[:KINDS]]
    return titled("Nodes that did not pass", drawn) if drawn else None


def finding(shown, outcome=None):
    """Cause, action, class, check and evidence. Of what blames nobody, and of what did not run, only
    what is known."""
    blames = shown.outcome in (FAIL, INCONCLUSIVE) and shown.check != MISSING
    action = shown.action or "no action known" * blames
    about = " \u00b7 ".join(filter(None, (shown.class_ or "class unknown" * blames, shown.check, shown.evidence)))
    return element("div", [chip(shown.outcome), " "] if shown.outcome != outcome else None, shown.text,
                   element("div", [element("span", action, class_="do"), " \u00b7 "] if action else None,
                           about, class_="quiet"), class_="finding")


def cards(title, found):
    """A card for each outcome."""
    drawn = [card(outcome, [finding(each) for each in found[:LINES] if each.outcome == outcome])
             for outcome in dict.fromkeys(each.outcome for each in found[:LINES])]
    return titled(title, drawn, more(len(found) - LINES, "finding"))


# ---- tables --------------------------------------------------------------------------------------

def stage_table(acceptance):
    kinds = (PASS, FAIL, INCONCLUSIVE, digest.MISSING)
    rows = [[stage.name, duration(stage.seconds), f"{stage.nodes:,}", f"{stage.runs:,}", f"{stage.rounds}",
             *((f"{stage.outcomes[kind]:,}", "missed" * (kind == FAIL)) if kind in stage.outcomes else ""
               for kind in kinds)] for stage in digest.stages(acceptance)]
    ladder = f"{count(acceptance.tests, 'test')} of the isolation, {count(acceptance.rounds, 'round')}."
    return titled("What ran", table(["stage", "time", "nodes", "runs", "rounds", *kinds], rows, range(1, 9)),
                  quiet(ladder * bool(acceptance.tests))) if rows else None


def figure_table(acceptance):
    found = series.measured(acceptance)
    if not found:
        return None
    chosen, plots = series.chosen(found, METRICS), Plots(acceptance)
    return titled("Figures", quiet("Plots: a dot per value over the nodes in the order of their names; red: a "
                                   "finding of FAIL names it; dashed: from there on it fails."),
                  figure_rows([*chosen, *series.explaining(found)], plots),
                  fold("All figures", figure_rows(found[:ALL_METRICS], plots, METRICS),
                       more(len(found) - ALL_METRICS, "metric")) if len(found) > len(chosen) else None)


def figure_rows(found, plots, most=math.inf):
    """`most`: plots."""
    def known(value):
        return figure(value) if value == value else ""
    rows = [[each.name, each.unit, f"{len(each.figures):,}",
             (figure(each.worst.value), "missed" * each.missed), series.where(each.worst, plots.gpus),
             each.slower, known(each.median), figure(each.best), known(each.worst.limit), known(each.worst.usual),
             each.witness, plots.of(each) if at < most else None] for at, each in enumerate(found)]
    return table(["metric", "unit", "values", "worst", "of", "slower", "median", "best",
                  "limit", "usual", "by", "over nodes"], rows, (2, 3, 5, 6, 7, 8, 9))


class Plots:
    """Values over nodes: where a node and a GPU stand from left to right, and which of them a finding of
    FAIL names."""

    def __init__(self, acceptance):
        self.gpus, self.places, self.named = digest.gpus_of(acceptance), {}, set()
        verdicts = digest.in_order(acceptance)
        for at, verdict in enumerate(verdicts):
            gpus = verdict.node.gpus
            self.places[verdict.node.name] = (at + 0.5) / len(verdicts)
            self.places.update((gpu.uuid, (at + (i + 1) / (len(gpus) + 1)) / len(verdicts))
                               for i, gpu in enumerate(gpus))
            self.named.update((name, each.gpu) for each in verdict.findings
                              if each.outcome == FAIL for name in each.nodes)

    def of(self, each):
        known = each.worst.limit
        values = [of.value for of in each.figures] + [known] * math.isfinite(known)
        room = max(0.1 * (max(values) - min(values)), SPREAD / 2 * max(map(abs, values))) or 1
        low, high = min(values) - room, max(values) + room

        def y(value):
            return round(HEIGHT * (high - value) / (high - low))
        dots = sorted(((self.is_named(of), self.x(of), y(of.value), of) for of in each.figures),
                      key=lambda dot: dot[0], reverse=True)
        limit = element("line", x1=0, x2=WIDTH, y1=y(known), y2=y(known), stroke=RED,
                        stroke_dasharray="4 3") if math.isfinite(known) else None
        many = dict.fromkeys(f"M{x} {at}h0" for _, x, at, _ in dots[DOTS:])
        return element(
            "svg", limit, element("path", d="".join(many), stroke=BLUE, stroke_width=3, stroke_linecap="round")
            if many else None, [element("circle", element(
                "title", f"{series.where(of, self.gpus)}: {figure(of.value)} {each.unit}"), cx=x, cy=at, r=2,
                fill=RED if named else BLUE) for named, x, at, of in reversed(dots[:DOTS])],
            width=WIDTH, height=HEIGHT, role="img", aria_label=f"{each.name} over nodes")

    def x(self, of):
        known = [self.places[name] for name in of.nodes if name in self.places] or [0.5]
        return round(WIDTH * self.places.get(of.gpu, sum(known) / len(known)))

    def is_named(self, of):
        return any((name, of.gpu) in self.named for name in of.nodes)


# ---- the rest ------------------------------------------------------------------------------------

def added(lines):
    return [element("pre", "\n".join(clean(line, LONGEST) for line in lines[:RUNS])), more(len(lines) - RUNS, "line")]


def details(acceptance):
    """Tables that are folded: nodes that did not pass first, then by name; runs that went wrong first."""
    verdicts = sorted(digest.in_order(acceptance), key=lambda each: each.outcome == PASS)
    names = list(dict.fromkeys(name for each in verdicts for name in each.stages))
    runs = sorted(acceptance.runs, key=lambda run: (run.code == 0, run.started))
    for title, head, rows, number, noun in [
            ("GPUs", ["node", "GPU", "model", "serial", "UUID", "PCI"],
             [[verdict.node.name, str(gpu.index), gpu.model, gpu.serial, gpu.uuid, gpu.pci_id]
              for verdict in verdicts[:NODES] for gpu in verdict.node.gpus], len(verdicts) - NODES, "node"),
            ("Stages by node", ["node", "verdict", *names],
             [[each.node.name, chip(each.outcome), *(SIGNS.get(each.stages.get(name), "\u2013") for name in names)]
              for each in verdicts[:NODES]], len(verdicts) - NODES, "node"),
            ("Runs", ["stage", "nodes", "round", "code", "time", "started", "record", "log", "how it ended"],
             [[run.stage, nodes(run.nodes, 80), str(run.round), str(run.code), duration(run.seconds), run.started,
               run.record, run.log, (ending(run), "long")] for run in runs[:RUNS]], len(runs) - RUNS, "run"),
            ("Settings", ["setting", "value"],
             [[key, (str(value), "long")] for key, value in acceptance.settings.items()][:SETTINGS],
             len(acceptance.settings) - SETTINGS, "setting")]:
        if rows and (names or title != "Stages by node"):
            yield fold(title, table(head, rows), more(number, noun))
    for title, lines in digest.apart_sentences(acceptance):
        yield fold(title, listed(lines[:LINES]), more(len(lines) - LINES, "finding"))


def ending(run):
    return "; ".join(filter(None, [*(f"rank {rank} on {host}: {how}" for rank, host, how in run.dead),
                                   *(cause for _, cause in run.lost if cause not in run.note), run.note]))
