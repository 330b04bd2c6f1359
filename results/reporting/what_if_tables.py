"""Tables of the step model (what_if.py): its links, its error, what it predicts and advises, which strategy wins
where."""

from . import words
from .intervals import distinct
from .records import number, numbers
from .summary import median_of, ranked
from .tables import FRACTION, Column, Table, ms, share, signed
from .what_if import best_advice, models

MOST_ADVICE = 5


def tables(summary):
    made = []
    for model in models(summary):
        name = summary.name(model.conditions)
        suffix = f": {name}" if name else ""
        made += [link_costs(model, suffix), compared(summary, model, suffix)]
        if model.is_trusted():
            made += [more_ranks(summary, model, suffix), advice(model, suffix),
                     winners(summary, model, suffix)]
    return [table for table in made if table.rows]


def link_costs(model, suffix):
    """Link costs: medians of several fits (runs)."""
    fits = {what: [link for link in model.links if link.get("path") == path] for path, what in
            (("ring", "ring messages"), ("star", "sends of all ranks to one"))}

    def of(key):
        return lambda item: median_of(item[1], key)

    def half(item):
        latency, gbs = of("alpha_us")(item), of("bandwidth_gbs")(item)
        return None if None in (latency, gbs) else latency * gbs * 1e3
    return Table("links_fitted", f"link costs, fitted as latency + bytes / bandwidth{suffix}", [
        Column("path", lambda item: item[0]),
        Column("latency us", of("alpha_us"), "{:.1f}".format),
        Column("GB/s", of("bandwidth_gbs"), "{:.4g}".format),
        Column("half bandwidth at", half, words.size),
        Column("averaging GB/s", of("average_gbs"), "{:.4g}".format),
        Column("worst error", of("worst_error"), lambda error: share(max(error, 0.001)), FRACTION),
    ], [item for item in fits.items() if item[1]])


def compared(summary, model, suffix):
    held = model.measured(summary)
    notes = model.doubt(summary)
    if not model.is_trusted():
        error = model.error(summary)
        notes.append("predictions and advice are left out: " + (
            "no step was measured that the model could be compared with" if error is None else
            f"the model is off by up to {words.percent(error)} for a step that was measured"))
    return Table("model", f"step model, ms per step{suffix}", [
        *named(), Column("predicted", lambda one: one[1], ms),
        Column("measured", lambda one: one[2], ms),
        Column("error", lambda one: one[1] / one[2] - 1, signed)], held, notes)


def named():
    """The columns that name a row whose first part is a configuration."""
    return [Column("strategy", lambda one: one[0].strategy or "step"),
            Column("batch", lambda one: words.batch(one[0].conditions).replace("batch ", "")),
            Column("ranks", lambda one: one[0].conditions.world_size)]


def more_ranks(summary, model, suffix):
    """A row for each strategy and batch, a column for each number of ranks."""
    found = {}
    for configuration, record in model.unmeasured(summary):
        key = configuration._replace(conditions=configuration.conditions._replace(world_size=0,
                                                                                  nodes=0))
        found.setdefault(key, {}).setdefault(configuration.conditions.world_size,
                                             []).append(record)
    ranks = sorted({n for by_ranks in found.values() for n in by_ranks})

    def on(n, key):
        return lambda item: median_of(item[1].get(n, []), key)

    def is_outside(item):
        return "yes" if any(record.get("extrapolated") for records in item[1].values()
                            for record in records) else None
    most = ranks[-1] if ranks else 0
    return Table("predicted", f"predicted share of the rate without exchange, by ranks{suffix}", [
        *named()[:2], *(Column(str(n), on(n, "efficiency_predicted"), share) for n in ranks),
        Column(f"images/s on {most}", on(most, "images_per_s_predicted"), words.rate),
        Column("extrapolated", is_outside),
    ], list(found.items()), ["assumes that all links are like the measured ones; extrapolated: the "
                             "batch is outside the measured range"])


def advice(model, suffix):
    """The changes that gain most, for each strategy and batch."""
    shown, counts = [], {}
    for (configuration, change), gain, outside in best_advice(model):
        counts[configuration] = counts.get(configuration, 0) + 1
        if counts[configuration] <= MOST_ADVICE:
            shown.append((configuration, change, gain, outside))
    order = {configuration: at for at, configuration in enumerate(dict.fromkeys(
        configuration for configuration, _ in model.advices))}
    shown.sort(key=lambda one: (order[one[0]], -one[2]))
    return Table("advice", f"what would help: images/s predicted by the step model{suffix}", [
        *named()[:2], Column("change", lambda one: one[1]),
        Column("gain", lambda one: one[2] / 100, signed),
        Column("extrapolated", lambda one: "yes" if one[3] else None)], shown)


def winners(summary, model, suffix):
    """The fastest strategy, a row for each bandwidth, a column for each batch: as measured where these runs measured
    several strategies at the links' own bandwidth, else as predicted."""
    own = sorted(set(numbers([link for link in model.links if link.get("path") == "ring"], "bandwidth_gbs")))
    error, predicted = model.error(summary), {strategy for (_, strategy), _ in model.predictions + model.winners}
    cells, left_out = {}, {}  # {(batch, GB/s): text}, of several runs the last
    for (conditions, strategy), record in model.winners:
        gbs, margin = number(record, "bandwidth_gbs"), number(record, "margin")
        if None in (gbs, margin):
            continue
        order = ranked(dict(summary.groups).get(conditions, []))
        # What several runs measured differs a little, and is one column.
        cells[conditions.batch, own[-1] if gbs in own else gbs] = measured_lead(*order[:2]) \
            if gbs in own and len(order) > 1 else f"{strategy} {predicted_lead(margin, error)}"
        left_out.update({m.strategy: None for m in order if m.strategy not in predicted})

    def bandwidth(gbs):
        if gbs not in own:
            return f"{gbs:.3g} GB/s"
        return f"{' to '.join(dict.fromkeys(f'{end:.3g}' for end in (own[0], own[-1])))} GB/s (measured)"
    return Table("winners", f"fastest strategy predicted by the step model, by link bandwidth{suffix}", [
        Column("bandwidth", bandwidth), *(Column(f"batch {batch}", lambda gbs, batch=batch: cells.get((batch, gbs)))
                                          for batch in sorted({batch for batch, _ in cells}))],
        sorted({gbs for _, gbs in cells}), [
            "%: by how much it is faster than the second; within model error: by less than the model's "
            "largest error, so that another strategy may be the fastest",
            *([f"measured here, but not in the model: {words.listed(left_out)}"] if left_out else []),
            *model.doubt(summary)])


def measured_lead(first, second):
    return f"{first.strategy} " + ("within noise" if distinct(first.rate, second.rate) is False else
                                   f"{100 * (first.rate.median / second.rate.median - 1):+.1f} % measured")


def predicted_lead(margin, error):
    return "within model error" if error is not None and margin <= error else f"{100 * margin:+.1f} %"
