#!/usr/bin/env python3
"""bin/collective_perf, and nccl-tests' names for it, as their users meet them. Run by tests/run."""

import json
import re
import unittest

import support
from support import BIN, INJECTED, Folder, injected, read_record, run, run_bare

OWN_ALGORITHM = [] if support.GPUS else ["--mpi-algorithm", "own"]  # NCCL has its own
SIZES = ["-b", "1K", "-e", "64K", "-f", "8"]
# nccl-tests' row: size count type redop root, then twice time algbw busbw #wrong
NUMBER = r"[\d.e+-]+"
ROW = re.compile(rf"^ *(\d+) +(\d+) +(\w+) +(\w+) +(-?\d+)((?: +(?:{NUMBER}|N/A)){{8}}) *$", re.M)
NAMES = {"all_reduce": "all_reduce_perf", "all_gather": "all_gather_perf",
         "reduce_scatter": "reduce_scatter_perf", "broadcast": "broadcast_perf",
         "reduce": "reduce_perf", "all_to_all": "alltoall_perf", "gather": "gather_perf",
         "scatter": "scatter_perf", "send_recv": "sendrecv_perf", "all_to_all_v": "alltoallv_perf",
         "hypercube": "hypercube_perf"}


def rows(text):
    return [(int(m[1]), int(m[2]), m[3], m[4], int(m[5]), m[6].split()) for m in ROW.finditer(text)]


