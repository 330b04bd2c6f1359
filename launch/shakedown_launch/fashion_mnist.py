"""launch/fashion_mnist: makes an image folder of Fashion-MNIST, or of generated images."""

import errno
import gzip
import hashlib
import json
import random
import shutil
import struct
import zlib
from pathlib import Path

from .command import Command, Option, UsageError, name, parse, positive

COMMAND = Command(
    "OUTPUT_DIR [options]",
    """Turns the four .gz files of Fashion-MNIST (70,000 gray images, 28x28) into an image folder:
    OUTPUT_DIR/train/<class>/NNNNN.png and OUTPUT_DIR/val/<class>/NNNNN.png, NNNNN being the image's
    number in its file.""",
    [Option(("--source",), "DIR",
            "folder of the four .gz files (default: /usr/share/datasets/fashion-mnist)"),
     Option(("--generate",), None,
            "generate images of the same classes, number and size, on a machine without the files"),
     Option(("--train",), "N",
            "number of training images, the first N/10 of each class (default: all)"),
     Option(("--validation",), "N",
            "number of validation images, the first N/10 of each class (default: all)")],
    "Ends with 2 and the name of the file when an input is damaged, missing or another one, with 3 when the disk is full.")
SOURCE = "/usr/share/datasets/fashion-mnist"  # Debian's package dataset-fashion-mnist
CLASSES = ["0_t-shirt-top", "1_trouser", "2_pullover", "3_dress", "4_coat",
           "5_sandal", "6_shirt", "7_sneaker", "8_bag", "9_ankle-boot"]
SIDE = 28
MARKER = ".fashion_mnist.json"

# folder, file's stem, images in the published file, md5 of its images and labels (.gz)
SPLITS = [
    ("train", "train", 60000,
     "cf8536b0aa1a6ac5fa3f23001093305c", "10bea18fdb374794d4bb42e356e600c9"),
    ("val", "t10k", 10000,
     "f78720b4224f21cce2f2ccf2d7a94c9a", "0d30e22e447f3c33dab9ed536400ac01"),
]


def read(path, header_bytes, md5):
    """The bytes after the header of a published IDX file."""
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    # A FIPS machine refuses the sum for security, which this is not.
    if hashlib.md5(packed, usedforsecurity=False).hexdigest() != md5:
        raise UsageError(f"{path}: damaged, or another file: the md5 sum is not the published {md5}")
    return gzip.decompress(packed)[header_bytes:]


def read_split(source, stem, images_md5, labels_md5):
    return (read(source / f"{stem}-images-idx3-ubyte.gz", 16, images_md5),
            read(source / f"{stem}-labels-idx1-ubyte.gz", 8, labels_md5))


def choose(labels, wanted, path):
    """The first images of each class, as many of each; all of them where no number is wanted."""
    if wanted is None:
        return range(len(labels))
    per_class = wanted // len(CLASSES)
    left = [per_class] * len(CLASSES)
    chosen = []
    for index, label in enumerate(labels):
        if left[label] > 0:
            left[label] -= 1
            chosen.append(index)
    if any(left):
        raise UsageError(
            f"{path}: fewer than {per_class} images of a class, which {wanted} in all need")
    return chosen


def png(pixels):
    """An 8-bit gray PNG of SIDE x SIDE bytes."""
    def chunk(kind, body):
        checksum = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)

    rows = b"".join(b"\0" + pixels[y * SIDE:(y + 1) * SIDE] for y in range(SIDE))  # 0: no filter
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", SIDE, SIDE, 8, 0, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_split(folder, images, labels, chosen):
    for directory in CLASSES:
        (folder / directory).mkdir(parents=True)
    size = SIDE * SIDE
    for index in chosen:
        path = folder / CLASSES[labels[index]] / f"{index:05}.png"
        path.write_bytes(png(images[index * size:(index + 1) * size]))


# ---- generated images ----------------------------------------------------------------------------

def generated_split(count, seed):
    """Images and labels that a network can learn, the same for the same seed in every Python (whose random()
    alone is): an image has its class's pattern, shifted, and noise."""
    generator, size = random.Random(seed), SIDE * SIDE
    noise = generator.randbytes(1 << 20).translate(bytes(value * 95 // 255 for value in range(256)))
    drawn, images, labels = [shifted(label) for label in range(len(CLASSES))], [], bytes(
        index % len(CLASSES) for index in range(count))
    for label in labels:
        at = int(generator.random() * (len(noise) - size))
        # A sum of big numbers adds all pixels at once: none exceeds 160 + 95.
        pixels = drawn[label][int(generator.random() * len(drawn[label]))] + int.from_bytes(noise[at:at + size], "big")
        images.append(pixels.to_bytes(size, "big"))
    return b"".join(images), labels


def shifted(label):
    """A class's 7 x 7 cells, shifted by up to three pixels, each as one number of SIDE x SIDE bytes."""
    places = random.Random(label)  # the same in all splits
    cells = [160 * (places.random() < 0.5) for _ in range(49)]
    return [int.from_bytes(bytes(cells[(y + dy) % SIDE // 4 * 7 + (x + dx) % SIDE // 4]
                                 for y in range(SIDE) for x in range(SIDE)), "big")
            for dx in range(-3, 4) for dy in range(-3, 4)]


# ---- the folder ----------------------------------------------------------------------------------

def available(source=SOURCE):
    return all((Path(source) / f"{stem}-{what}.gz").exists() for _, stem, *_ in SPLITS
               for what in ("images-idx3-ubyte", "labels-idx1-ubyte"))


def convert(source, output, wanted):
    """Writes next to the output and renames, so that a folder of this name is always complete.
    `source`: the folder of the .gz files; None: the images are generated. `wanted`: images by
    SPLITS' folders, None: all."""
    settings = json.dumps({"source": str(source.resolve()) if source else "generated", **wanted})
    marker = output / MARKER
    if marker.exists() and marker.read_text(errors="replace").strip() == settings:
        print(f"{name()}: {output} holds these images already", flush=True)
        return
    if output.exists() and not marker.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output}: exists, and is not from launch/fashion_mnist")

    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    counts = []
    try:
        for seed, (folder, stem, count, *md5s) in enumerate(SPLITS):
            if source:
                images, labels = read_split(source, stem, *md5s)
                chosen = choose(labels, wanted[folder], source / f"{stem}-labels-idx1-ubyte.gz")
            else:
                images, labels = generated_split(wanted[folder] or count, seed)
                chosen = range(len(labels))
            write_split(partial / folder, images, labels, chosen)
            counts.append(f"{len(chosen)} in {folder}/")
        (partial / MARKER).write_text(settings + "\n")
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            error.filename = error.filename or str(output)  # a write has none
        raise
    if output.exists():
        shutil.rmtree(output)
    partial.rename(output)
    print(f"{name()}: {output}: {', '.join(counts)}", flush=True)


def image_count(values, option):
    count = positive(values, option, None, "images")
    if count and count % len(CLASSES):
        raise UsageError(
            f"{option} {count} is not a multiple of {len(CLASSES)}, the number of classes")
    return count


def main(arguments):
    values, words = parse(COMMAND, arguments, keep_unknown=True)
    if len(words) != 1 or words[0].startswith("-"):
        raise UsageError(f"one OUTPUT_DIR is required, not '{' '.join(words)}'")
    if "--generate" in values and "--source" in values:
        raise UsageError("--source and --generate cannot be combined")
    source = None if "--generate" in values else Path(values.get("--source", SOURCE))
    try:
        convert(source, Path(words[0]).absolute(),
                {"train": image_count(values, "--train"),
                 "val": image_count(values, "--validation")})
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    return 0
