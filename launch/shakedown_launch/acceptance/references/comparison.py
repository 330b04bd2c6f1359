"""Figures compared with those of good nodes of the same kind. Only what was measured on validated
nodes fails a node; what others published or stated warns."""

import collections

from ..model import CONFIG, ENVIRONMENT, FAIL, HARDWARE, INCONCLUSIVE, UNKNOWN, WARN, Finding
from .file import MEASURED
from .likeness import (LINKS, POWER_LIMIT, SETTINGS, differences, listed, nearest, other_data,
                       other_path, with_paths)

FOLLOW_CLOCK = ("compute/", "soak/", "train/")
RESET = "compare driver, libraries, power limit and clock settings with the reference's"


def match(references, node, count, figures=()):
    """The reference of the node's model and `count` GPUs (ranks) per node; of several the one that
    fits the links and NVLS that the node's `figures` show, then one of exactly this count, then the
    one with most figures that may fail. None: there is none. Link and path are compared figure by
    figure as well."""
    links = {link_of(each) for each in figures if each.metric == LINKS and count > 1}
    nvls = {each.conditions["nvls"] for each in figures if each.conditions.get("nvls")}
    models = {gpu.model for gpu in node.gpus} or {node.identity.get("processor", "")}
    fitting = [each for each in references
               if models <= set(each.devices)
               and (not each.ranks_per_node or count in each.ranks_per_node)]
    return max(fitting, default=None, key=lambda each: (
        not each.link or links <= {each.link}, not each.nvls or nvls <= {each.nvls},
        len(each.ranks_per_node) > 0, sum(figure.may_fail for figure in each.figures)))


def link_of(figure):
    return "nvlink" if figure.value > 0 else "pcie"


# ---- judging ----

def judge(figures, reference, requested=False):
    """(findings, {(stage, node)} of the rates that could have failed, {node} of those that could only
    warn). `requested`: the user named this reference, so that a node of which nothing can be compared
    is INCONCLUSIVE."""
    figures = with_paths(figures)
    others = not_comparable(figures, reference)
    found = list(others.values())
    left = [each for each in figures if not each.metric.startswith(SETTINGS)
            and not any(node in others for node in each.nodes)]
    comparison = Comparison(reference)
    for figure in left:
        comparison.add(figure)
    return found + comparison.findings(left, requested), comparison.judged, comparison.only_warned


def not_comparable(figures, reference):
    """{node: Finding} of the nodes that are of another kind than the reference."""
    found = {}
    linked = collections.Counter(nodes for nodes, _ in {(each.nodes, each.gpu) for each in figures
                                                        if each.metric == LINKS})
    for figure in figures:
        if figure.metric == LINKS and linked[figure.nodes] < 2:
            continue  # a GPU alone needs no link
        why = other_kind(figure, reference)
        for node in figure.nodes if why else ():
            found.setdefault(node, Finding(
                figure.stage, INCONCLUSIVE, (node,),
                f"not comparable with the reference {reference.name}: {why}", CONFIG,
                action="use a reference of these nodes: --record-reference", gpu=figure.gpu,
                check="not-comparable"))
    return found


def other_kind(figure, reference):
    """Why it is; "" where it is not."""
    device, ranks = figure.conditions.get("device"), figure.conditions.get("ranks_per_node")
    if device and device not in reference.devices:
        return f"of {', '.join(reference.devices)}, this is {device}"
    if ranks and reference.ranks_per_node and ranks not in reference.ranks_per_node:
        counts = ", ".join(map(str, reference.ranks_per_node))
        return f"of {counts} GPUs or ranks per node, this has {ranks}"
    if figure.metric == POWER_LIMIT and reference.power_limit_w not in (None, figure.value):
        return f"of a power limit of {reference.power_limit_w:g} W, here {figure.value:g} W"
    if figure.metric == LINKS and reference.link:
        if link_of(figure) != reference.link:
            return f"of GPUs linked by {reference.link}, here by {link_of(figure)}"
    return ""


