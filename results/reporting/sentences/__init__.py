"""What the report says. Each topic is a function of the summary that yields (conditions, sentence),
conditions being None for what concerns all. A sentence is made only where the figures that it names
are there, and what it claims (faster, alike, more) is decided by them."""

from . import choice, communication, convergence, ranking, runs, scaling, what_if

TOPICS = [
    ("Ranking, and why", ranking.sentences),
    ("Convergence", convergence.sentences),
    ("Communication", communication.sentences),
    ("Scaling of the parameter server", scaling.parameter_server),
    ("Scaling", scaling.others),
    ("What if", what_if.sentences),
    ("When to choose which", choice.sentences),
    ("Runs", runs.sentences),
]


def sections(summary):
    """[(title, [(heading, sentences)])] of the topics that there is something to say about; a
    heading names conditions, and is empty where there is only one set of them."""
    said = []
    for title, topic in TOPICS:
        blocks = {}
        for conditions, sentence in topic(summary):
            heading = summary.name(conditions) if conditions and len(summary.groups()) > 1 else ""
            blocks.setdefault(heading, []).append(sentence)
        if blocks:
            said.append((title, list(blocks.items())))
    return said
