#!/usr/bin/env python3
"""make install, uninstall and dist, of what is built: installed by way of DESTDIR, read-only, and
used by another user."""

import ast
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

from support import BIN, GPUS, TREE, read_record

NOBODY = 65534


def execute(*words, cwd=TREE, **variables):
    kept = {name: value for name, value in os.environ.items() if name not in
            {"SHAKEDOWN_RUNS", "MAKEFLAGS", "MAKELEVEL", "DESTDIR", "PREFIX", "REVISION"}}
    return subprocess.run([str(word) for word in words], cwd=cwd, text=True, capture_output=True,
                          stdin=subprocess.DEVNULL, timeout=240,
                          env={**kept, "LC_ALL": "C.UTF-8", **{name: str(value) for name, value in variables.items()}})


def make(*words, cwd=TREE, **variables):
    return execute("make", f"BIN={BIN}", *words, cwd=cwd, **variables)


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = Path(tempfile.mkdtemp(prefix="install_test."))
        cls.addClassCleanup(shutil.rmtree, cls.scratch, ignore_errors=True)
        cls.prefix = cls.scratch / "prefix"
        stage = cls.scratch / "stage"
        cls.installed = make("install", f"PREFIX={cls.prefix}", f"DESTDIR={stage}")
        (stage / cls.prefix.relative_to("/")).rename(cls.prefix)
        cls.own = cls.scratch / "own"
        cls.own.mkdir()
        cls.scratch.chmod(0o755)
        subprocess.run(["chmod", "-R", "a-w,a+rX", cls.prefix], check=True)
        cls.addClassCleanup(subprocess.run, ["chmod", "-R", "u+w", cls.prefix], check=True)
        cls.user = []
        if os.geteuid() == 0:  # who may write everywhere
            cls.user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            os.chown(cls.own, NOBODY, NOBODY)

    def use(self, *words, code=0, bindir=None, **variables):
        """A command of the installation, by the other user in a folder of their own."""
        bindir = bindir or self.prefix / "bin"
        result = execute(*self.user, bindir / words[0], *words[1:], cwd=self.own, HOME=self.own,
                         PATH="/usr/local/bin:/usr/bin:/bin", **variables)
        self.assertEqual(result.returncode, code, f"{words}: {result.stdout}{result.stderr}")
        return result.stdout + result.stderr

    def test_names(self):
        self.assertEqual(self.installed.returncode, 0, self.installed.stderr)
        for path in (self.prefix / "bin").iterdir():
            self.assertRegex(path.name, "^shakedown(-[a-z-]+)?$")
        installed = files_below(self.prefix)
        for name in ["libexec/shakedown/bin/train", "libexec/shakedown/bin/all_reduce_perf",
                     "share/shakedown/schema.json", "share/man/man1/shakedown-train.1",
                     "share/bash-completion/completions/shakedown-mpi"]:
            self.assertIn(name, installed)
        module = next((self.prefix / "share/shakedown/modulefiles/shakedown").iterdir())
        self.assertEqual(module.name, (TREE / "VERSION").read_text().strip())
        self.assertIn(f"prepend-path PATH {self.prefix}/bin\n", module.read_text())
        for path in (self.prefix / "libexec/shakedown/launch/slurm").glob("*.sbatch"):
            self.assertIn(f"{{SHAKEDOWN:-{self.prefix}/libexec/shakedown}}", path.read_text())
        self.assertEqual({name for name in installed if name.endswith((".cpp", ".hpp", ".cu", ".cuh", ".o"))}, set())
        for name in installed:  # neither the staging folder nor a placeholder is left anywhere
            if name.startswith(("bin/", "share/shakedown/m", "share/man", "share/bash")):
                self.assertNotRegex((self.prefix / name).read_text(), r"install_test\.\w+/stage|@[A-Z]+@")

    def test_programs_run_for_another_user(self):
        ranks = 2 if GPUS == 0 else 1
        options = ["--model", "tiny", "--iterations", 2, "--warmup", 1, "--batch-size", 4]
        self.use("shakedown", "all_reduce_perf", "-g", ranks, "-b", 1024, "-e", 1024, "-n", 2)
        self.use("shakedown", "mpi", "-n", ranks, "train", *options, "--record", "train.jsonl")
        self.assertIn("step", {line["kind"] for line in read_record(self.own / "train.jsonl")})
        self.use("shakedown-report", "train.jsonl")
        self.assertTrue(list(self.own.glob("runs/report-*/performance_report.txt")))

    def test_front_end(self):
        moved = self.scratch / "moved"
        shutil.copytree(self.prefix / "bin", moved, symlinks=True)
        self.assertIn("usage: shakedown-mpi", self.use("shakedown-mpi", "--help", bindir=moved))
        version = (TREE / "VERSION").read_text()
        self.assertEqual(self.use("shakedown", "--version", bindir=moved), f"shakedown {version}")
        self.assertIn("--operation", self.use("shakedown", "collective-perf", "--help"))
        self.assertIn("no command nothing", self.use("shakedown", "nothing", code=2))
        usage = self.use("shakedown", code=2)
        self.assertIn("usage: shakedown COMMAND", usage)
        for path in self.prefix.glob("bin/shakedown-*"):
            self.assertIn(path.name.replace("shakedown-", "", 1), usage.replace(",", " ").split())
        self.assertIn("✓ make", execute(self.prefix / "bin/shakedown", "doctor").stdout)

    def test_manual(self):
        pages = self.prefix / "share/man/man1"
        page = (pages / "shakedown-train.1").read_text().replace("\\-", "-")
        table = json.loads(execute(BIN / "train", "--help-json").stdout)
        for group in table["groups"]:
            for option in group["options"]:
                for name in option["names"]:
                    self.assertEqual(f"\\fB{name}\\fR" not in page, option["hidden"], name)
        for path in pages.iterdir():  # what apropos shows
            name = path.read_text().replace("\\-", "-").split(".SH NAME\n")[1].split("\n")[0]
            self.assertRegex(name, rf"^{path.stem} - \w.{{20,}}")
        self.assertTrue((pages / "shakedown-doctor.1").exists())
        self.assertIn("--hosts h1,h2", (pages / "shakedown-mpi.1").read_text().replace("\\-", "-"))
        if shutil.which("groff"):
            for path in pages.iterdir():
                shown = execute("groff", "-man", "-ww", "-z", path)
                self.assertEqual(shown.stderr, "", path.name)

    def test_completion(self):
        script = self.prefix / "share/bash-completion/completions/shakedown"

        def completed(*words):
            line = " ".join(f"'{word}'" for word in words)
            return set(execute("bash", "-c", f"source {script}; COMP_WORDS=({line}); "
                               f"COMP_CWORD={len(words) - 1}; _shakedown; printf '%s\\n' \"${{COMPREPLY[@]}}\""
                               ).stdout.split())
        self.assertIn("mpi", completed("shakedown", ""))
        for words, expected in [(["shakedown", "tr"], "train"), (["shakedown", "do"], "doctor"),
                                (["shakedown", "mpi", "all_r"], "all_reduce_perf"), (["shakedown-mpi", "tr"], "train"),
                                (["shakedown", "mpi", "-n", "2", "comp"], "compare compute-perf"),
                                (["shakedown", "mpi", "-n", "2", "all_reduce_perf", "--minb"], "--minbytes")]:
            self.assertEqual(completed(*words), set(expected.split()), words)
        self.assertIn("-n", completed("shakedown", "mpi", "-"))
        self.assertEqual(completed("shakedown-mpi", "--hos"), {"--hosts", "--hostfile"})
        self.assertEqual(completed("shakedown", "mpi", "-n", "4", "train", "--iter"), {"--iterations"})
        self.assertIn("resnet50", completed("shakedown-train", "--model", "="))
        self.assertNotIn("tiny", completed("shakedown-train", "--model", ""))
        self.assertEqual(completed("shakedown-compare", "--strategies", "ddp,all"), {"ddp,all-reduce"})

    def test_uninstall_leaves_nothing(self):
        prefix = self.scratch / "second"
        prefix.mkdir()
        (prefix / "of somebody else").touch()
        self.assertEqual(make("install", f"PREFIX={prefix}").returncode, 0)
        self.assertEqual(make("uninstall", f"PREFIX={prefix}").returncode, 0)
        self.assertEqual(files_below(prefix), {"of somebody else"})

    def test_stripped(self):
        prefix = self.scratch / "stripped"
        self.assertEqual(make("install-strip", f"PREFIX={prefix}").returncode, 0)
        for path in (prefix / "libexec/shakedown/bin").iterdir():
            self.assertNotIn(b".debug_line", path.read_bytes(), path.name)
        self.assertEqual(execute(prefix / "bin/shakedown-judge", "--help").returncode, 0)

    def test_programs_have_the_rooms_that_they_call(self):
        """The linker takes of an archive what a program uses; debug information and device code are compressed."""
        self.assertIn(b"fsdp", (BIN / "train").read_bytes())
        for name in ["node_check", "collective_perf", "judge"]:
            self.assertNotIn(b"fsdp", (BIN / name).read_bytes(), name)
        sizes = {path.name: path.stat().st_size for path in BIN.iterdir() if not path.is_symlink()}
        self.assertLess(sum(sizes.values()), 150e6, sizes)

    def test_a_path_that_is_relative_is_refused(self):
        for words, named in [(["PREFIX=opt"], "PREFIX=opt"), (["PREFIX=/opt", "bindir=bin"], "bindir=bin")]:
            for target in ("install", "uninstall"):
                result = make("-n", target, *words)
                self.assertEqual(result.returncode, 2)
                self.assertIn(f"{named}: must be an absolute path", result.stderr)

    def test_nothing_is_installed_before_it_is_built(self):
        result = make("install", f"PREFIX={self.scratch}/none", f"BIN={self.scratch}/no_bin")
        self.assertEqual(result.returncode, 2)
        self.assertIn("no_bin/train is missing: run make first", result.stderr)
        self.assertFalse((self.scratch / "none").exists())


