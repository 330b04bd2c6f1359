"""launch/acceptance: tiers, stages and options, and what no disk or closed stream may lose."""

import contextlib
import errno
import io
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from types import SimpleNamespace

from tree import TREE
import transcript
from shakedown_launch import (
    bench, command, compare_nodes, experiments, fashion_mnist, gpus, job, mpi, places, variants)
from shakedown_launch.acceptance import main, options, stages
from shakedown_launch.acceptance.campaign import campaign, fleet
from shakedown_launch.acceptance.model import FAIL, WARN, Finding  # noqa: F401, in acceptance_functions.txt


def names(chosen):
    return [stage.name for stage in chosen]


class Stages(unittest.TestCase):
    def test_tiers_fit_their_time(self):
        """The sum of the estimates on a node and over nodes, and what 8 GPUs need for the start of each program."""
        for tier, most in [(stages.QUICK, 45), (stages.DEFAULT, 480), (stages.PROLOG, 20)]:
            settings = stages.Settings(tier, stages.GPU)
            chosen = [stage for scope in (stages.NODE, stages.GROUP)
                      for stage in stages.chosen(settings, scope)]
            total = sum(stages.seconds(stage, settings) for stage in chosen)
            self.assertLessEqual(total, most, tier)
        self.assertEqual(names(stages.chosen(stages.Settings(stages.PASSIVE, stages.GPU),
                                             stages.NODE)), [stages.INVENTORY])
        full = stages.Settings(stages.FULL, stages.GPU, soak_minutes=90)
        self.assertEqual(stages.seconds(stages.named("soak"), full), 90 * 60 + 10)
        self.assertIn("90", stages.words(stages.named("soak"), full, 8))

    def test_the_table_of_accepting_md(self):
        """Each stage with its tiers, as here."""
        page = (TREE / "docs/accepting.md").read_text()
        rows = dict(re.findall(r"^\| `(\w+)` \| .* \| ([^|]+) \|$", page.partition("## Stages")[2]
                               .partition("\n- ")[0], re.M))
        self.assertEqual(list(rows), names(stages.STAGES))
        for stage in stages.STAGES:
            tiers = [tier for tier in stages.TIERS if tier in stage.tiers]
            expected = "all" if len(tiers) == len(stages.TIERS) else ", ".join(tiers)
            self.assertEqual(re.sub(r" \(.*?\)", "", rows[stage.name]), expected)

    def test_what_runs(self):
        """Of acceptance_stages.txt: "TIER BACKEND RANKS [--inject-fault FAULT]": the lines, and the seconds that they are made
        for; "environment VARIABLES, TIER": what a prolog's programs are given."""
        def answer(given):
            if given.startswith("environment"):
                return environment(*eval(given.partition(" ")[2]))  # pylint: disable=eval-used
            tier, backend, ranks_, *fault = given.split()
            settings = stages.Settings(tier, backend, judging=("--reference", "h200.json"))
            lines = [f"{stage.name}: {shlex.join(stages.words(stage, settings, int(ranks_), ''.join(fault[1:]), 'capsules'))}; "
                     f"{stages.seconds(stage, settings):g} s" for scope in (stages.NODE, stages.GROUP)
                     for stage in stages.chosen(settings, scope, int(ranks_))]
            if fault:  # who is given it
                lines = [line.partition(":")[0] for line in lines if "--inject-fault" in line] or ["nobody"]
            rates = [] if fault else [f"to be judged: {', '.join(stages.rates(settings, int(ranks_))) or 'nothing'}"]
            return "\n".join(lines + rates)
        transcript.check(self, TREE / "tests/launch/acceptance_stages.txt", answer)


def environment(environ, *words):
    """Where the driver has these GPUs by their numbers."""
    def not_needed():
        raise AssertionError("nvidia-smi is called")
    settings = options.request(list(words))[0].settings
    try:
        of_job = options.gpus_of_job(settings, environ, not_needed, lambda: {0: "GPU-a", 1: "GPU-b", 2: "GPU-c"})
    except places.UsageError as error:
        return f"refused: {error}"
    return str(options.environment(settings, environ, of_job))


