"""What the tests of launch/'s scripts share: a copy of launch/ in a scratch folder, faked programs, an
environment in which nothing is found but what a test names."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import TREE, write_script

# What decides where things are found; each test sets its own.
PLACES = ["LIGHT", "BACKENDS", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_ARCHS", "CUDNN_HOME",
          "CUDNN_ROOT", "NCCL_HOME", "NCCL_ROOT", "NVHPC_ROOT", "DNNL_HOME", "DNNL_ROOT", "DNNLROOT",
          "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "SLURM_GPUS",
          "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURMD_NODENAME", "MODULEPATH", "LIBRARY_PATH",
          "PKG_CONFIG_PATH", "MPICXX", "CXX", "NVCC", "CPPFLAGS", "LDFLAGS", "MAKEFLAGS",
          "NCCL_ALGO", "NCCL_DEBUG", "SHAKEDOWN_BIN", "SHAKEDOWN_RUNS", "SHAKEDOWN_TERMINAL"]


def environment(**changes):
    kept = {name: value for name, value in os.environ.items() if name not in PLACES}
    return {**kept, "LC_ALL": "C.UTF-8", **{name: str(value) for name, value in changes.items()}}


def run(*command, timeout=60, cwd=None, **changes):
    return subprocess.run([str(word) for word in command], env=environment(**changes), text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, cwd=cwd)


class Scratch(unittest.TestCase):
    """A scratch folder with a copy of launch/, so that no .deps/ of the tree is seen or touched, and
    a folder of faked programs before the others on PATH."""

    def setUp(self):
        self.scratch = Path(tempfile.mkdtemp(prefix="launch_test."))
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)
        self.launch = self.scratch / "tree" / "launch"
        self.launch.mkdir(parents=True)
        for name in ["machine", "requirements", "setup", "mpi", "bench", "experiments", "variants",
                     "tested_versions"]:
            shutil.copy(TREE / "launch" / name, self.launch / name)
        self.fakes = self.scratch / "fakes"
        self.fakes.mkdir()
        # Not through a shim of pyenv, which takes ten times as long.
        self.path = f"{self.fakes}:{Path(sys.executable).resolve().parent}:{os.environ['PATH']}"

    def fake(self, name, text):
        write_script(self.fakes / name, text)


PYTHON = "[[ $* != --version ]] || echo Python 3.11.7\n"  # with every module
# mpicxx, which keeps its answers.
COMPILER = """text=''
[[ ${@: -1} != - ]] || text=$(cat)
read -r key _ < <(printf '%s\\n' "$@" "$text" "${CPATH:-}" "${LIBRARY_PATH:-}" "${OMPI_CXX:-}" | md5sum)
kept=${BASH_SOURCE[0]%/*}/$key
if [[ ! -e $kept.code ]]; then MPICXX <<<"$text" "$@" >"$kept"; echo $? >"$kept.code"; fi
cat "$kept"
exit "$(<"$kept.code")"
"""


def keep_answers_of_mpicxx():
    """For the tests of a module: the same questions come from each."""
    if compiler := shutil.which("mpicxx"):
        folder = tempfile.mkdtemp(prefix="setup_test.")
        unittest.addModuleCleanup(shutil.rmtree, folder)
        write_script(Path(folder) / "mpicxx", COMPILER.replace("MPICXX", compiler))
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


class Machine(Scratch):
    """With a faked CUDA, for launch/machine and what sources it."""

    def fake_cuda(self, home, parts=("cuda_runtime.h cudart", "cublas_v2.h cublas", "cudnn.h cudnn",
                                     "nccl.h nccl"), version=13000):
        write_script(home / "bin" / "nvcc", "echo 'Cuda compilation tools, V13.0.88'\n")
        self.fake_parts(home, parts)
        (home / "include" / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
        return home

    def fake_parts(self, home, parts):
        for folder in ["include", "lib64"]:
            (home / folder).mkdir(parents=True, exist_ok=True)
        for header, library in (part.split() for part in parts):
            (home / "include" / header).touch()
            (home / "lib64" / f"lib{library}.so").touch()
        return home

    def shell(self, text, **changes):
        return run("bash", "-c", text, cwd=self.scratch, **changes)

    def machine_make(self, **changes):
        result = run(self.launch / "machine", "make", PATH=self.path, **changes)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [re.fullmatch(r"(\w+) := ?(.*)", line) for line in result.stdout.splitlines()]
        self.assertNotIn(None, lines, result.stdout)
        return {line[1]: line[2] for line in lines}
