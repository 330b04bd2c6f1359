#!/usr/bin/env python3
"""Golden values: what PyTorch computes for torchvision's ResNets, in float64.

Run it with a Python that has numpy, torch and torchvision (no GPU needed):

    python tests/golden/make_golden.py [case ...]

It writes one JSON file per case to its own folder. The files hold results only: weights, statistics
and inputs come from a formula, which the C++ tests evaluate too.

A gradient is continuous in the rounding except where a ReLU's input changes sign or a max-pool
window changes its winner: one such flip among n elements moves the gradients of every layer below
by about 1/sqrt(n), some 1e-3, far above the 1e-4 that the tests allow. So the cases are made such
that none is near: norm biases are spread (2 u), a bottleneck's last norm is halved so that errors
do not grow from block to block, and the input seed is, of 1 to 1000, the one with the widest margin:
the least distance of any ReLU input from zero, and of any max-pool winner from its runner-up, in
units of the rms error that PyTorch's float32 has in that layer.

The formula. For element i (flat, in C order of torchvision's layout, from 0) of the tensor with
the given seed, in wrapping uint64 arithmetic:

    z = seed * 0xD1342543DE82EF95 + (i + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z =  z ^ (z >> 31)
    u = (z >> 11) * 2^-53 * 2 - 1                    as a double, in [-1, 1)

Every tensor below is evaluated in double and rounded to float32, which is what the C++ side
holds; here it is then cast back to float64.

    tensor                                         seed            value
    input x, shape N 3 H W                         "input_seed"    sqrt(3) * u
    k-th of model.named_parameters(), k from 0     1000 + k
        convolution weight, shape K C R S                          sqrt(6 / (K R S)) * u
        norm weight                                                1 + 0.2 * u
        norm weight, name ending in bn3.weight                     0.5 + 0.1 * u
        norm bias                                                  2 * u
        fc.weight, shape classes F                                 sqrt(1 / F) * u
        fc.bias                                                    0.1 * u
    j-th norm of model.named_modules(), j from 0
        running_mean                               5000 + 2 j      0.1 * u
        running_var                                5001 + 2 j      1 + 0.2 * u

The label of sample n is (7 n + 3) mod classes. Norms have eps 1e-5 and momentum 0.1.

In a file, a tensor is given by its l2 norm ("norm") and by m = min(wanted, count) elements
("samples"), the j-th being element floor((j + 0.5) * count / m). Wanted is a prime that divides
no count: a power of two would take the same channel and tap of every filter. "evaluation" is with
the initial weights and running statistics. "training" starts from them too: its logits, gradients
and running statistics are those of the first step, its losses are those of every step, its
weights are those after the last. "uniform" holds the first four u of seed 1000. The optimiser is
torch.optim.SGD, which decays every parameter.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import torchvision

PARAMETER_SEED = 1000
RUNNING_SEED = 5000
STEPS = 3
LOGITS, GRADIENTS, STATE = 61, 23, 11  # samples wanted of each

# The input seeds keep every ReLU input and max-pool choice clear of rounding (above).
CASES = {
    "resnet18": dict(
        model="resnet18", batch_size=8, image_size=64, classes=1000, label_smoothing=0.1,
        learning_rate=0.003, momentum=0.9, weight_decay=1e-4, input_seed=292),
    "resnet50": dict(
        model="resnet50", batch_size=4, image_size=40, classes=1000, label_smoothing=0.0,
        learning_rate=0.001, momentum=0.9, weight_decay=1e-4, input_seed=264),
    "resnet18_odd": dict(
        model="resnet18", batch_size=6, image_size=45, classes=7, label_smoothing=0.0,
        learning_rate=0.001, momentum=0.9, weight_decay=1e-2, input_seed=61),
}


def uniform(seed, shape):
    """The formula's u for every element of a tensor."""
    index = np.arange(1, np.prod(shape, dtype=np.int64) + 1, dtype=np.uint64)
    z = np.uint64(seed * 0xD1342543DE82EF95 % 2**64) + index * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(11)).astype(np.float64) * 2.0**-53 * 2 - 1).reshape(shape)


def as_held(values):
    """A tensor of the float32 values that C++ holds, in float64."""
    return torch.from_numpy(values.astype(np.float32)).double()