class OwnName(Folder):
    def test_every_operation_is_measured_checked_and_recorded(self):
        result = run("collective_perf", "--operation", "all", *SIZES, "-n", 4, "--repeats", 3,
                     "--record", self.record, ranks=2)
        self.expect(result, 0, "Out of bounds values : 0 OK")
        lines = read_record(self.record)
        self.assertEqual(lines[0]["program"], "collective_perf")
        self.assertEqual(lines[-1]["exit_code"], 0)
        measured = self.lines("collective")
        self.assertEqual({line["operation"] for line in measured}, set(NAMES))
        for line in measured:
            self.assertEqual(line["wrong_elements"], 0)
            self.assertEqual(line["iterations"], 12)
            self.assertEqual(line["iterations_checked"], 12)
            self.assertEqual(len(line["samples_us"]), 3)
            self.assertEqual(line.get("mpi_algorithm"), None if support.GPUS else "library")
            moved = line["bytes"] / (2 if line["operation"] == "hypercube" else 1)
            self.assertAlmostEqual(line["algbw_gbs"] * line["time_us_p50"] * 1e3, moved, delta=moved * 1e-6)
        metrics = {(line["metric"], line["condition.bytes"], line["condition.in_place"]): line
                   for line in self.lines("metric")}
        self.assertEqual(len(metrics), len(self.lines("metric")))
        for line in measured:
            small = line["bytes"] < (16 << 20 if support.GPUS else 65537)
            metric = metrics.pop((f"collective/{line['operation']}/{'latency' if small else 'busbw'}",
                                  str(line["bytes"]), json.dumps(line["in_place"])))
            self.assertEqual(metric["unit"], "us" if small else "GB/s")
            if small:
                self.assertEqual(metric["samples"], line["samples_us"])
        self.assertEqual(metrics, {})
        in_place = {line["operation"] for line in measured if line["in_place"]}
        self.assertEqual(set(NAMES) - in_place, {"all_to_all", "send_recv", "all_to_all_v"})

    def test_no_bytes_at_all_are_a_size(self):
        result = run("collective_perf", "--operation", "all", "-b", 0, "-e", 0, "-n", 2, "--repeats",
                     1, "--record", self.record, ranks=2)
        self.expect(result, 0, "Out of bounds values : 0 OK")
        self.assertEqual({line["operation"] for line in self.lines("collective")}, set(NAMES))
        self.assertEqual({line["bytes"] for line in self.lines("collective")}, {0})
        self.expect(run("collective_perf", "--operation", "all", "-m", 2, "-b", 0, "-e", 0, "-n", 1, ranks=2), 0,
                    "# left out: hypercube (its exchanges follow one another: --agg-iters must be 1)")

    def test_what_went_wrong_is_named(self):
        for ranks, fault, said, keys in [
                (2, "1:7:3:5", "one bit flipped; memory: ", {"wrong_bit_flip": 1}),
                (2, "1:stale:1", "stale result of 1 iteration before; ordering: ",
                 {"wrong_stale": 1, "wrong_age": 1}),
                (3, "2:torn:1:4096:2048", "torn in pieces of 64 bytes of 1 iteration before; ordering: ",
                 {"wrong_torn": 1, "wrong_torn_bytes": 64, "wrong_age": 1}),
                (3, "1:missing_addend:1", "without the addend of rank 2; arithmetic: ",
                 {"wrong_missing_addend": 1, "wrong_from_rank": 2})]:
            with self.subTest(fault=fault):
                is_flip = "wrong_bit_flip" in keys
                action = "run bin/soak on that rank's GPU" if is_flip else "run launch/variants"
                record, file = self.folder / f"{fault}.jsonl", self.folder / f"{fault}.json"
                result = run(INJECTED / "collective_perf", "-b", "64K", "-e", "64K", "-n", 8, "--repeats", 1,
                             "--record", record, "-J", file, ranks=ranks, env=injected(fault))
                self.expect(result, 1, "WRONG: rank ", "FAIL operation all_reduce float32 sum 64 KiB out of place: ", said,
                            f"; {action}", "Out of bounds values : 2 FAILED")
                row = [line for line in read_record(record) if line["kind"] == "collective"][0]
                shown = json.loads(file.read_text())["results"][0]["out_of_place"]
                for found in (row, shown):
                    self.assertEqual({key: found[key] for key in keys}, keys)
                    self.assertEqual(found["wrong_unknown"], 0)
                    self.assertTrue(is_flip or found["wrong_chance_log2"] < -20)
                if is_flip:
                    self.expect(result, 1, "iteration 7, element 3")
                    expected, found = (int(bits, 16) for bits in re.findall(r"0x[0-9a-f]+", row["first_wrong"]))
                    self.assertEqual(expected ^ found, 1 << 5)
                self.assertEqual(read_record(record)[-1]["exit_code"], 1)
                verdict = [line for line in read_record(record) if line["kind"] == "verdict"][0]
                self.assertIn(said, verdict["cause"])
                self.assertIn(action, verdict["action"])

    def test_unchecked_is_said(self):
        result = run(INJECTED / "collective_perf", "-b", "1K", "-e", "1K", "-c", 0, "--record", self.record, ranks=2,
                     env=injected("1:7"), timeout=60)  # a small job is over soon
        self.expect(result, 0, "N/A", "UNKNOWN job collective_perf: rates not judged, data not checked")
        self.assertIsNone(self.lines("collective")[0]["wrong_elements"])
        self.assertEqual(self.lines("collective")[0]["iterations_checked"], 0)
        for check, said in ((0, "bars reached, data not checked"), (1, "bars reached, all data right")):
            self.expect(run("collective_perf", "-b", "1K", "-e", "1K", "-n", 1, "-c", check, "--min-busbw", 1e-9, ranks=2),
                        0, f"PASS job collective_perf: {said}")

    def test_the_rank_that_is_late_is_named_where_all_wait_for_it(self):
        # The delay is longer than a busy machine keeps a rank from its core.
        result = run(INJECTED / "collective_perf", "--operation", "all_reduce,broadcast", "-b", "1K", "-e", "1K",
                     "-I", 1, "-n", 3, "-w", 1, "--repeats", 2, "--record", self.record, ranks=2,
                     env=injected(delay="1:100000"))
        self.expect(result, 0, "waited for rank 1 on ")
        for line in self.lines("collective"):
            self.assertEqual(len(line["samples_us"]), 6)
            if line["operation"] == "broadcast":  # its root need not wait for anyone
                self.assertNotIn("wait_us", line)
                continue
            self.assertEqual(line["straggler_rank"], 1)
            self.assertGreater(line["wait_us"][0], 60000)
            self.assertLess(line["wait_us"][1], line["wait_us"][0] / 2)


