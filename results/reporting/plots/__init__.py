"""The plots. Each takes the summary and returns a figure, or None where there are no records."""

from . import communication, exchanges, machine, scaling, training
from .style import finish

PLOTS = [
    ("throughput_comparison", "Throughput of the strategies", training.throughput),
    ("training_time_comparison", "Time of an epoch", training.training_time),
    ("loss_curves", "Loss over epochs", training.loss_curves),
    ("accuracy_curves", "Accuracy over epochs", training.accuracy_curves),
    ("communication_overhead", "Communication of a step", communication.overhead),
    ("step_breakdown", "Where a step's time goes", communication.breakdown),
    ("scaling", "Throughput over ranks", scaling.scaling),
    ("bucket_timeline", "Exchanges of a step", exchanges.timeline),
    ("collective_bandwidth", "Bus bandwidth of the collectives", machine.collective_bandwidth),
    ("link_matrix", "Bandwidth of each link", machine.link_matrix),
    ("gpu_samples", "GPU samples", machine.gpu_samples),
]


def write_plots(summary, source, folder):
    """Writes those that there are records for; [(caption, path)]. `source` names machine and date,
    and is printed below each."""
    written = []
    for name, caption, draw in PLOTS:
        figure = draw(summary)
        if figure is not None:
            folder.mkdir(exist_ok=True)
            path = finish(figure, caption, source, folder / f"{name}.png")
            note = getattr(figure, "note", "")
            written.append((f"{caption} ({note})" if note else caption, path))
    return written
