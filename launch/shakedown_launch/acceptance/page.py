"""acceptance.html: one file that needs nothing else, of bounded size for thousands of nodes."""

import math

from . import charts, digest
from .markup import document, element
from .model import FAIL, INCONCLUSIVE, PASS, WARN
from .words import by_number, clean, count, duration, figure, nodes

SQUARES = {PASS: "#c5e0d5", FAIL: "#b3261e", INCONCLUSIVE: "#e39b1e"}
SIGNS = {PASS: "\u2713", FAIL: "\u2715", INCONCLUSIVE: "?", WARN: "!"}
GROUPS = {FAIL: 24, INCONCLUSIVE: 12}  # of nodes, shown at most
KINDS, FINDINGS, LINES = 24, 8, 40  # shown at most
NODES, RUNS, SETTINGS = 64, 400, 200
METRICS, ALL_METRICS, PLOTS, MORE_PLOTS = 24, 400, 12, 24
LONGEST = 100_000  # characters of a command, which is never cut
FLEET = 16  # nodes from which on a map shows them
EXPLAINS = {"temperature_c": "GPU temperature, °C", "sm_clock_mhz": "SM clock, MHz",
            "power_w": "power, W", "hbm_temperature_c": "memory temperature, °C"}
MORE = "more in acceptance.jsonl"
STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: #1f2328;
  background: #fff; max-width: 76rem; margin: 0 auto; padding: 1.6rem 1.2rem 3rem; }
