#!/usr/bin/env python3
"""Renews report.png, README's picture of a report: its page as chromium shows it. usage: docs/picture.py

Needs chromium and python3-matplotlib. The file keeps the text that it shows, by which
tests/programs/report_test.py finds out when a figure is no longer that of the records.
"""

import html
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parents[1]
RECORD = "results/0.1/h200/strategies-8gpu.jsonl"
PICTURE = TREE / "docs/report.png"
KEY = "Description"  # of PNG's text chunks
SIZE = "1280,2400"  # what is white below the page is cut off


def shown(page):
    """The text of a page as far as it is not folded."""
    body = page[page.index("<body>"):page.index("<details")]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def text_of(picture):
    """The text that a picture was made with."""
    from PIL import Image
    with Image.open(picture) as opened:
        return opened.info[KEY]


def main():
    sys.path.insert(0, str(TREE / "results"))
    from reporting.interpreter import prefer_one_with_matplotlib
    prefer_one_with_matplotlib()
    from PIL import Image, ImageChops
    from PIL.PngImagePlugin import PngInfo

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        sys.exit("docs/picture.py: no chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([TREE / "results/report", RECORD, "--output", folder], cwd=TREE, check=True,
                       stdout=subprocess.DEVNULL)
        page = pathlib.Path(folder, "comparison_report.html")
        subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                        f"--window-size={SIZE}", f"--screenshot={folder}/page.png", page.as_uri()],
                       check=True, capture_output=True, env={**os.environ, "HOME": folder})
        picture = Image.open(io.BytesIO(pathlib.Path(folder, "page.png").read_bytes())).convert("RGB")
        text = shown(page.read_text(encoding="utf-8"))
    white = Image.new("RGB", picture.size, "white")
    bottom = ImageChops.difference(picture, white).getbbox()[3] + 30
    about = PngInfo()
    about.add_text(KEY, text.encode("latin-1", "replace").decode("latin-1"))
    picture.crop((0, 0, picture.width, bottom)).quantize(64).save(PICTURE, optimize=True, pnginfo=about)


if __name__ == "__main__":
    main()
