#!/usr/bin/env python3
"""Writes images.json: small files of every kind, what Pillow makes of them, and what it resizes.

usage: tests/golden/make_images.py [FILE]. Made with Pillow 10.4, whose pixels torchvision's default loader and
transforms give; pixels are named by their FNV-1a hash, R G B by rows.
"""

import io
import json
import pathlib
import struct
import sys
import zlib

import numpy as np
from PIL import Image, __version__

BILINEAR = Image.Resampling.BILINEAR


def fnv(pixels):
    value = 0xCBF29CE484222325
    for byte in pixels:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def formula(width, height):
    """The same as in data_golden_test.cpp."""
    y, x, c = np.mgrid[0:height, 0:width, 0:3]
    return ((3 * x * (c + 1) + 5 * y * (3 - c) + (x * y >> 3)) % 256).astype(np.uint8)


def smooth(width, height, channels):
    y, x, c = np.mgrid[0:height, 0:width, 0:channels]
    return (128 + 90 * np.sin(0.31 * x + 0.2 * c) * np.cos(0.23 * y - 0.4 * c)).astype(np.uint8)


def jpeg(mode, **options):
    channels = {"L": 1, "RGB": 3, "CMYK": 4}[mode]
    file = io.BytesIO()
    Image.fromarray(smooth(37, 29, channels).squeeze(), mode).save(file, "jpeg", **{"quality": 80} | options)
    return file.getvalue()


def packed(values, bits):
    """Scan lines of `values` (rows, columns), most significant bits first, each with filter type 0."""
    lines = b""
    for row in values:
        line = "".join(f"{value:0{bits}b}" for value in row)
        line += "0" * (-len(line) % 8)
        lines += b"\0" + int(line, 2).to_bytes(len(line) // 8, "big")
    return lines


def png(color_type, bits, interlaced=False, palette=None, transparent=None, width=11, height=9):
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color_type]
    most = len(palette) // 3 if palette else 2**bits
    y, x, c = np.mgrid[0:height, 0:width, 0:channels]
    values = (x * x * 2311 + y * 977 + c * 12347 + x * y * 131) % most
    if bits == 16 and color_type == 0:
        values[::2] %= 400  # on both sides of 255
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    lines = b""
    for left, top, across, down in passes:
        part = values[top::down, left::across]
        if part.size:
            lines += packed(part.reshape(part.shape[0], -1), bits)

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    file = b"\x89PNG\r\n\x1a\n"
    file += chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, int(interlaced)))
    if palette:
        file += chunk(b"PLTE", palette)
    if transparent:
        file += chunk(b"tRNS", transparent)
    return file + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")


def files():
    yield "JPEG gray", jpeg("L")
    for name, subsampling in (("4:4:4", 0), ("4:2:2", 1), ("4:2:0", 2)):
        yield f"JPEG {name}", jpeg("RGB", subsampling=subsampling)
    yield "JPEG 4:2:0 progressive", jpeg("RGB", subsampling=2, progressive=True)
    yield "JPEG 4:2:0 with restart markers", jpeg("RGB", subsampling=2, restart_marker_blocks=2)
    yield "JPEG stored as RGB", jpeg("RGB", keep_rgb=True)
    yield "JPEG CMYK", jpeg("CMYK")
    for bits in (1, 2, 4, 8, 16):
        yield f"PNG gray of {bits} bits", png(0, bits)
        yield f"PNG gray of {bits} bits, interlaced", png(0, bits, interlaced=True)
    yield "PNG gray with a transparent value", png(0, 8, transparent=b"\0\x07")
    yield "PNG gray of 16 bits with a transparent value", png(0, 16, transparent=b"\0\x07")
    yield "PNG RGB with a transparent colour", png(2, 8, transparent=bytes([0, 68, 0, 127, 0, 186]))  # of a pixel
    for bits in (8, 16):
        yield f"PNG RGB of {bits} bits", png(2, bits)
        yield f"PNG gray and alpha of {bits} bits", png(4, bits)
        yield f"PNG RGBA of {bits} bits, interlaced", png(6, bits, interlaced=True)
    colors = bytes(i * 37 % 256 for i in range(3 * 16))
    for bits in (1, 2, 4, 8):
        palette = colors[:3 * min(2**bits, 16)]
        yield f"PNG palette of {bits} bits", png(3, bits, palette=palette)
        yield f"PNG palette of {bits} bits with transparency", png(3, bits, palette=palette, transparent=b"\0\x80")


def decoded():
    for name, content in files():
        image = Image.open(io.BytesIO(content)).convert("RGB")
        yield {"name": name, "file": content.hex(), "width": image.width, "height": image.height,
               "rgb": fnv(image.tobytes())}


def resized():
    for size, to in (((5, 4), (3, 3)), ((1, 1), (4, 3)), ((3, 200), (7, 5)), ((61, 47), (224, 224)),
                     ((301, 222), (224, 224)), ((333, 250), (32, 32)), ((500, 375), (224, 224)), ((97, 64), (1, 1))):
        image = Image.fromarray(formula(*size)).resize(to, BILINEAR)
        yield {"from": size, "to": to, "rgb": fnv(image.tobytes())}


def center_crop(image, size, shorter):
    """torchvision's Resize(shorter) and CenterCrop(size) of a PIL image (transforms.functional)."""
    least = min(image.size)
    image = image.resize(tuple(shorter if side == least else int(shorter * side / least) for side in image.size),
                         BILINEAR)
    left, top = (int(round((side - size) / 2.0)) for side in image.size)
    return image.crop((left, top, left + size, top + size))


def validated():
    for of, size, shorter in (((500, 375), 224, 256), ((375, 500), 224, 232), ((333, 251), 64, 73),
                              ((100, 160), 112, 128), ((77, 301), 65, 65)):
        image = center_crop(Image.fromarray(formula(*of)), size, shorter)
        yield {"from": of, "image_size": size, "resize": shorter, "rgb": fnv(image.tobytes())}


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("images.json")
    text = {"pillow": __version__, "decoded": list(decoded()), "resized": list(resized()),
            "validated": list(validated())}
    lines = ",\n".join(f' "{key}": ' + ("[\n  " + ",\n  ".join(map(json.dumps, value)) + "]"
                                       if isinstance(value, list) else json.dumps(value))
                       for key, value in text.items())
    pathlib.Path(out).write_text("{\n" + lines + "}\n")


if __name__ == "__main__":
    main()
