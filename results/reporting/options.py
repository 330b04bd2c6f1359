"""The options in which runs of one configuration differ: where they change the rate, the runs are of
different configurations, which are named by them."""

from .records import Configuration, described, number
from .trainings import continues

OF_BUCKETS = ("bucket_order", "small_bucket_mb", "bucket_copy", "no_overlap")
OF_EXCHANGE = ("comm_priority", "comm_ctas")
OF_COMPUTE = ("fusion", "recompute", "graph", "invariant")
OF_INPUT = ("decoder", "decoder_share", "workers", "prefetch", "cache", "scaled_decode")
SELF_EXPLAINING = {"bucket_order"}  # the value names the option
RENAMED = {("bucket_order", "ddp"): "small-first"}  # in 0.1


def distinguish(runs):
    """Names the options in which runs of one configuration differ (Run.distinguished)."""
    for (configuration, bucketed), of in by_configuration(runs).items():
        if len(of) > 1:
            name_options(configuration, bucketed, of)


def by_configuration(runs):
    """{(configuration, whether it has buckets): [run]}."""
    found = {}
    for run in runs:
        for key in dict.fromkeys((described(run, record), number(record, "bucket_cap_mb") is not None)
                                 for record in run.records if record["kind"] in ("step", "epoch")):
            found.setdefault(key, []).append(run)
    return found


def between(old, new):
    """{option: (values of OLD, of NEW)} in which runs of one configuration differ."""
    before, found = by_configuration(old), {}
    for (configuration, bucketed), after in by_configuration(new).items():
        for key in sum(options_that_matter(configuration, bucketed), ()):
            sides = tuple(sorted({option(run, key) for run in runs} - {None})
                          for runs in (before.get((configuration, bucketed), []), after))
            if all(sides) and sides[0] != sides[1]:
                found[key] = sides
    return found


def options_that_matter(configuration, bucketed):
    """(those that name the strategy, those that are conditions)."""
    conditions, strategy = configuration
    exchanges = strategy != "none" and conditions.world_size > 1
    return ((OF_EXCHANGE + OF_BUCKETS * bucketed) * exchanges,
            OF_COMPUTE + OF_INPUT * (conditions.data != "synthetic"))


def name_options(configuration, bucketed, runs):
    conditions, strategy = configuration
    first = first_parts(runs)
    named, conditional = (differing(keys, first.values())
                          for keys in options_that_matter(configuration, bucketed))
    if not named and not conditional:
        return
    for run in runs:
        run.distinguished[configuration] = Configuration(
            conditions._replace(options=options_of(first[id(run)], conditional)),
            with_words(strategy, options_of(first[id(run)], named)))


def first_parts(runs):
    """{id of a run: the run that began its training}, else itself: who continues a training with other
    options, continues it."""
    found = {}
    ordered = sorted(runs, key=lambda run: run.header.get("started", ""))
    for at, run in enumerate(ordered):
        epochs = [epoch for epoch in run.of("epoch") if number(epoch, "epoch") is not None]
        earlier = next((one for one in reversed(ordered[:at])
                        if epochs and continues(run, epochs, one)), None)
        found[id(run)] = found[id(earlier)] if earlier else run
    return found


def differing(keys, runs):
    return [key for key in keys if len({option(run, key) for run in runs} - {None}) > 1]


def option(run, key):
    value = run.header.get(f"options.{key}")
    return None if value is None else RENAMED.get((key, str(value)), str(value))


def options_of(run, keys):
    """In words; a switch that is off is left out."""
    said = {key: option(run, key) for key in keys}
    return ", ".join(value if key in SELF_EXPLAINING else
                     f"--{key.replace('_', '-')}" + (f" {value}" if value != "True" else "")
                     for key, value in said.items() if value not in (None, "False"))


def with_words(strategy, text):
    """A strategy's name, with what follows it in brackets."""
    if not text:
        return strategy
    return f"{strategy[:-1]}, {text})" if strategy.endswith(")") else f"{strategy} ({text})"
