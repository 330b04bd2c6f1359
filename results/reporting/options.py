"""The options in which runs of one configuration differ: where they change the rate or the accuracy, the runs are of
different configurations, which are named by them."""

from .records import Configuration, described, number, text
from .trainings import trainings_of

OF_BUCKETS = ("bucket_order", "small_bucket_mb", "bucket_copy", "no_overlap")
OF_EXCHANGE = ("comm_priority", "comm_ctas", "grad_dtype", "norm_stats")
OF_COMPUTE = ("fusion", "recompute", "graph", "invariant", "autotune", "clip_grad_norm", "ema", "check_neighbour")
OF_TRAINING = ("decoder", "decoder_share", "workers", "prefetch", "cache", "scaled_decode",  # of its input
               "augment", "epochs", "label_smoothing", "learning_rate", "schedule", "lr_warmup", "lr_warmup_steps",
               "momentum", "nesterov", "weight_decay", "no_norm_decay", "trust_coefficient")
SELF_EXPLAINING = {"bucket_order"}  # the value names the option
RENAMED = {("bucket_order", "ddp"): "small-first"}  # in 0.1


def distinguish(*sides):
    """Names the options, and the caps of buckets, in which runs of one configuration differ. Of several
    sides, which are compared, all name what differs within one."""
    several = {strategy for side in sides for strategy, caps in caps_of(side).items() if len(caps) > 1}
    for run in sum(sides, []):
        run.several_caps, run.distinguished = several, {}
    found = [by_configuration(side) for side in sides]
    for conditions in dict.fromkeys(configuration.conditions for side in found for configuration, _ in side):
        name_options(conditions, [{key: runs for key, runs in side.items() if key[0].conditions == conditions}
                                  for side in found])


def caps_of(runs):
    """{strategy: its caps}."""
    caps = {}
    for record in (record for run in runs for record in run.records):
        cap = number(record, "bucket_cap_mb")
        if cap is not None:
            caps.setdefault(text(record, "strategy"), set()).add(cap)
    return caps


def by_configuration(runs):
    """{(configuration, whether it has buckets): [run]}."""
    found = {}
    for run in runs:
        for key in dict.fromkeys((described(run, record), number(record, "bucket_cap_mb") is not None)
                                 for record in run.records if record["kind"] in ("step", "epoch")):
            found.setdefault(key, []).append(run)
    return found


def between(old, new):
    """{option: (values of OLD, of NEW)} of runs that are compared although none of OLD has a value of NEW."""
    before, found = by_configuration(old), {}
    for (configuration, bucketed), after in by_configuration(new).items():
        for key in sum(options_that_matter(configuration, bucketed), ()):
            sides = tuple(sorted({option(run, key) for run in runs} - {None})
                          for runs in (before.get((configuration, bucketed), []), after))
            if all(sides) and not set(sides[0]) & set(sides[1]):
                found[key] = sides
    caps = caps_of(old), caps_of(new)
    for strategy in set(caps[0]) & set(caps[1]):
        if caps[0][strategy] != caps[1][strategy]:
            found["bucket_cap_mb"] = tuple([f"{cap:g}" for cap in sorted(of[strategy])] for of in caps)
    return found


def options_that_matter(configuration, bucketed):
    """(those that name the strategy, those that are conditions)."""
    conditions, strategy = configuration
    exchanges = strategy != "none" and conditions.world_size > 1
    return ((OF_EXCHANGE + OF_BUCKETS * bucketed) * exchanges,
            OF_COMPUTE + OF_TRAINING * (conditions.data != "synthetic"))


def name_options(conditions, sides):
    """Of each side its runs by configuration. Conditions differ where any strategy's runs do: another
    strategy is compared with those that share its options."""
    firsts = [first_parts(sum(side.values(), [])) for side in sides]
    first = {run: begun for of in firsts for run, begun in of.items()}
    for configuration, bucketed in dict.fromkeys(key for side in sides for key in side):
        names, shared = options_that_matter(configuration, bucketed)
        runs = [side.get((configuration, bucketed), []) for side in sides]
        named = [key for key in names if any(differs(key, [first[id(run)] for run in of]) for of in runs)]
        conditional = [key for key in shared if any(differs(key, of.values()) for of in firsts)]
        for run in sum(runs, []) if named or conditional else []:
            run.distinguished[configuration] = Configuration(
                conditions._replace(options=options_of(first[id(run)], conditional)),
                with_words(configuration.strategy, options_of(first[id(run)], named)))


def first_parts(runs):
    """{id of a run: the run that began its training}, else itself: who continues a training with other
    options, continues it."""
    parts = [(run, [epoch for epoch in run.of("epoch") if number(epoch, "epoch") is not None]) for run in runs]
    trained = trainings_of([part for part in parts if part[1]])
    return {**{id(run): run for run in runs}, **{id(run): one.runs[0] for one in trained for run in one.runs}}


def differs(key, runs):
    return len({option(run, key) for run in runs} - {None}) > 1


def option(run, key):
    value = run.header.get(f"options.{key}")
    return None if value is None or (key, value) == ("epochs", 0) else RENAMED.get((key, str(value)), str(value))


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