class Comparison:
    """Of all figures with one reference."""

    def __init__(self, reference):
        self._reference = reference
        self.judged = set()  # (stage, node) of which a figure was compared that may fail
        self.only_warned = set()  # nodes of which a figure was compared that only warns
        self._compared = set()  # nodes of which a figure was compared
        self._below = []  # (Figure, ReferenceFigure)
        self._met = set()  # metrics that a GPU, or node, met
        self._count = collections.Counter()  # of the figures of each metric
        self._other_path = {}  # (stage, nodes, text, whether it fails): metrics
        self._other = {}  # (stage, nodes, text, INCONCLUSIVE or UNKNOWN): metrics

    def add(self, figure):
        entry = nearest(figure, self._reference)
        if entry is None:
            return
        if not differences(figure, entry) and not other_path(figure, entry):
            self._judge(figure, entry)
        elif not differences(figure, entry):
            key = (figure.stage, figure.nodes, other_path(figure, entry),
                   entry.kind == MEASURED)  # a path has no noise: it need not be validated
            self._other_path.setdefault(key, []).append(figure.metric)
            self._compared.update(figure.nodes)
        else:
            outcome = INCONCLUSIVE if entry.may_fail and other_data(figure, entry) else UNKNOWN
            key = figure.stage, figure.nodes, differences(figure, entry), outcome
            self._other.setdefault(key, []).append(figure.metric)

    def _judge(self, figure, entry):
        if entry.floor is None:
            key = figure.stage, figure.nodes, "its spread is too wide", UNKNOWN
            self._other.setdefault(key, []).append(figure.metric)
            return
        self._compared.update(figure.nodes)
        if entry.may_fail:
            self.judged.update((figure.stage, node) for node in figure.nodes)
        else:
            self.only_warned.update(figure.nodes)
        if beyond(figure.value, entry):
            self._below.append((figure, entry))
        else:
            self._met.add(figure.metric)

    def findings(self, figures, requested):
        self._count.update(each.metric for each in figures)
        found = [slow(figure, entry, self._all_alike(figure))
                 for figure, entry in self._below if entry.may_fail]
        found += self._remarks()
        for (stage, nodes, text, fails), metrics in self._other_path.items():
            found.append(Finding(
                stage, FAIL if fails else WARN, nodes,
                f"other path than in the reference {self._reference.name}, bandwidth not judged: "
                f"{text}: {listed(metrics)}", class_=CONFIG, subject="path", check="path",
                action="compare NCCL_* variables, topology file and MPI's settings with the "
                       "reference's"))
        for (stage, nodes, text, outcome), metrics in self._other.items():
            found.append(Finding(stage, outcome, nodes,
                                 f"not compared with the reference {self._reference.name}: {text}: "
                                 f"{listed(metrics)}", check="not-compared"))
        stages = {each.nodes: each.stage for each in reversed(figures) if len(each.nodes) == 1}
        for nodes, stage in stages.items():
            if requested and nodes[0] not in self._compared:
                found.append(Finding(stage, INCONCLUSIVE, nodes, "none of its figures is in the "
                                     f"reference {self._reference.name} under the same conditions",
                                     CONFIG, "use a reference of the same tier: --record-reference",
                                     check="not-comparable"))
        return found

    def _remarks(self):
        """A warning per stage and node of what is below figures that fail nobody."""
        below = {}
        for figure, entry in self._below:
            if not entry.may_fail:
                below.setdefault((figure.stage, figure.nodes), []).append(
                    f"{figure.metric} {figure.value:.4g} {figure.unit} "
                    f"({percent(figure, entry)} {entry.value:.4g}, "
                    f"{entry.kind}{', not validated' * (entry.kind == MEASURED)}: {entry.source})")
        return [Finding(stage, WARN, nodes, "worse than the reference, which only warns here: "
                        f"{listed(texts)}", check="below-reference")
                for (stage, nodes), texts in below.items()]

    def _all_alike(self, figure):
        """Whether no other GPU, or node, met it either: then it is no part of this one."""
        return self._count[figure.metric] > 1 and figure.metric not in self._met


def beyond(value, entry):
    return value < entry.floor if entry.higher_is_better else value > entry.floor


def slow(figure, entry, all_alike):
    """The finding of a figure below the floor, explained before it is blamed on the part."""
    least = "limit" if entry.is_limit else "floor" if entry.higher_is_better else "at most"
    about = ", ".join(filter(None, (entry.kind, entry.date, entry.source)))
    cause = (f"{figure.metric}: {figure.value:.4g} {figure.unit}, {percent(figure, entry)} the "
             f"reference {entry.value:.4g} ({least} {entry.floor:.4g}; {about})")
    class_, why, action = explanation(figure, entry)
    if all_alike:
        class_, action = CONFIG, f"all that were measured are alike: {RESET}"
    if any(key not in figure.conditions for key in entry.path):
        class_, why = "", why + "; its path is not known"
        action = action or "prove the path: bin/collective_perf --path"
    return Finding(figure.stage, FAIL, figure.nodes, cause + why,
                   class_=class_, action=action, gpu=figure.gpu, subject=subject(figure),
                   check=figure.metric)


def percent(figure, entry):
    """"8.2 % below"."""
    ratio = figure.value / entry.value
    return f"{abs(1 - ratio) * 100:.1f} % {'below' if ratio < 1 else 'above'}"


def subject(figure):
    rank = figure.explains.get("rank")
    return "" if rank is None else f"{'GPU of rank' if figure.gpu else 'rank'} {rank}"


def explanation(figure, entry):
    """(class, text, action): by the clock where it accounts for all that is missing."""
    seen = figure.explains
    clock, usual = seen.get("sm_clock_mhz"), entry.sm_clock_mhz
    if not clock or not usual or not figure.metric.startswith(FOLLOW_CLOCK):
        return ("" if len(figure.nodes) > 1 else HARDWARE), "", "run again; if it repeats, inspect"
    text = f"{clock:.0f} MHz, reference {usual:.0f} MHz"
    if seen.get("temperature_c") and entry.temperature_c:
        text += f"; {seen['temperature_c']:.0f} C, reference {entry.temperature_c:.0f} C"
    text += f"; throttle reasons: {seen.get('throttle_reasons') or 'none'}"
    at_usual = figure.value * (usual / clock if entry.higher_is_better else clock / usual)
    if clock < usual and not beyond(at_usual, entry):
        return ENVIRONMENT, f"; all of it clock: {text}", "inspect cooling and power limit"
    what = "more than its clock explains" if clock < 0.98 * usual else "at a normal clock"
    return HARDWARE, f"; {what}: {text}", "run again; if it repeats, RMA"