class Options(unittest.TestCase):
    def test_what_is_requested(self):
        """And what is refused."""
        folder = tempfile.mkdtemp()
        self.addCleanup(os.rmdir, folder)

        def answer(given):
            try:
                request, _ = options.request(list(filter(None, shlex.split(given.replace("FOLDER", folder)))))
            except places.UsageError as error:
                return str(error).replace(folder, "FOLDER")
            made = request.settings
            return f"{made.tier}, backend {made.backend}, soak {made.soak_minutes} min, accept {request.accept}, {made.judging}"
        transcript.check(self, pathlib.Path(__file__).with_name("acceptance_options.txt"), answer)

    def test_help_fits_a_screen(self):
        for each in (mpi, variants, compare_nodes, options, bench, experiments, fashion_mnist):
            _, *lines = command.help_text(each.COMMAND).splitlines()
            self.assertTrue(len(lines) <= 48 and max(map(len, lines)) <= 80, each.__name__)

    def test_a_daemon_without_standard_output(self):
        command = [sys.executable, TREE / "launch/acceptance", "--quik"]
        result = subprocess.run(["sh", "-c", 'exec "$0" "$@" <&- >&-', *command],
                                stderr=subprocess.PIPE, text=True)
        self.assertEqual((result.returncode, "--quik" in result.stderr), (2, True), result.stderr)

    def test_output(self):
        with tempfile.TemporaryDirectory() as folder:
            new = f"{folder}/a/b"
            request, _ = options.request(["--output", new])
            self.assertEqual(options.output_folder(request, {}), new)
            for name in ("acceptance.jsonl", "acceptance_20261125_104716.log"):  # the log: of one that was killed
                pathlib.Path(new, name).touch()
                with self.assertRaisesRegex(places.UsageError, "results of another acceptance"):
                    options.output_folder(request, {})
                pathlib.Path(new, name).unlink()
        with tempfile.NamedTemporaryFile() as file, self.assertRaisesRegex(
                places.UsageError, f"--output {file.name} is not a folder"):
            options.output_folder(options.request(["--output", file.name])[0], {})
        for tier in ("--prolog", "--passive"):
            self.assertIsNone(options.output_folder(options.request([tier])[0], {}))
        with unittest.mock.patch("os.access", return_value=False), tempfile.TemporaryDirectory() as folder:
            options.request(["--passive"])  # the parent of the current folder is of no concern
            with self.assertRaisesRegex(places.UsageError, "--output .* cannot be written"):
                options.output_folder(options.request(["--output", folder])[0], {})


ALLOCATED = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "n[1-3]"}


def gpus_of_job(*tables):
    """Of GPUs 0 and 1, where the driver answers so; how often nvidia-smi is called."""
    answers, listings = list(tables), []
    found = options.gpus_of_job(stages.Settings(stages.PROLOG, "auto"), {"SLURM_JOB_GPUS": "0,1"}, lambda: listings.append(1),
                                lambda: answers.pop(0))
    return found, len(listings)


def not_injected(fault, *found, injected=(("compute", "n1"), ("soak", "n1"))):
    """What is reported of a fault on two ranks of n1, where this was found."""
    one = SimpleNamespace(injected=set(injected), ranks={"n1": 2}, kinds_of_faults=lambda: ["product", "slow"])
    return [each.cause for each in main.not_injected(fault, one, found)]


def check_fault(fault, hosts=(), ranks=None, backend="auto", visible=0, built="gpu"):
    """Where this many GPUs are visible here, to programs with these backends."""
    with unittest.mock.patch.object(gpus, "visible", return_value=visible):
        main.check_fault(SimpleNamespace(fault=fault, ranks=ranks, settings=SimpleNamespace(backend=backend)), hosts,
                         {"BACKENDS": built}, None)