class Bars(Folder):
    def test_bars_that_cannot_be_reached_fail(self):
        result = run("collective_perf", "--operation", "all_reduce,reduce_scatter", "-d", "float64,int8", "-b", 1, "-e", 64,
                     "--repeats", 1, "--min-busbw", 1e6, "--max-latency", 0.001, "--record",
                     self.record, *OWN_ALGORITHM, ranks=2)
        if not support.GPUS:
            self.expect(result, 1, "over mpi (own algorithm)")
            self.assertEqual({line["mpi_algorithm"] for line in self.lines("collective")}, {"own"})
        self.expect(result, 1, "at least 1e+06", "at most 0.001")
        found = self.lines("verdict")
        self.assertEqual({line["verdict"] for line in found}, {"FAIL"})
        self.assertEqual([line["name"] for line in found if line["scope"] == "job"],
                         ["collective_perf"])
        causes = " ".join(line["cause"] for line in found)
        self.assertIn("latency of 1 B int8", causes)  # of float64 it moves nothing
        for operation in ("all_reduce", "reduce_scatter"):  # 8 and 16 B of the latter move nothing
            self.assertIn(f"collective/{operation}/latency", causes)
        self.assertRegex(causes, "/busbw of 64 B .* and 4 more")  # of two operations and types, in place and out of place

    def test_an_earlier_run_is_the_reference(self):
        sizes = ["-b", "16M", "-e", "32M"] if support.GPUS else ["-b", "128K", "-e", "256K"]  # smaller: latencies
        run("collective_perf", *sizes, "--record", self.record, ranks=2)
        other, limits = self.folder / "other.jsonl", self.folder / "limits.json"
        limits.write_text('[{"metric": "collective/*", "floor": 0}]')  # no samples are too unsteady for it

        def earlier(factor, **changed):
            """The run above with other rates, so that no load on this machine decides."""
            other.write_text("".join(
                json.dumps({**line, "samples": [1e-3 * factor] * 5, **changed}) + "\n"
                for line in read_record(self.record) if line["kind"] == "metric"))

        earlier(factor=1e-6)
        self.expect(run("collective_perf", *sizes, "--reference", other, "--limits", limits,
                        ranks=2), 0)  # however unsteady the samples of a busy machine are
        earlier(factor=1e9)
        judged = self.folder / "judged.jsonl"
        self.expect(run("collective_perf", *sizes, "--reference", other, "--limits", limits,
                        "--record", judged, ranks=2), 1,
                    "measuring again what seems slow: 4 rows", "FAIL job collective_perf")
        looks = [line["look"] for line in read_record(judged) if line["kind"] == "metric"]
        self.assertEqual(looks, [1] * 4 + [2] * 4)
        finding = [line for line in read_record(judged) if line["kind"] == "verdict"][0]
        self.assertEqual((finding["metric"], finding["witness"], finding["slow_looks"], finding["looks"]),
                         ("collective/all_reduce/busbw", "reference", 2, 2))
        earlier(factor=1e9, **{"condition.transport": "other"})
        folder = self.folder / "references"
        folder.mkdir()
        other.rename(folder / other.name)
        self.expect(run("collective_perf", *sizes, "--reference", folder, ranks=2), 3,
                    "--reference compares none of its rates", "reference other")
        few = self.folder / "few.jsonl"
        run("collective_perf", *sizes, "--repeats", 1, "--record", few, ranks=2)
        self.expect(run("collective_perf", *sizes, "--reference", few, ranks=2), 3, "its own are too noisy or of too few samples")

    def test_the_bar_judges_what_the_table_shows(self):
        result = run("all_reduce_perf", "-b", 1024, "-e", 1024, "-I", 1, "-z", 1, "-J",
                     self.folder / "o.json", "--record", self.record, "--min-busbw", 1e-6,
                     "--max-latency", 1e7, ranks=2)
        self.expect(result, 0, "i_min", "i_p99", "i_cv%")
        line = re.search(r"^ *1024 .*$", result.stdout, re.M)[0].split()
        self.assertEqual(len(line), 5 + 16)
        row = json.loads((self.folder / "o.json").read_text())["results"][0]
        for line in self.lines("collective"):
            shown = row["in_place" if line["in_place"] else "out_of_place"]
            self.assertAlmostEqual(line["busbw_gbs"], shown["bus_bw"])
        self.assertEqual([line["verdict"] for line in read_record(self.record)
                          if line["kind"] == "verdict"], ["PASS"])


