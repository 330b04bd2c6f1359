"""launch/variants: what it runs, what it says of figures and of errors. NCCL is
played by a script: its switches and error texts need no GPU. Run by tests/run."""

import contextlib
import io
import json
import os
import shutil
import tempfile
import types
import unittest

import support
from launch_support import run
from support import BIN, GPUS, TREE, read_record
from shakedown_launch import command, variants, variants_table  # support says where it is

RUN = {"kind": "run", "transport": "nccl", "program": "fake", "world_size": 2, "backend": "gpu", "hosts": ["h", "h"]}


def collective(size, busbw, time_us, **changes):
    return {"kind": "collective", "operation": "all_reduce", "dtype": "float32", "bytes": size,
            "in_place": False, "busbw_gbs": busbw, "time_us_p50": time_us, "wrong_elements": 0,
            "samples_us": [time_us * (1 + i / 1000) for i in range(6)], "time_us_low": time_us,
            "time_us_high": 1.005 * time_us, **changes}


class Folder(support.Folder):
    """A folder of its own, so that none is left in the runs/ of this tree."""

    def variants(self, *arguments, **changes):
        return run(TREE / "launch/variants", *arguments, cwd=self.folder, timeout=120, **{"SHAKEDOWN_BIN": BIN, **changes})

    def program(self, text):
        """A program that --record FILE is given to, as $record."""
        path = self.folder / "program"
        path.write_text(f'#!/bin/bash\nrecord=${{@: -1}}\n{text}\n')
        path.chmod(0o755)
        return path

    def results(self):
        folders = list((self.folder / "runs").glob("variants-*"))
        self.assertEqual(len(folders), 1)
        return folders[0]

    def rows(self, text):
        """The table's rows, by variant: all cells of its lines."""
        lines = text.split("\nvariant ")[1].splitlines()
        heads = lines[0]
        rows, name = {}, None
        for line in lines[1:lines.index("") if "" in lines else None]:
            name = line.split()[0] if line[0] != " " else name
            rows.setdefault(name, []).append(" ".join(line.split()))
        self.assertIn("remark", heads)
        return rows

    def expect(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        for word in words:
            self.assertIn(word, result.stdout + result.stderr)


class Runs(Folder):
    def test_train(self):
        if GPUS == 1:
            self.skipTest("2 ranks on 1 GPU")
        backend = "gpu" if GPUS else "cpu"
        result = self.variants("-n", 2, "--variants", "default,mpi-tcp", "train", "--model",
                               "tiny", "--image-size", 32, "--classes", 10, "--batch-size", 4,
                               "--iterations", 2, "--warmup", 1, "--certificate", "off",
                               "--backend", backend)
        self.expect(result, 0, f"train: 2 ranks, {backend}, transport {'nccl' if GPUS else 'mpi'}",
                    f"results: {self.results()}")
        self.assertRegex(result.stdout, "(?m)^(shared memory and limits of this host|WARN|FAIL|UNKNOWN)")
        rates = {}
        for name in ["default", "mpi-tcp"]:
            start, step, *_, end = read_record(self.results() / f"{name}.jsonl")
            self.assertEqual((start["kind"], end["exit_code"]), ("run", 0))
            rates[name] = step["images_per_s"]
            self.assertIn("images/s", (self.results() / f"{name}.log").read_text())
        rows = self.rows(result.stdout)
        rate = f"{rates['default']:{',.0f' if rates['default'] >= 1000 else '.4g'}}"
        self.assertIn(f"default ok tiny ddp, batch 4 {rate} images/s",
                      rows["default"][0])
        self.assertIn(f"{rates['mpi-tcp'] / rates['default']:.2f}", rows["mpi-tcp"][0])
        self.assertIn((self.results() / "table.txt").read_text(), result.stdout)

    def test_a_program_has_the_variants_environment(self):
        program = self.program('env | grep -E "^(NCCL|OMPI_MCA_btl)" >"${record%.jsonl}.env"')
        result = self.variants("-n", 1, "--gpus", "0,1", "--variants", "default,ring", program, BACKENDS="cpu gpu",
                               NCCL_ALGO="CollNet", NCCL_DEBUG="VERSION", LC_ALL="C")
        self.assertTrue(result.stdout.isascii(), result.stdout)
        self.expect(result, 0, "your environment has NCCL_ALGO=CollNet; ring runs with NCCL_ALGO=Ri")
        for name, algorithm in [("default", "CollNet"), ("ring", "Ring")]:
            lines = (self.results() / f"{name}.env").read_text().splitlines()
            for line in [f"NCCL_ALGO={algorithm}", "NCCL_DEBUG=VERSION",
                         f"NCCL_DEBUG_FILE={self.results()}/{name}.nccl.%h.%p"]:
                self.assertIn(line, lines)

    def test_a_refused_option_is_refused_once(self):
        program = self.program("[[ $NCCL_ALGO == Ring ]] || exit 0; echo 'no option --wat'; exit 2")
        for names, ran in [("ring,tree", ["ring"]), ("tree,ring,no-ib", ["tree", "ring", "no-ib"])]:
            result = self.variants("-n", 1, "--variants", names, program)
            self.expect(result, 2, "usage error", "last output: no option --wat")
            self.assertEqual(list(self.rows(result.stdout)), ran)
            shutil.rmtree(self.results())

    def test_requested_gpus_that_are_not_visible_are_refused_once(self):
        none = {"CUDA_VISIBLE_DEVICES": "", "BACKENDS": "cpu gpu"}
        program = self.program("touch ran")
        result = self.variants("-n", 1, "--variants", "ring,tree", program, "--backend", "gpu", **none)
        self.expect(result, 3, "launch/variants: --backend gpu: no GPU is visible on this host")
        self.assertEqual(([*self.folder.glob("r*")], result.stdout), ([], ""))
        # Other hosts may have some: here none is reached.
        result = self.variants("-n", 1, "--hosts", "h1.invalid", "--variants", "ring", program, "--backend", "gpu",
                               **none)
        self.assertIn("ring", self.rows(result.stdout))

    def test_a_variant_that_hangs_is_ended_and_the_next_one_runs(self):
        program = self.program('echo $$ >>pids; [[ ${NCCL_ALGO:-} == Ring ]] || exec sleep 60')
        result = self.variants("-n", 2, "--timeout", 2, "--variants", "default,ring", program)
        self.expect(result, 3)
        rows = self.rows(result.stdout)
        self.assertIn("default timeout", rows["default"][0])
        self.assertIn("ring ok", rows["ring"][0])
        pids = (self.folder / "pids").read_text().split()
        self.assertEqual(len(pids), 4)
        self.assertTrue(support.gone(*pids), "still running")


class Choice(unittest.TestCase):
    """Which variants, and what each sets."""

    def choose(self, text=None, words=("true",), gpus=2):
        return [variant.name for variant in variants.choose(text, list(words), {}, "OMPI_", lambda _: gpus)]

    def test_those_that_the_transport_reads(self):
        nccls = [variant.name for variant in variants.VARIANTS if "mpi" not in variant.name]
        self.assertEqual(self.choose(), nccls)
        for on_cpu in [self.choose(gpus=0), self.choose(words=["true", "--backend", "cpu"])]:
            self.assertEqual(on_cpu, ["default", "mpi-tcp", "mpi-no-cma"])
        self.assertEqual(self.choose("ring,default,ring"), ["ring", "default"])
        for text, named in [("x", "'x'"), ("ring,,tree", "''")]:
            with self.assertRaisesRegex(command.UsageError, f"--variants {text}: {named} is none of default"):
                self.choose(text)

    def test_settings(self):
        users = {"NCCL_ALGO": "CollNet", "NCCL_DEBUG": "VERSION", "HOME": "/h"}
        set_by = {variant.name: variants.environment(variant, "/f", users) for variant in variants.VARIANTS}
        for name, words in [("no-p2p-no-shm", "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1"), ("no-ib", "NCCL_IB_DISABLE=1"),
                            ("ring", "NCCL_ALGO=Ring"), ("tree", "NCCL_ALGO=Tree"), ("default", ""),
                            ("more-channels", "NCCL_MIN_NCHANNELS=32"),
                            ("mpi-tcp", "OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self"),
                            ("mpi-no-cma", "OMPI_MCA_pml=ob1 OMPI_MCA_btl_vader_single_copy_mechanism=none "
                                           "OMPI_MCA_smsc=^cma")]:
            self.assertEqual(set_by[name], {**users, "NCCL_DEBUG_FILE": f"/f/{name}.nccl.%h.%p",
                                            **dict(word.split("=", 1) for word in words.split())})
        self.assertEqual(variants.environment(variants.VARIANTS[0], "/f", {})["NCCL_DEBUG"], "WARN")

    def test_what_node_check_finds_of_shared_memory(self):
        small = {"kind": "verdict", "scope": "node", "name": "h", "check": "shared-memory", "verdict": "WARN",
                 "cause": "/dev/shm: 0.1 of 0.1 GiB free", "action": "--ipc=host"}
        for line, code, said in [(small, 0, "WARN shared-memory: /dev/shm: 0.1 of 0.1 GiB free -> --ipc=host"),
                                 ({**small, "check": "nics"}, 0, "shared memory and limits of this host: no finding"),
                                 (small, 0, "WARN"), ({"kind": "end", "exit_code": 3}, 3, "not known: node_check 3")]:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "node_check")
                with open(path, "w") as file:
                    file.write(f"#!/bin/sh\necho '{json.dumps(line)}' >$3; exit {code}\n")
                os.chmod(path, 0o755)
                self.assertIn(said, "\n".join(variants.fitness(folder, {**os.environ, "SHAKEDOWN_BIN": folder})))

    def test_what_is_set_already_is_pointed_out(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("NCCL_IB_DISABLE=0\n")
            file.flush()
            notes = list(variants.notes(variants.VARIANTS, {"NCCL_ALGO": "CollNet"}, [file.name, "/nonexistent"]))
            self.assertEqual(notes, [
                f"note: {file.name} sets NCCL_IB_DISABLE; no-ib runs with NCCL_IB_DISABLE=1 instead",
                "note: your environment has NCCL_ALGO=CollNet; ring runs with NCCL_ALGO=Ring instead",
                "note: your environment has NCCL_ALGO=CollNet; tree runs with NCCL_ALGO=Tree instead"])

    def test_refused(self):
        out = io.StringIO()
        for words, named in [([], "no program"), (["--wat", "true"], "--wat"), (["--variants"], "--variants"),
                             (["--timeout", "x", "true"], "--timeout x"), (["--timeout", "0", "true"], "--timeout 0"),
                             (["-n", "0", "true"], "-n 0"), (["--gpus", "", "true"], "--gpus"),
                             (["--bind", "x", "true"], "--bind x"), (["no_such_program"], "no_such_program"),
                             (["--variants", "x", "true"], "'x'"), (["true", "--record", "x"], "--record"),
                             (["true", "--record=x"], "--record"), (["--table", "/nonexistent"], "/nonexistent")]:
            with contextlib.redirect_stdout(out), self.assertRaisesRegex(command.UsageError, named, msg=words):
                variants.main(words)
        self.assertEqual(out.getvalue(), "")


class Table(Folder):
    """The table on folders written here."""

    def table(self, **variants):
        """A variant: its exit code, what it said, the lines of its record, or several of these."""
        folder = self.folder / "runs/variants-1"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        settings = {"no-shm": "NCCL_SHM_DISABLE=1\tshared memory", "ring": "NCCL_ALGO=Ring\t",
                    "mpi-tcp": "OMPI_MCA_btl=tcp,self\tshared memory", "default": "\t"}
        for key, (code, said, *lines) in variants.items():
            name = key.replace("_", "-")
            (folder / f"{name}.log").write_text(said)
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
            with open(folder / "variants.tsv", "a") as out:
                out.write(f"{name}\t{settings[name]}\t{code}\n")
        return self.show()

    def show(self):
        lines = []
        code = variants_table.show(self.folder / "runs/variants-1", lines.append)
        return types.SimpleNamespace(returncode=code, stdout="".join(f"{line}\n" for line in lines), stderr="")

    def test_collectives(self):
        result = self.table(
            default=(0, "", RUN, collective(8, 0.001, 10.0), collective(2**30, 100.0, 9000.0),
                     collective(2**30, 400.0, 1.0, in_place=True)),
            no_shm=(0, "", RUN, collective(8, 0.001, 14.0), collective(2**30, 60.0, 9000.0)),
            ring=(0, "", RUN, collective(8, 0.001, 10.4), collective(2**30, 120.0, 9000.0)))
        self.expect(result, 0, "fake: 2 ranks, gpu, transport nccl")
        self.assertEqual(self.rows(result.stdout), {
            "default": ["default ok all_reduce float32, 1 GiB 100 GB/s",
                        "all_reduce float32, 8 B 10 us"],
            "no-shm": ["no-shm ok all_reduce float32, 1 GiB 60 GB/s 0.60 "
                       "shared memory carries this: -40 % without it",
                       "all_reduce float32, 8 B 14 us 1.40 "
                       "shared memory carries this: +40 % without it"],
            "ring": ["ring ok all_reduce float32, 1 GiB 120 GB/s 1.20 better than the default: +20 %",
                     "all_reduce float32, 8 B 10.4 us 1.04"]})

    def test_a_difference_next_to_its_spread(self):
        """As of results/report: of six samples on the 95 % interval of the median, else their range."""
        def of(busbw, *samples, **ends):
            return [collective(8, busbw, 10 / busbw, samples_us=samples, **ends)]

        def links(*several):
            return [{"kind": "link", "direction": direction, "bandwidth_gbs": each}
                    for direction, each in [*(("unidirectional", each) for each in several), ("bidirectional", 100)]]

        def step(rate, low, high):
            return [{"kind": "step", "model": "resnet18", "strategy": "ddp", "batch_size": 4,
                     "images_per_s": rate, "images_per_s_low": low, "images_per_s_high": high}]
        near = {"time_us_low": 7, "time_us_high": 11}
        overlap, none = "not significant: -20 %, but the 95 % intervals overlap", "-20 % without shared memory"
        for default, other, said in [
                (of(1, *6 * [10], **near), of(0.8, *6 * [12], **near), f"0.8 GB/s 0.80 {overlap}"),
                (of(1, *6 * [10], time_us_low=9.9, time_us_high=10.1), of(0.8, *6 * [12]),
                 "0.8 GB/s 0.80 shared memory carries this: -20 % without it"),
                (of(1, 7, 10), of(0.8, 9, 12), "0.8 GB/s 0.80 not significant: -20 %, but the samples overlap"),
                (of(1, 10), of(0.8, 12), f"0.8 GB/s 0.80 {none} (too few samples for an interval)"),
                (links(1, 9, 5), links(4), f"links, one direction 4 GB/s 0.80 {none} (no interval)"),
                (step(100, 85, 115), step(80, 70, 90), f"batch 4 80 images/s 0.80 {overlap}"),
                (step(100, 85, 115), step(50, 45, 55), "50 images/s 0.50 shared memory carries this: -50 % without it"),
                # Below 25 steps the ends are null: a difference is shown, with that doubt.
                (step(100, 85, 115), step(80, None, None), f"80 images/s 0.80 {none} (too few steps for an interval)"),
                (step(100, 85, 115), step(80, 70, None), f"80 images/s 0.80 {none} (too few steps for an interval)"),
                (step(100, 85, 115), step(None, 70, None), "resnet18 ddp, batch 4 -")]:
            rows = self.rows(self.table(default=(0, "", RUN, *default), no_shm=(0, "", RUN, *other)).stdout)
            self.assertTrue(rows["no-shm"][0].endswith(said), (rows, said))

    def test_wrong_data_is_a_failure_that_is_told(self):
        bad = collective(8, 1.0, 10.0, wrong_elements=3.0)
        result = self.table(default=(0, "", RUN, collective(8, 1.0, 10.0)), ring=(1, "", RUN, bad))
        self.expect(result, 1, "wrong data: 3 elements")
        self.assertIn("ring fail", self.rows(result.stdout)["ring"][0])

    def test_switches_that_the_transport_does_not_read(self):
        mpi = {**RUN, "transport": "mpi"}
        for run, idle, other in [(mpi, "no-shm", "mpi-tcp"), (RUN, "mpi-tcp", "no-shm")]:
            result = self.table(default=(0, "", run, collective(8, 1.0, 10.0)),
                                no_shm=(0, "", run, collective(8, 2.0, 10.0)),
                                mpi_tcp=(0, "", run, collective(8, 2.0, 10.0)))
            self.expect(result, 0, f"{idle}: the transport is {run['transport']}")
            self.assertNotIn("better", "".join(self.rows(result.stdout)[idle]))
            self.assertIn("better", "".join(self.rows(result.stdout)[other]))

    def test_a_crashed_run_keeps_what_it_measured(self):
        self.table(default=(3, "", RUN, collective(8, 1.0, 10.0)))
        path = self.folder / "runs/variants-1/default.jsonl"
        path.write_text(path.read_text() + '{"kind": "coll')
        self.expect(self.show(), 3, "all_reduce float32, 8 B", "10 us")
        path.unlink()
        self.expect(self.show(), 3, "nothing")

    def test_the_worst_exit_code(self):
        for codes, worst in [((0, 0, 0), 0), ((3, 2, 0), 3), ((3, 4, 2), 4), ((4, 1, 3), 1),
                             ((0, 124, 0), 3), ((0, 77, 0), 4), ((1, 5, 4), 5)]:
            result = self.table(default=(codes[0], ""), no_shm=(codes[1], ""), ring=(codes[2], ""))
            self.assertEqual(result.returncode, worst, codes)

    def test_causes(self):
        for line, cause, cure in [
                ("NCCL WARN Error while creating shared memory segment /dev/shm/nccl-vzIpS6 (size "
                 "9637888)", "/dev/shm", "--shm-size=1g"),
                ("NCCL WARN Call to posix_fallocate failed : No space left on device", "/dev/shm",
                 "NCCL_SHM_DISABLE=1"),
                ("NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9 bytes", "/dev/shm", "--ipc"),
                ("launch/mpi: rank 1 on h died of signal 7 (Bus error)", "/dev/shm", "--shm-size=1g"),
                ("NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 6000",
                 "one GPU", "--gpus"),
                ("CUDA error: invalid device ordinal", "no GPU", "CUDA_VISIBLE_DEVICES"),
                ("NCCL WARN Bootstrap : no socket interface found", "interface", "unset"),
                ("NCCL WARN socketStartConnect: Connect to 10.0.0.1<4711> failed : No route to host",
                 "firewall", "NCCL_SOCKET_IFNAME"),
                ("NCCL WARN ncclOsSocketConnect: connect to 10.0.0.1<4711> returned Connection "
                 "refused, exceeded error retry count", "firewall", "NCCL_SOCKET_IFNAME"),
                ("NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
                 "InfiniBand", "ulimit -l"),
                ("NCCL WARN NET/IB : Unable to open device mlx5_0", "InfiniBand", "NCCL_IB_HCA"),
                ("NCCL WARN NET/IB: Got completion from peer 10.0.0.1<1> with status=12 opcode=0",
                 "InfiniBand", "NCCL_IB_DISABLE=1"),
                ("NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 1 : CUDA "
                 "error 1", "multicast", "NCCL_NVLS_ENABLE=0"),
                ("NCCL WARN Cuda failure 800 'operation not permitted'", "multicast",
                 "nvidia-fabricmanager"),
                ("NCCL WARN Cuda failure 'peer mapping resources exhausted'", "each other's memory",
                 "NCCL_P2P_DISABLE=1"),
                ("NCCL WARN Cuda failure 2 'out of memory'", "memory is full", "--batch-size"),
                ("NCCL WARN Failed to CUDA calloc async 4194304 bytes", "memory is full", "smi"),
                ("There are not enough slots available in the system", "slots", "--ntasks"),
                ("misc/socket.cc:494 NCCL WARN Call to socket failed : Too many open files",
                 "limit of open files", "ulimit -n"),
                ("At least one pair of MPI processes are unable to reach each other",
                 "does not connect", "OMPI_MCA_btl"),
                ("Read -1, expected 8192, errno = 1", "container", "SYS_PTRACE"),
                ("NCCL: unhandled system error (run with NCCL_DEBUG=INFO)", "inside NCCL", "INFO"),
                ("NCCL: remote process exited or there was a network error", "another rank", "first")]:
            result = self.table(default=(4, f"hello\n{line}\nbye\n"))
            text = result.stdout
            self.expect(result, 4, f"message: {line}")
            self.assertIn(cause, text.split("cause: ")[1].splitlines()[0], line)
            self.assertIn(cure, text.split("remedy:  ")[1], line)
            self.assertEqual(text.count("cause:"), 1, text)
        self.expect(self.table(default=(4, "hello\nsomething new\n")), 4,
                    "last output: something new")
        self.assertNotIn("cause", self.table(default=(0, "Cuda failure 2 'out of memory'")).stdout)

    def test_nccl_s_last_warning_is_shown_where_no_cause_fits_it(self):
        warned = "vm:1:1 [0] transport.cc:7 NCCL WARN Something nobody has seen"
        for end in ("NCCL: unhandled system error", "gone"):
            result = self.table(default=(4, f"vm:1:1 NCCL WARN before\n{warned}\n{end}\n"))
            self.expect(result, 4, f"NCCL:    {warned}")
            self.assertNotIn("WARN before", result.stdout.partition("last output")[0])
        result = self.table(default=(4, "NCCL WARN Duplicate GPU detected\n"))
        self.assertNotIn("  NCCL: ", result.stdout)

    def test_last_words_are_those_that_tell(self):
        end = "#\n# Collective test concluded: all_reduce_perf\n#\n"
        text = self.table(default=(1, f"hello\n# FAIL all_reduce 8 B\n# Avg : 1\n{end}")).stdout
        self.assertIn("fail\n  last output: # FAIL all_reduce 8 B\n\n", text)
        text = self.table(default=(4, f"one\ntwo\nthree\nfour\n{end}")).stdout
        self.assertIn("error\n  last output: two\n  last output: three\n  last output: four\n\n",
                      text)

    def test_an_algorithm_that_is_not_there_is_no_failure(self):
        said = ("h:1:1 [0] enqueue.cc:1 NCCL WARN No algorithm/protocol available for function "
                "AllGather with datatype ncclFloat32. NCCL_ALGO was set to Ring.")
        result = self.table(default=(0, ""), ring=(4, said))
        self.expect(result, 0, f"message: {said}", "cause:   the NCCL_ALGO")
        self.assertIn("ring not available", self.rows(result.stdout)["ring"][0])
        # Where no variant chose the algorithm, it is one.
        self.expect(self.table(default=(4, said)), 4, "default  internal error")

    def test_what_follows_is_told_only_alone(self):
        folder = self.folder / "runs/variants-1"
        self.table(default=(4, "NCCL: unhandled system error\n"))
        (folder / "default.nccl.host.1").write_text("NCCL WARN Bootstrap : no socket interface found\n")
        result = self.show()
        self.expect(result, 4, "NCCL_SOCKET_IFNAME")
        self.assertNotIn("unhandled", result.stdout)


if __name__ == "__main__":
    unittest.main()
