"""What the programs refuse before they measure anything: usage.txt. Run by tests/run."""

import json
import os
import re
import shlex
import unittest

from support import BIN, TREE, Folder, make_image_folder, needs_cpu_backend, run_bare
import transcript  # support says where it is


HOST = os.uname().nodename


@needs_cpu_backend
class Usage(Folder):
    def setUp(self):
        super().setUp()
        header = json.dumps({"conv1.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        for name, content in {
                "zip.pth": b"PK\x03\x04....", "pickle2.pth": b"\x80\x02\x8a\x0al\xfc\x9cF\xf9", "notes.txt": b"not to be lost",
                "pickle4.pth": b"\x80\x04\x95\x0d\0\0\0\0\0\0\0", "object.jsonl": b"{}",
                "wrong.safetensors": len(header).to_bytes(8, "little") + header + b"\0\0\0\0"}.items():
            (self.folder / name).write_bytes(content)
        make_image_folder(self.folder / "images", 1)

    def answer(self, given):
        """Of "VARIABLE=VALUE... PROGRAM WORDS": its exit code and what it prints; FOLDER has the files above."""
        words, environ = shlex.split(given.replace("FOLDER", str(self.folder))), {}
        while "=" in words[0]:
            name, _, environ[name] = words.pop(0).partition("=")
        before = {path.name: path.read_bytes() for path in self.folder.glob("*.*")}
        result = run_bare(BIN / words[0], *words[1:], env=environ, timeout=60)
        self.assertEqual({path.name: path.read_bytes() for path in self.folder.glob("*.*")}, before)
        said = re.sub(rf"error: rank 0 on {HOST}: ", "", result.stderr).replace(HOST, "HOST").replace(str(self.folder), "FOLDER")
        said = re.sub(r"(?<=Open MPI) [\d.]+|[\d.]+ (?=GiB free)", "", said)  # of this machine
        return f"exit code {result.returncode}: {said}"

    def test_usage(self):
        transcript.check(self, TREE / "tests/programs/usage.txt", self.answer)


if __name__ == "__main__":
    unittest.main()
