"""What the step model says of what was not measured, and how far it is off where something was."""

from .. import what_if, words
from ..records import number, plain
from ..summary import median_of

MOST_ADVICE = 5
WORTH = 0.01  # of a step: what another plan of buckets must gain for its sizes to be told
FEW = 12  # buckets whose sizes can be read


def sentences(summary):
    for model in summary.models:
        said = [*links(model), *error(summary, model)]
        if what_if.is_trusted(summary, model):
            said += [*more_ranks(summary, model), *bucket_plans(model), *advice(model)]
        else:
            said.append("Its predictions and advice are left out, as it is off by more than "
                        f"{words.percent(what_if.MOST_ERROR)} for a step that was measured.")
        yield from ((model.conditions, text) for text in said)


def batch(conditions):
    return words.parts(conditions)["batch"]


def links(model):
    """Of several fits (runs), medians."""
    parts = []
    for path, what in (("ring", "ring messages"), ("star", "sends of all ranks to one")):
        fits = [link for link in model.links if link.get("path") == path]
        alpha, bandwidth = median_of(fits, "alpha_us"), median_of(fits, "bandwidth_gbs")
        if alpha is None:
            continue
        text = f"{what} {alpha:.1f} us"
        if bandwidth is None:
            text += " whatever their size"
        else:
            text += (f" and {bandwidth:.4g} GB/s, half of it at "
                     f"{words.size(alpha * 1e-6 * bandwidth * 1e9)}")
        off = median_of(fits, "worst_error")
        text += "" if off is None else f" (within {words.percent(max(off, 0.001))})"
        parts.append(text)
    if parts:
        yield (f"Links, as latency + bytes / bandwidth fitted to exchanges of buckets' sizes: "
               f"{'; '.join(parts)}.")


def error(summary, model):
    """Of the step: predicted over measured, less 1."""
    held = what_if.held_against(summary, model.predictions)
    if not held:
        return
    errors = [predicted / measured - 1 for _, predicted, measured in held]
    worst = max(range(len(errors)), key=lambda i: abs(errors[i]))
    (conditions, strategy), predicted, measured = held[worst]
    which = (f"{strategy} at {batch(conditions)} on {words.count(conditions.world_size, 'rank')}: "
             f"{words.ms(predicted)} predicted, {words.ms(measured)} measured "
             f"({100 * errors[worst]:+.1f} %)")
    if len(held) == 1:
        yield f"The step model, held against {which}."
        return
    short = sum(one < 0 for one in errors)
    how = (f"{short} of {len(held)} are predicted too short" if 0 < short < len(held) else
           f"all are predicted too {'short' if short else 'long'}")
    yield (f"The step model, held against {len(held)} measured steps, is off by "
           f"{words.percent(what_if.median_error(held))} in the median, most for {which}; {how}.")


def more_ranks(summary, model):
    """A sentence a strategy and batch; what all assume stands in the first."""
    found, said = {}, False
    for (conditions, strategy), record in what_if.unmeasured(summary, model.predictions):
        ranks = found.setdefault((strategy, batch(conditions)), {})
        ranks.setdefault(conditions.world_size, []).append(record)
    for (strategy, of_batch), ranks in found.items():
        ends = sorted(ranks)
        kept = {n: median_of(ranks[n], "efficiency_predicted") for n in ends}
        rates = {n: median_of(ranks[n], "images_per_s_predicted") for n in ends}
        text = f"{strategy or 'a step'} at {of_batch} is predicted to "
        if None not in kept.values():
            text += "keep " + words.listed(
                f"{words.percent(kept[n])}{' of the rate without exchange' if n == ends[0] else ''} on "
                f"{f'{n} ranks' if n == ends[0] else n}" for n in ends)
            if rates[ends[-1]] is not None:
                text += f" ({words.rate(rates[ends[-1]])} images/s)"
        elif None not in rates.values():
            text += "reach " + words.listed(f"{words.rate(rates[n])} images/s on {n} ranks"
                                            for n in ends)
        else:
            continue
        outside = any(record.get("extrapolated") for n in ends for record in ranks[n])
        text += ", a batch outside the measured ones" if outside else ""
        yield text + ("." if said else ", were their links as these.")
        said = True


def bucket_plans(model):
    """Of batches with the same plans together."""
    steps = {conditions: number(record, "step_ms_predicted")
             for (conditions, strategy), record in model.predictions if plain(strategy) == "ddp"}
    plans = {}
    for configuration, record in model.bucket_plans:
        rule, best = number(record, "rule_exposed_ms"), number(record, "best_exposed_ms")
        sizes = record.get("best_buckets_mib") or []
        if None in (rule, best):
            continue
        step = steps.get(configuration.conditions)
        share = (rule - best) / step if step else None
        key = number(record, "rule_buckets"), f"{rule:.3f}", f"{best:.3f}", tuple(sizes)
        plans.setdefault(key, {})[configuration.conditions] = share
    for (buckets, rule, best, sizes), batches in plans.items():
        of = words.listed(str(conditions.batch) for conditions in batches)
        text = (f"ddp's buckets at batch {of}, by the model: the rule's {buckets or ''} leave "
                f"{rule} ms exposed, the best plan's {len(sizes) or ''} leave {best} ms")
        shares = [share for share in batches.values() if share is not None]
        if shares:
            most = "at most " if len(shares) > 1 else ""
            text += f": {most}{words.percent(max(shares))} of the step to gain"
            if max(shares) >= WORTH and 0 < len(sizes) <= FEW:
                text += f", with {', '.join(f'{size:.3g}' for size in sizes)} MiB (float32)"
        yield " ".join(text.split()) + "."


def advice(model):
    """The changes that gain most, a sentence a strategy and batch."""
    found = {}
    for (conditions, strategy), record in model.advices:
        if number(record, "gain_percent") is not None:
            changes = found.setdefault((strategy, batch(conditions)), {})
            changes.setdefault(record.get("change"), []).append(record)
    for (strategy, of_batch), changes in found.items():
        gains = {change: median_of(records, "gain_percent") for change, records in changes.items()}
        best = sorted(gains, key=gains.get, reverse=True)[:MOST_ADVICE]
        outside = {change for change in best
                   if any(record.get("extrapolated") for record in changes[change])}
        yield (f"Advice for {strategy} at {of_batch}, images/s by the model: " + "; ".join(
            f"{change} {gains[change]:+.1f} %{' (extrapolated)' if change in outside else ''}"
            for change in best) + ".")
