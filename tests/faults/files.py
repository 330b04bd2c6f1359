"""Files that the faults need."""

import functools
import json
import pathlib
import subprocess
import tempfile

import support

VERSION = """
typedef struct { int major, minor, patch; const char* hash; unsigned cpu, gpu; } dnnl_version_t;
static const dnnl_version_t version = {9, 9, 9, "", 0, 0};
const dnnl_version_t* dnnl_version(void) { return &version; }
"""


def other_version(folder):
    """A library that, loaded before oneDNN, has it be of another version."""
    (folder / "version.c").write_text(VERSION)
    library = folder / "version.so"
    subprocess.run(["mpicc", "-shared", "-fPIC", folder / "version.c", "-o", library], check=True)
    return library


@functools.lru_cache(None)
def saved_weights():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "w.safetensors"
        subprocess.run([support.BIN / "train", "--model", "tiny", "--image-size", "32", "--batch-size", "4",
                        "--iterations", "1", "--warmup", "1", "--certificate", "off", "--save", path],
                       check=True, capture_output=True)
        return path.read_bytes()


def weights(path, differ=False):
    """Those of the small network, as bin/train saves them; or with one bit of one of them turned."""
    data = bytearray(saved_weights())
    begin = 8 + int.from_bytes(data[:8], "little")
    first = begin + json.loads(data[8:begin])["conv1.weight"]["data_offsets"][0]
    if differ:
        data[first] ^= 1
    path.write_bytes(data)