class Functions(unittest.TestCase):
    def test_functions(self):
        transcript.expressions(self, TREE / "tests/launch/acceptance_functions.txt", globals(), {places.UsageError: "refused"})


class Main(unittest.TestCase):
    def setUp(self):
        for number in job.PASSED_ON_SIGNALS:  # an acceptance ends at them, which tests that follow do not expect
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.output = f"{folder.name}/out"
        self.patch(main.launchers, "find")

    def patch(self, *what, **how):
        patch = unittest.mock.patch.object(*what, **how)
        self.addCleanup(patch.stop)
        return patch.start()

    def quick(self):
        return main.main(["--quick", "--output", self.output])

    def test_a_disk_that_is_full_loses_no_report(self):
        self.patch(main, "check_programs")
        self.patch(campaign.Campaign, "run", side_effect=OSError(errno.ENOSPC, "No space left on device", "train/n1.log"))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(self.quick(), 3)
        self.assertTrue(os.path.exists(f"{self.output}/acceptance.jsonl"))
        self.assertIn("train/n1.log: No space left on device", out.getvalue())
        # Python has no file's name where writing fails: it is the output's.
        self.patch(main, "accept", side_effect=OSError(errno.ENOSPC, "No space left on device"))
        self.output += "2"
        with self.assertRaises(OSError) as raised:
            self.quick()
        self.assertEqual(raised.exception.filename, f"--output {self.output}")

    def test_a_fault_that_no_program_was_given_is_known_to_the_judge_of_the_folder(self):
        self.patch(campaign.Campaign, "run")
        self.patch(main, "check_programs")
        with contextlib.redirect_stdout(io.StringIO()):
            main.main(["--quick", "-n", "2", "--inject-fault", "product:1", "--output", self.output])
        self.assertIn('"name":"inject-fault","verdict":"INCONCLUSIVE"', pathlib.Path(self.output, "runs.jsonl").read_text())

    def test_every_program_is_there_before_the_first_runs(self):
        there = places.find_program
        self.patch(places, "find_program", side_effect=lambda word, environ: there(
            "no-such-program" if word == "soak" else "sh", environ))
        with self.assertRaisesRegex(places.UsageError, "no-such-program: not found"):
            self.quick()
        self.assertFalse(os.path.exists(self.output))

    def test_a_hook_on_a_driver_that_hangs(self):
        """nvidia-smi is called once at most, and the time that is left is enough for node_check."""
        made = []
        self.patch(campaign.Campaign, "run", autospec=True, side_effect=made.append)
        self.patch(gpus, "by_minor", return_value={0: ""})
        self.patch(main, "check_programs")
        for tier, calls, most, least in [("--prolog", 1, 20, 6), ("--passive", 0, 5, 4)]:
            start, smi = time.monotonic(), self.patch(gpus, "asked", return_value=None)
            with unittest.mock.patch.dict(os.environ, SLURM_JOB_ID="1", SLURM_JOB_GPUS="0", BACKENDS="gpu"), \
                    contextlib.redirect_stdout(io.StringIO()):
                main.main([tier])
                made[-1]._visible({"BACKENDS": "gpu"})
            self.assertEqual(smi.call_count, calls)
            fleet_ = made[-1].fleet
            self.assertLess(fleet_._deadline - start + fleet_._grace, most)
            listing = sum(call.args[1] for call in smi.call_args_list)
            self.assertGreater(fleet_._deadline - start - listing, least)

    def test_standard_output_that_cannot_be_written_changes_nothing(self):
        said = io.StringIO()
        with open("/dev/full", "w") as file, contextlib.redirect_stdout(file), \
                contextlib.redirect_stderr(said):
            main.show("FAIL n1\n")
        self.assertIn("standard output: No space left on device", said.getvalue())


if __name__ == "__main__":
    unittest.main()