class NcclTestsNames(Folder):
    def test_table_is_nccl_tests(self):
        for name in NAMES.values():
            self.assertTrue((BIN / name).exists(), name)
        for operation in ("all_reduce", "broadcast", "all_to_all"):
            name = NAMES[operation]
            result = run(name, *SIZES, "-n", 2, ranks=2)
            self.expect(result, 0, f"# Collective test starting: {name}",
                        "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : ")
            measured = rows(result.stdout)
            self.assertEqual([row[0] for row in measured], [1024, 8192, 65536], result.stdout)
            for row in measured:
                self.assertEqual(row[2], "float")
                self.assertEqual(row[3], "sum" if operation == "all_reduce" else "none")
                self.assertEqual(row[4], 0 if operation == "broadcast" else -1)
                wrong = [row[5][3], row[5][7]]
                self.assertEqual(wrong, ["0", "N/A" if operation == "all_to_all" else "0"])

    def test_sizes_too_small_to_divide_are_empty_rows(self):
        result = run("all_gather_perf", "-b", 8, "-e", 64, "-f", 2, ranks=2)
        self.expect(result, 0)
        self.assertEqual([row[:2] for row in rows(result.stdout)],
                         [(0, 0), (0, 0), (32, 4), (64, 8)])

    def test_every_short_option_is_understood(self):
        result = run("all_reduce_perf", "-b", 1024, "-e", 1024, "-f", 2, "-i", "1M", "-n", 2, "-w", 1,
                     "-m", 2, "-c", 1, "-d", "double", "-o", "max", "-r", 0, "-z", 1, "-R", 0,
                     "-N", 2, "-a", 3, "-C", 1, "-T", 60, "-t", 1, "-g", 1, "-S", 1, "-G", 0, "-I", 0,
                     "-J", self.folder / "o.json", "-p", 0, "-M", 1, ranks=2)
        self.expect(result, 0, "cputime")
        self.assertRegex(result.stdout, r"(?m)^# GPU memory usage     : " + (
            r"Initialization \S+ \wB \| User-Allocated \S+ \wB" if support.GPUS else "none, the backend is cpu\n#\n# Coll"))
        self.assertEqual(len(re.findall(r"^ *1024 +128 +double +max ", result.stdout, re.M)), 2)

    def test_traffic_of_a_matrix(self):
        matrix = self.folder / "traffic.txt"
        matrix.write_text("0 4096 16\n1024 0 0\n0 160 320\n")
        variables = {"NCCL_TESTS_ALLTOALLV_MATRIX_FILE": matrix}
        result = run("alltoallv_perf", "-b", "8K", "-e", "8K", "-n", 2, "--record", self.record, ranks=3, env=variables)
        self.expect(result, 0, "# Out of bounds values : 0 OK")
        self.assertEqual({(line["bytes"], line["traffic"]) for line in self.lines("collective")},
                         {(4096 + 160, f"NCCL_TESTS_ALLTOALLV_MATRIX_FILE={matrix}")})
        result = run("alltoallv_perf", "-b", "1K", "-e", "8K", ranks=3, env=variables)
        self.expect(result, 2, "--min-bytes and --max-bytes must be equal")
        result = run("alltoallv_perf", *SIZES, ranks=2, env={"NCCL_TESTS_ALLTOALLV_MATRIX_FILE": self.folder})
        self.expect(result, 2, f"NCCL_TESTS_ALLTOALLV_MATRIX_FILE: {self.folder}: cannot be read: Is a directory")
        result = run("alltoallv_perf", *SIZES, ranks=2, env={"NCCL_TESTS_ALLTOALLV_MATRIX_SCALE": "2"})
        self.expect(result, 2, "NCCL_TESTS_ALLTOALLV_MATRIX_SCALE=2: needs NCCL_TESTS_ALLTOALLV_MATRIX_FILE")

    def test_groups_of_the_environment(self):
        result = run("all_reduce_perf", *SIZES, "-n", 2, "-I", 1, "--record", self.record, ranks=4,
                     env={"NCCL_TESTS_SPLIT": "MOD 2"})
        self.expect(result, 0, "Rank  3 Group  1", "# Out of bounds values : 0 OK")
        slowest = re.findall(r"^# slowest group ([01]): (\S+) GB/s, ranks (\d), (\d); median of 2 groups", result.stdout, re.M)
        lines = self.lines("collective")
        self.assertEqual(len(slowest), len(lines))
        for (group, gbs, first, second), line in zip(slowest, lines):
            self.assertEqual((int(first), int(second)), (int(group), int(group) + 2))
            self.assertEqual((line["groups"], line["world_size"], len(line["group_busbw_gbs"])), (2, 2, 2))
            self.assertEqual(line["split"], "NCCL_TESTS_SPLIT=MOD 2")
            self.assertEqual(f"{min(line['group_busbw_gbs']):.4g}", gbs)
            self.assertEqual(line["wrong_elements"], 0)
            self.assertNotIn("wait_us", line)  # groups do not wait for one another

    def test_json_file_and_the_bar_of_the_environment(self):
        path = self.folder / "out.json"
        for bandwidth, code, word in [("0.000001", 0, "OK"), ("1000", 1, "FAILED")]:
            result = run("all_reduce_perf", *SIZES, "-J", path, ranks=2,
                         env={"NCCL_TESTS_MIN_BW": bandwidth})
            self.expect(result, code, "Writing JSON output to")
            self.assertRegex(result.stdout, rf"# Avg bus bandwidth    : \S+ {word}")
        self.expect(run("all_reduce_perf", *SIZES, ranks=2, env={"NCCL_TESTS_MIN_BW": "33O"}), 2,
                    "NCCL_TESTS_MIN_BW=33O: must be a number from 0 to 1e+06")
        file = json.loads(path.read_text())
        self.assertEqual(file["version"], 3)
        self.assertEqual(file["config"]["warmup_iters"], 1)
        self.assertEqual([d["rank"] for d in file["config"]["devices"]], [0, 1])
        self.assertEqual([(r["operation"], r["size"]) for r in file["results"]],
                         [("all_reduce", 1024), ("all_reduce", 8192), ("all_reduce", 65536)])
        for row in file["results"]:
            self.assertEqual(set(row["out_of_place"]), {"time", "alg_bw", "bus_bw", "nwrong"})
            self.assertEqual(row["in_place"]["nwrong"], 0)
        self.assertEqual(file["out_of_bounds"], {"count": 0, "okay": "true"})
        self.assertGreater(file["average_bus_bandwidth"]["bandwidth"], 0)
        self.assertEqual(file["env"], [])  # never the whole environment
        self.assertTrue((self.folder / "out.json.0").exists())

    @unittest.skipIf(support.GPUS, "a GPU may have that much")
    def test_sizes_that_memory_does_not_allow_are_left_out(self):
        # sizes of 8 bytes and 14 GiB; -m 8 divides what memory allows by 8
        self.expect(run("all_reduce_perf", "-b", 8, "-e", "15G", "-i", "14G", "-d", "double", "-m",
                        8, "-n", 1, ranks=2), 0, "Reducing maxBytes to 8 due to memory limitation",
                    "minBytes 8 maxBytes 8 ")

    def test_g_starts_ranks_itself(self):
        if 0 < support.GPUS < 2:
            self.skipTest("2 ranks on one GPU")
        for option in ("-g", "-t"):  # nccl-tests' ranks are processes x threads x GPUs
            result = run_bare(BIN / "all_reduce_perf", "-b", 64, option, 2, "-e", 64)
            self.expect(result, 0, "#  Rank  1 ")
            self.assertEqual(len(rows(result.stdout)), 1)


if __name__ == "__main__":
    unittest.main()
