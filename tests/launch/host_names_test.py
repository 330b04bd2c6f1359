"""launch/mpi without ranks: on which hosts, by which names, with which variables."""

import os
import tempfile
import unittest
import unittest.mock

from ranks_fakes import FakeHost, line, option
from shakedown_launch import command, hosts, mpi, places, ranks


class Hosts(unittest.TestCase):
    def test_hosts(self):
        words = line("--hosts", "h1,h2", "--gpus", "0,1,2,3", "true", NCCL_DEBUG="INFO")
        self.assertEqual((option(words, "-n"), option(words, "--host")), ("8", "h1:4,h2:4"))
        for name in ["NCCL_DEBUG", "CUDA_VISIBLE_DEVICES=0,1,2,3"]:
            self.assertIn(name, words)
        words = line("--hosts", "h1,h2", "true", CUDA_VISIBLE_DEVICES="2,3",
                     NVIDIA_TF32_OVERRIDE="0",
                     NVIDIA_VISIBLE_DEVICES="all", FI_PROVIDER="cxi", UCX_TLS="rc")
        self.assertEqual(option(words, "-n"), "4")
        self.assertTrue({"NVIDIA_TF32_OVERRIDE", "FI_PROVIDER", "UCX_TLS"} <= set(words))
        self.assertNotIn("VISIBLE_DEVICES", " ".join(words))  # each host's own
        self.assertFalse({"PATH", "BACKENDS"} & set(words))
        self.assertNotIn("-x", line("true", NCCL_DEBUG="INFO"))

    def test_variables_that_travel_to_other_hosts(self):
        names = ["OFI_NCCL_PROTOCOL", "RDMAV_FORK_SAFE", "HCOLL_MAIN_IB", "NVSHMEM_IB_ENABLE",
                 "SHARP_COLL_LOG_LEVEL", "PMIX_MCA_gds", "UCC_TLS", "FI_PROVIDER", "NCCL_DEBUG"]
        words = line("--hosts", "h1,h2", "-n", 2, "true", **dict.fromkeys(names, "1"), SSH_KEY="secret")
        self.assertEqual([word for before, word in zip(words, words[1:]) if before == "-x"],
                         [*sorted(names), "SHAKEDOWN_HOSTS=2"])

    def test_names_that_differ_in_their_domain_are_two_hosts(self):
        for named, kept in [("w.1.foo,w.2.foo", True), ("h1,h2", False), ("10.0.0.1,10.0.0.2", False),
                            ("h1,h2.site", True)]:
            words = line("--hosts", named, "-n", 2, "true")
            self.assertEqual("orte_keep_fqdn_hostnames" in words, kept, named)
            self.assertIn("SHAKEDOWN_HOSTS=2", words)
        job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "w[1-2].foo"}
        self.assertIn("orte_keep_fqdn_hostnames", line("-n", 2, "true", **job))

    def test_how_many_hosts_are_to_answer(self):
        four = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_NODELIST": "n[1-4]"}
        for words, environ, count in [(["--hosts", "h1,h2,h3", "-n", 5], {}, 3), (["-n", 8], four, 4),
                                      (["-n", 3], four, 3), (["-n", 5], four, 3),
                                      (["-n", 2], {**four, "SLURM_NTASKS": "2"}, 4)]:
            self.assertIn(f"SHAKEDOWN_HOSTS={count}", line(*words, "true", **environ), (words, environ))
        self.assertNotIn("SHAKEDOWN_HOSTS", " ".join(line("-n", 3, "true", SHAKEDOWN_HOSTS="7")))

    def test_a_host_without_a_rank_is_refused(self):
        for count, named, idle in [(1, "h1,h2", "h2"), (5, "h1,h2,h3,h4", "h4"), (2, "a,b,c,d", "c d")]:
            with self.assertRaisesRegex(command.UsageError, f"no rank would run on {idle}: use a multiple"):
                line("--hosts", named, "-n", count, "true")

    def test_words_that_are_no_host(self):
        for word, named in [("fd00::5", "fd00::5 is an IPv6 address"), ("::1", "::1 is an IPv6 address"),
                            ("[2001:db8::1]", "IPv6"), ("[fd00::5]:4", "IPv6"), ("fe80::1%eth0", "IPv6"),
                            ("h1:x", "'h1:x' is not a host"), ("h1:", "'h1:' is not"), (":4", "':4' is not"),
                            ("h[1-2]", "is not a host")]:
            with self.assertRaises(command.UsageError, msg=word) as raised:
                line("--hosts", f"h0,{word}", "true")
            self.assertIn(named, str(raised.exception))
        self.assertEqual(option(line("--hosts", "h1:4,h2,h1", "-n", 2, "true"), "--host"), "h1:1,h2:1")

    def test_names_of_one_host(self):
        for one, other, same in [("vm", "vm", True), ("vm", "vm.example.com", True),
                                 ("vm.example.com", "vm", True), ("w.1.foo", "w.2.foo", False),
                                 ("10.0.0.1", "10.0.0.2", False), ("10.0.0.1", "10", False), ("a", "b", False)]:
            self.assertIs(hosts.same(one, other), same, (one, other))
        self.assertEqual(hosts.matched(["w.1.foo", "n2", "n3.b", "x", "w"], ["w.1.foo", "w.2.foo", "n2.a", "n3"]),
                         {"w.1.foo": "w.1.foo", "n2": "n2.a", "n3.b": "n3"})  # w may be two

    def test_a_name_that_is_too_long_for_open_mpi(self):
        long = "n" * 57
        with unittest.mock.patch.object(mpi.os, "uname", lambda: unittest.mock.Mock(nodename=f"{long}.a")):
            with self.assertRaisesRegex(places.InconclusiveError,
                                        f"host name {long} has 57 characters; Open MPI 4 supports 56"):
                mpi.check_open_mpi(os.environ)
        cut = f"n.{'x' * 60}"  # at the first dot, unless another host has a domain as well
        with unittest.mock.patch.object(mpi.os, "uname", lambda: unittest.mock.Mock(nodename=cut)):
            mpi.check_open_mpi(os.environ, ["h1", "h2"])
            with self.assertRaisesRegex(places.InconclusiveError, "has 62 characters"):
                mpi.check_open_mpi(os.environ, ["h1.a"])

    def test_hostfile(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("# two\nh1 slots=8\n\nh2\nh1\n")
            file.flush()
            words = line("--hostfile", file.name, "-n", 5, "true")
        self.assertEqual(option(words, "--host"), "h1:3,h2:3")

    def test_ranks_elsewhere(self):
        """Where some are, those of a job that was killed may still run there."""
        def elsewhere(*hosts, **environ):
            words = ["--hosts", ",".join(hosts)] if hosts else []
            environ = {"PATH": os.environ["PATH"], **environ}
            values, rest = command.parse(mpi.COMMAND, ["-n", "2", *words, "true"])
            with unittest.mock.patch.object(ranks, "Host", FakeHost):
                return mpi.job(mpi.request(values, rest, environ), environ)._elsewhere
        one = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n5"}
        two = {**one, "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[5-6]"}
        node = {"SLURMD_NODENAME": "n5"}
        for hosts, environ, expected in [
                ([], {}, False), (["here", "localhost:2"], {}, False), (["here.site"], {}, False),
                (["here.other"], {}, True), (["here", "h2"], {}, True),
                (["h2"], {}, True), ([], {**one, **node}, False), ([], {**two, **node}, True),
                ([], one, True), ([], two, True)]:  # on a login node
            self.assertIs(elsewhere(*hosts, **environ), expected, (hosts, environ))

    def test_no_gpu_to_count_by(self):
        login_node = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n5"}
        for words, environ in [(("--hosts", "h1,h2"), {}), (("--hosts", "h1"), {}), ((), login_node)]:
            with self.assertRaisesRegex(command.UsageError,
                                        "no GPU visible on this host; specify .* -n"):
                line(*words, "true", CUDA_VISIBLE_DEVICES="", BACKENDS="gpu", **environ)
        self.assertEqual(option(line("--hosts", "h1,h2", "true", CUDA_VISIBLE_DEVICES="",
                                     BACKENDS="cpu"), "-n"), "4")


if __name__ == "__main__":
    unittest.main()
