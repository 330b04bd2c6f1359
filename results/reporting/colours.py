"""Okabe and Ito's colours, which most colour-blind readers can distinguish. A colour of a strategy is not
one of a term."""

STRATEGIES = {"ddp": "#0072B2", "all-reduce": "#E69F00", "parameter-server": "#D55E00",
              "parameter-server-sharded": "#CC79A7", "parameter-server-async": "#882255",
              "data-parallel": "#56B4E9", "zero1": "#009E73", "zero2": "#44AA99",
              "fsdp": "#999933", "peer": "#117733", "none": "#888888"}
TERMS = ("#332288", "#CC6677", "#AA4499", "#DDCC77", "#88CCEE", "#BBBBBB")  # of summary.TERMS: Tol's muted
LINES = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#882255", "#999933"]


def of_strategy(strategy):
    return STRATEGIES.get(strategy, "#444444")