def parameter_values(name, shape, seed):
    u = uniform(seed, shape)
    if len(shape) == 4:
        return np.sqrt(6 / (shape[0] * shape[2] * shape[3])) * u
    if name == "fc.weight":
        return np.sqrt(1 / shape[1]) * u
    if name == "fc.bias":
        return 0.1 * u
    if name.endswith("bias"):
        return 2 * u
    return 0.5 + 0.1 * u if name.endswith("bn3.weight") else 1 + 0.2 * u


def make_model(case):
    model = getattr(torchvision.models, case["model"])(num_classes=case["classes"]).double()
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    with torch.no_grad():
        for k, (name, p) in enumerate(model.named_parameters()):
            p.copy_(as_held(parameter_values(name, tuple(p.shape), PARAMETER_SEED + k)))
        for j, norm in enumerate(norms):
            channels = norm.num_features
            norm.running_mean.copy_(as_held(0.1 * uniform(RUNNING_SEED + 2 * j, channels)))
            norm.running_var.copy_(as_held(1 + 0.2 * uniform(RUNNING_SEED + 2 * j + 1, channels)))
    return model


def make_batch(case):
    n, size = case["batch_size"], case["image_size"]
    x = as_held(np.sqrt(3) * uniform(case["input_seed"], (n, 3, size, size)))
    return x, (7 * torch.arange(n) + 3) % case["classes"]


def loss_of(case, logits, labels):
    return torch.nn.functional.cross_entropy(
        logits, labels, label_smoothing=case["label_smoothing"])


def evaluate(case, model, x, labels):
    model.eval()
    with torch.no_grad():
        logits = model(x)
    return dict(loss=loss_of(case, logits, labels).item(), logits=logits)


def train(case, model, x, labels):
    """STEPS steps: the losses, and copies of what the files hold of the first step and the end."""
    optimizer = torch.optim.SGD(
        model.parameters(), lr=case["learning_rate"], momentum=case["momentum"],
        weight_decay=case["weight_decay"])
    model.train()
    result = dict(losses=[])
    for step in range(STEPS):
        logits = model(x)
        loss = loss_of(case, logits, labels)
        optimizer.zero_grad()
        loss.backward()
        result["losses"].append(loss.item())
        if step == 0:
            result["logits"] = logits.detach().clone()
            result["gradients"] = {n: p.grad.clone() for n, p in model.named_parameters()}
            result["running"] = {n: b.clone() for n, b in model.named_buffers() if b.dim()}
        optimizer.step()
    result["weights"] = {n: p.detach().clone() for n, p in model.named_parameters()}
    return result


def samples(values, wanted):
    flat = values.flatten()
    m = min(wanted, flat.numel())
    return flat[[(2 * j + 1) * flat.numel() // (2 * m) for j in range(m)]]


def rounded(number):
    return float(f"{number:.12g}")


def summary(values, wanted):
    return dict(norm=rounded(values.norm().item()),
                samples=[rounded(v) for v in samples(values, wanted).tolist()])


def table(tensors, wanted):
    return [dict(name=n, shape=list(t.shape), **summary(t, wanted)) for n, t in tensors.items()]


def golden(name):
    case = CASES[name]
    x, labels = make_batch(case)
    evaluation = evaluate(case, make_model(case), x, labels)
    training = train(case, make_model(case), x, labels)
    return dict(
        case=name, **case, steps=STEPS,
        torch=torch.__version__, torchvision=torchvision.__version__,
        uniform=uniform(PARAMETER_SEED, 4).tolist(),
        evaluation=dict(
            loss=rounded(evaluation["loss"]), logits=summary(evaluation["logits"], LOGITS)),
        training=dict(
            losses=[rounded(v) for v in training["losses"]],
            logits=summary(training["logits"], LOGITS),
            gradients=table(training["gradients"], GRADIENTS),
            running=table(training["running"], STATE),
            weights=table(training["weights"], STATE)))


def main():
    for name in sys.argv[1:] or CASES:
        text = json.dumps(golden(name), separators=(",", ":"))
        path = pathlib.Path(__file__).with_name(f"{name}.json")
        path.write_text(text.replace('{"name"', '\n{"name"') + "\n")
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
