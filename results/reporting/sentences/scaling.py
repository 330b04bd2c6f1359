"""Throughput over ranks."""

from .. import words


def parameter_server(summary):
    """How a server's throughput grows with its workers, beside all-reduce's on as many ranks."""
    for (conditions, strategy), points in summary.series().items():
        if strategy.startswith("parameter-server"):
            yield None, growth(summary, conditions, strategy, points)
            yield from ((None, text) for text in beside_all_reduce(summary, points))


def others(summary):
    for (conditions, strategy), points in summary.series().items():
        if not strategy.startswith("parameter-server"):
            yield None, growth(summary, conditions, strategy, points)
    for measured in summary.measured.values():
        yield from ((measured.conditions, text) for text in against_single(summary, measured))


def growth(summary, conditions, strategy, points):
    """Over rising ranks; the share is of a rank that computes, so that a server is left out."""
    shares = [point.rate.median / point.ranks_computing for point in (points[0], points[-1])]

    def ranks(point):
        held, computing = point.conditions.world_size, point.ranks_computing
        return words.count(held, "rank") + (f" ({computing} computing)" if computing < held else "")

    setting = summary.name(conditions, without=("world_size",))
    figures = words.listed(f"{words.rate(point.rate.median)} on {ranks(point)}" for point in points)
    where = f" ({setting})" if setting else ""
    return (f"{strategy}{where}: images/s {figures}; a computing rank's share goes from "
            f"{words.rate(shares[0])} to {words.rate(shares[1])} "
            f"({100 * (shares[1] / shares[0] - 1):+.1f} %).")


def against_single(summary, measured):
    efficiency, single = (summary.efficiency_vs_single(measured),
                          summary.single(measured.conditions))
    if efficiency is not None and single and measured.conditions.world_size > 1:
        yield (f"{measured.strategy} has {words.percent(efficiency)} of "
               f"{measured.conditions.world_size} times the {words.rate(single.rate.median)} "
               f"images/s of one rank ({single.strategy}).")


def beside_all_reduce(summary, points):
    for point in points:
        other = summary.measured.get((point.conditions, "all-reduce"))
        if other and other.rate:
            ratio = point.rate.median / other.rate.median
            yield (f"On {words.count(point.conditions.world_size, 'rank')} {point.strategy} "
                   f"reaches {words.percent(ratio)} of all-reduce's images/s "
                   f"({words.rate(point.rate.median)} against {words.rate(other.rate.median)}).")