class Archive(unittest.TestCase):
    def setUp(self):
        self.scratch = Path(tempfile.mkdtemp(prefix="install_test."))
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)

    @unittest.skipUnless((TREE / ".git").exists(), "no repository")
    def test_dist(self):
        archive = self.scratch / "shakedown.tar.gz"
        made = make("dist", f"archive={archive}", f"BUILD={self.scratch}/build")
        self.assertEqual(made.returncode, 0, made.stderr)
        with tarfile.open(archive) as files:
            names = files.getnames()
            top = f"shakedown-{(TREE / 'VERSION').read_text().strip()}"
            revision = files.extractfile(f"{top}/REVISION").read().decode().strip()
        self.assertTrue(execute("git", "rev-parse", "HEAD").stdout.startswith(revision))
        self.assertIn(f"{top}/launch/machine", names)
        self.assertFalse([name for name in names if name.startswith(f"{top}/results/0.1/")])

    def test_the_revision_is_this_trees_own(self):
        """An archive that is unpacked in another repository."""
        tree = self.scratch / "shakedown"
        (tree / "launch/site").mkdir(parents=True)
        for name in ["Makefile", "VERSION", "launch/site/install.mk"]:
            shutil.copy(TREE / name, tree / name)
        (self.scratch / "show.mk").write_text("include Makefile\nshow:\n\t@echo '$(REVISION)'\n")

        def revision():
            return make("-s", "-f", self.scratch / "show.mk", "NEEDS_NOTHING=show", "show", cwd=tree
                        ).stdout.strip()
        if shutil.which("git"):
            execute("git", "init", "-q", self.scratch)
            execute("git", "-C", self.scratch, "-c", "user.name=a", "-c", "user.email=a@b", "commit",
                    "--allow-empty", "-qm", "another's")
        self.assertEqual(revision(), "unknown")
        (tree / "REVISION").write_text("abc1234\n")
        self.assertEqual(revision(), "abc1234")

    def test_spack_recipe(self):
        recipe = ast.parse((TREE / "launch/site/package.py").read_text(), feature_version=(3, 9))
        versions = [ast.literal_eval(call.args[0]) for call in ast.walk(recipe)
                    if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "version"]
        self.assertIn((TREE / "VERSION").read_text().strip(), versions)
        calls = [ast.unparse(node) for node in ast.walk(recipe) if isinstance(node, ast.Call)]
        # NCCL's recipe has no default architecture, so that ours must forward it.
        self.assertIn("depends_on(f'nccl cuda_arch={arch}', when=f'+cuda cuda_arch={arch}')", calls)


if __name__ == "__main__":
    unittest.main()