h1 { font-size: 1.05rem; font-weight: 600; margin: 0; color: #555; }
h2 { font-size: 1.12rem; margin: 2rem 0 .5rem; padding-bottom: .25rem; border-bottom: 1px solid #ddd; }
h3 { font-size: .95rem; margin: .6rem 0 .1rem; font-weight: 600; }
p { margin: .25rem 0; }
.banner { display: flex; gap: 1rem 1.4rem; align-items: center; flex-wrap: wrap; margin: .5rem 0 .3rem; }
.verdict { color: #fff; font-size: 1.7rem; font-weight: 700; letter-spacing: .02em; line-height: 1;
  padding: .55rem 1.1rem; border-radius: .4rem; }
.headline { font-size: 1.15rem; }
.PASS { background: #00734f; } .FAIL { background: #b3261e; } .INCONCLUSIVE { background: #8a5a00; }
.WARN { background: #555; }
.quiet, .about, figcaption { color: #5a5f66; font-size: .87rem; }
.injected { border-left: 4px solid #8a5a00; padding-left: .7rem; font-weight: 600; }
.chip { display: inline-block; color: #fff; font-size: .74rem; font-weight: 700; padding: .05rem .5rem;
  border-radius: .25rem; vertical-align: .08em; white-space: nowrap; }
.node { border: 1px solid #dcdcdc; border-left-width: 5px; border-radius: .35rem; padding: .5rem .9rem .6rem;
  margin: .6rem 0; break-inside: avoid; overflow-wrap: anywhere; }
.node.FAIL { border-left-color: #b3261e; background: none; }
.node.INCONCLUSIVE { border-left-color: #b87a00; background: none; }
.node.WARN { border-left-color: #888; background: none; }
.name { font-weight: 650; margin-left: .5rem; }
.finding { margin: .35rem 0 0; }
.do { font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: .6rem 1.6rem; }
figure { margin: .4rem 0; break-inside: avoid; } figcaption { margin: 0; }
figcaption b { color: #1f2328; font-weight: 600; }
svg { display: block; width: 100%; height: auto; } svg text { font: 10.5px system-ui, sans-serif; }
.map svg { margin: .6rem 0 .4rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .87rem; margin: .3rem 0; }
th { font-weight: 600; color: #5a5f66; }
th, td { padding: .22rem 1.1rem .22rem 0; text-align: left; border-bottom: 1px solid #e6e6e6; vertical-align: top; white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
.long { white-space: normal; overflow-wrap: anywhere; min-width: 16rem; }
.missed { color: #b3261e; font-weight: 600; }
.sign { font-weight: 700; text-align: center; }
details { margin: .3rem 0; } summary { cursor: pointer; font-weight: 600; padding: .2rem 0; }
pre { background: #f6f7f8; border: 1px solid #e2e2e2; border-radius: .3rem; padding: .6rem .8rem; font-size: .8rem;
  white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; }
ul { margin: .3rem 0; padding-left: 1.2rem; }
@media print { body { max-width: none; padding: 0; font-size: 12px; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  .charts { grid-template-columns: 1fr 1fr; } .scroll { overflow: visible; } th, td { padding-right: .5rem; white-space: normal; }
  details::details-content { content-visibility: visible; height: auto; } }
"""


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
    made.text = STYLE  # the only text that is not cleaned
    return made


# ---- verdicts ------------------------------------------------------------------------------------

def banner(acceptance):
    outcome = acceptance.outcome
    return [element("h1", "Shakedown acceptance"),
            element("div", element("div", outcome, class_=f"verdict {outcome}"),
                    element("div", element("div", digest.headline(acceptance), class_="headline"),
                            element("div", digest.about(acceptance), class_="about")),
                    class_="banner"),
            [element("p", f"A fault was injected for a test: {each}", class_="injected")
             for each in digest.injected(acceptance)],
            [element("p", line, class_="quiet") for line in digest.identity(acceptance)[:LINES]]]


def in_order(acceptance):
    return sorted(acceptance.verdicts, key=lambda each: by_number(each.node.name))


def fleet_map(acceptance):
    if len(acceptance.verdicts) < FLEET:
        return None
    squares = [(SQUARES[each.outcome],
                "" if each.outcome == PASS else f"{each.node.name}: {each.outcome}")
               for each in in_order(acceptance)]
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
    """Cause, action, class, check and evidence. Of a warning only what is known."""
    unknown = ("", "") if shown.outcome == WARN else ("no action known", "class unknown")
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
            table(["stage", "time", "nodes", "runs", "rounds", *kinds], rows, range(1, 9)), element("p", ladder, class_="quiet") if ladder else None]


def figure_table(acceptance):
    found = digest.series(acceptance)
    if not found:
        return None
    chosen = digest.chosen(found, METRICS)
    reference = digest.reference_name(acceptance)
    return [element("h2", "Figures"), figure_rows(acceptance, chosen),
            element("p", f"Reference {reference}." if reference else "No reference matched.",
                    class_="quiet"),
            fold("All figures", figure_rows(acceptance, found[:ALL_METRICS]), len(found),
                 ALL_METRICS) if len(found) > len(chosen) else None]


def figure_rows(acceptance, found):
    gpus = digest.gpus_of(acceptance)
    rows = [[each.name, each.unit, f"{len(each.figures):,}",
             (figure(each.worst.value), "missed" * each.missed), digest.where(each.worst, gpus),
             figure(each.median), figure(each.best), known(each.floor), known(each.expected),
             f"{100 * each.worst.value / each.expected:.1f} %" if each.expected > 0 else ""]
            for each in found]
    return table(["metric", "unit", "values", "worst", "of", "median", "best", "floor",
                  "reference", "worst / reference"], rows, (2, 3, 5, 6, 7, 8, 9))


def known(value):
    return figure(value) if value == value else ""


# ---- plots ---------------------------------------------------------------------------------------

def plot_section(acceptance):
    found = digest.series(acceptance)
    plots = Plots(acceptance)
    chosen = digest.chosen(found, PLOTS)
    first = [plots.of_series(each) for each in chosen]
    for key, name in EXPLAINS.items():
        first += plots.of_explanation(key, name, found)
    rest = [plots.of_series(each) for each in found if each not in chosen][:MORE_PLOTS]
    if not first:
        return None
    number = sum(len(verdict.node.gpus) for verdict in acceptance.verdicts)
    how = "A dot per value, a line over its samples" if number <= charts.DOTS else \
        "A bar from the lowest to the highest of neighbours, its middle half darker"
    return [element("h2", "Figures over nodes"),
            element("p", f"{how}; red: a finding of FAIL names it.", class_="quiet"),
            element("div", first, class_="charts"),
            fold("More plots", element("div", rest, class_="charts"), len(found),
                 PLOTS + MORE_PLOTS) if rest else None]


class Plots:
    """What plots of one acceptance have in common: where a node and a GPU stand from left to right,
    and which of them a finding of FAIL names."""

    def __init__(self, acceptance):
        verdicts = in_order(acceptance)
        self.gpus = digest.gpus_of(acceptance)
        self.of_gpus, self.of_nodes = gpu_ends(verdicts), node_ends(verdicts)
        self.places, self.named = {}, set()
        for at, verdict in enumerate(verdicts):
            gpus = verdict.node.gpus
            self.places[verdict.node.name] = (at + 0.5) / len(verdicts)
            self.places.update((gpu.uuid, (at + (i + 1) / (len(gpus) + 1)) / len(verdicts))
                               for i, gpu in enumerate(gpus))
            self.named.update((name, each.gpu) for each in verdict.findings
                              if each.outcome == FAIL for name in each.nodes)

    def of_series(self, series):
        return self.draw(series.name, series.unit,
                         [self.point(each, each.value, each.samples) for each in series.figures],
                         [(series.expected, "reference", False), (series.floor, "floor", True)])

    def of_explanation(self, key, name, found):
        """[plot], of the load during which most of it is known; a sustained one is the hottest."""
        def known_(series):
            return [each for each in series.figures
                    if math.isfinite(digest.number(each.explains.get(key)))]
        series = max(found, key=lambda series: (len(known_(series)), "sustained" in series.metric),
                     default=None)
        points = [self.point(each, each.explains[key]) for each in known_(series)] if series else []
        return [self.draw(name, f"during {series.name}", points)] if points else []

    def point(self, figure_, value, samples=()):
        places = [self.places[name] for name in figure_.nodes if name in self.places]
        middle = sum(places) / len(places) if places else 0.5
        return charts.Point(self.places.get(figure_.gpu, middle), value, figure_,
                            any((name, figure_.gpu) in self.named for name in figure_.nodes),
                            samples)

    def draw(self, name, unit, points, lines=()):
        ends = self.of_gpus if any(each.of.gpu for each in points) else self.of_nodes
        return element(
            "figure", element("figcaption", element("b", clean(name, 80)), f"  {clean(unit, 80)}"),
            charts.strip(f"{clean(name, 80)} over nodes", points,
                         lambda of: digest.where(of, self.gpus), ends, lines))


def node_ends(verdicts):
    """Labels below a plot: the names of a few nodes, the first and last of many."""
    shown = range(len(verdicts)) if len(verdicts) <= 6 else (0, len(verdicts) - 1)
    return [((at + 0.5) / len(verdicts), clean(verdicts[at].node.name, 14)) for at in shown]


def gpu_ends(verdicts):
    """Of one node its GPUs."""
    gpus = verdicts[0].node.gpus if len(verdicts) == 1 else ()
    return [((at + 1) / (len(gpus) + 1), f"GPU {gpu.index}")
            for at, gpu in enumerate(gpus)][:8] or node_ends(verdicts)


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


def fold(title, content, number, most):
    return element("details", element("summary", title), content, more(number - most, "line"))


def details(acceptance):
    return [element("h2", "Details"), gpu_details(acceptance), stage_details(acceptance),
            run_details(acceptance), setting_details(acceptance)]


def shown_first(acceptance):
    """Verdicts: those that did not pass, then the others, by name."""
    return sorted(in_order(acceptance), key=lambda each: each.outcome == PASS)[:NODES]


def gpu_details(acceptance):
    rows = [[verdict.node.name, str(gpu.index), gpu.model, gpu.serial, gpu.uuid, gpu.pci_id]
            for verdict in shown_first(acceptance) for gpu in verdict.node.gpus]
    return fold("GPUs", table(["node", "GPU", "model", "serial", "UUID", "PCI"], rows, (1,)),
                len(acceptance.verdicts), NODES) if rows else None


def stage_details(acceptance):
    names = list(dict.fromkeys(name for each in acceptance.verdicts for name in each.stages))
    rows = [[each.node.name, chip(each.outcome),
             *((SIGNS.get(each.stages.get(name), "\u2013"), "sign") for name in names)]
            for each in shown_first(acceptance)]
    return fold("Stages by node", table(["node", "verdict", *names], rows),
                len(acceptance.verdicts), NODES) if names else None


def run_details(acceptance):
    # What went wrong first.
    runs = sorted(acceptance.runs, key=lambda run: (run.code == 0, run.started))
    rows = [[run.stage, nodes(run.nodes, 80), str(run.round), str(run.code), duration(run.seconds),
             run.started, run.record, run.log,
             (ending(run), "long")] for run in runs[:RUNS]]
    return fold("Runs", table(["stage", "nodes", "round", "code", "time", "started", "record",
                               "log", "how it ended"], rows, (2, 3, 4)), len(runs), RUNS) if rows else None


def ending(run):
    return "; ".join(filter(None, [
        *(f"rank {rank} on {host}: {how}" for rank, host, how in run.dead),
        *(f"lost {host}" for host in run.lost), run.note]))


def setting_details(acceptance):
    rows = [[key, (str(value), "long")] for key, value in acceptance.settings.items()]
    return fold("Settings", table(["setting", "value"], rows[:SETTINGS]), len(rows),
                SETTINGS) if rows else None
