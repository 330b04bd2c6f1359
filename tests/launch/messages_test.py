"""What is made of mpirun's messages and exit code, by text as Open MPI 4 and 5 write it."""

import unittest

import tree  # noqa: F401 - what is imported below is in its folders
from shakedown_launch.messages import LONGEST_BLOCK, Messages

DASHES = "-" * 74
MISSING = "There are not enough slots available in the system to satisfy the 50 slots"


def block(text):
    return f"{DASHES}\n{text}\n{DASHES}\n"


class Judged:
    """What `text` on mpirun's own stream (Open MPI 4), or on the ranks' (5), and its exit code lead
    to."""

    def __init__(self, version, text, status, hosts=("n9",)):
        self.shown, self.said = [], []
        messages = Messages(self.said.append, self.shown.append, hosts)
        read = messages.read_own if version == 4 else messages.read_shared
        for byte in text.encode():  # however it is cut
            read(bytes([byte]))
        self.job_must_end = messages.job_must_end
        messages.close()
        self.messages = messages
        self.code, text = messages.judge(status)
        self.said += [text] if text else []


class Classification(unittest.TestCase):
    def test_hosts_that_ssh_does_not_reach(self):
        for line, said in [
                ("ssh: connect to host n9 port 22: Connection refused", "host n9 could not be reached: Connection refused"),
                ("ssh: Could not resolve hostname n9: Name or service not known",
                 "host n9 could not be reached: Name or service not known"),
                ("root@n9: Permission denied (publickey).", "host n9 could not be reached: Permission denied (publickey).")]:
            shown = []
            messages = Messages(shown.append, shown.append, ("n8", "n9"))
            messages.read_shared(f"{line}\n".encode())
            messages.read_own(block("ORTE was unable to reliably start one or more daemons.").encode())
            self.assertEqual((shown, messages.lost, messages.judge(1)[0]), ([said], [("n9", said)], 3))

    def test_what_slurm_knows_of_a_job_that_did_not_start_or_was_lost(self):
        """Its own words take the place of Open MPI's guess, "a lack of common network interfaces"."""
        guess = "An ORTE daemon has unexpectedly failed after launch and before\ncommunicating back to mpirun."
        lost = ("ORTE has lost communication with a remote daemon.\n\n  Remote daemon: [[1,0],1] on node n1\n")
        for ask, text, status, said, shown in [
                ("Slurm: job 77 is over", guess, 1, ["the job could not be started (Slurm: job 77 is over)"], []),
                ("", guess, 1, ["the job could not be started (mpirun ended with 1)"], [guess]),
                ("Slurm: node n2 is down*", lost, 205,
                 ["host n1 was lost: it or its network link failed", "Slurm: node n2 is down*"], [])]:
            found, seen = [], []
            messages = Messages(found.append, seen.append, ask=lambda ask=ask: ask)
            messages.read_own(block(text).encode())
            code, last = messages.judge(status)
            self.assertEqual((code, [*found, *[last] * bool(last)], seen), (3, said, shown))

    def test_a_program_that_is_missing_on_a_host(self):
        text = ("mpirun was unable to launch the specified application as it could not access\nor execute an "
                "executable:\n\nExecutable: /tree/bin/train\nNode: n2\n\nwhile attempting to start process rank 3.")
        judged = Judged(4, block(text), 132)
        self.assertEqual((judged.code, judged.said, judged.shown), (
            3, ["rank 3 on n2: /tree/bin/train is not there or cannot be executed"], []))

    def test_exit_codes(self):
        died = "@ noticed that process rank 1 with PID 7 on node n2 exited on signal 9 (Killed)."
        nonzero = "@ detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated."
        primary = "Primary job  terminated normally, but 1 process returned\na non-zero exit code."
        no_route = ("ORTE does not know how to route a message to the specified daemon\nlocated on "
                    "the indicated node:\n\n  my node:   n1\n  target node:  n2")
        lost = ("@ has lost communication with a remote daemon.\n\n"
                "  HNP daemon   : [[1,0],0] on node n1\n  Remote daemon: [[1,0],1] on node n2\n\n"
                "This is usually due to")
        no_folder = ("A call to mkdir was unable to create the desired directory:\n\n  Directory: "
                     "/x/ompi.vm.0\n  Error:     No such file or directory\n")
        not_run = (nonzero.replace("@", "mpirun") + " The first process to do so was:\n\n"
                   "  Process name: [[25034,1],1]\n  Exit code:    127")
        killed, unstarted = "rank 1 on n2 died of signal 9 (Killed)", "the job could not be started (mpirun ended with 1)"
        could_not = "its program, or a library that it needs, could not be run"
        # version, text, mpirun's exit code, the job's exit code, what is said; @: who says it
        cases = [(version, block(text.replace("@", name)), *more) for version, name in ((4, "mpirun"), (5, "prterun"))
                 for text, *more in [
                     (MISSING, 1, 3, unstarted), (nonzero, 1, 1, None), (died, 137, 3, killed),
                     ("MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith errorcode 4.", 4, 4, None),
                     ("@ was unable to reliably start one or more daemons.", 255, 3, "host n9 could not be reached"),
                     (lost, 1, 3, "host n2 was lost: it or its network link failed")]]
        cases += [
            (4, "", 4, 3, "the job could not be started (mpirun ended with 4)"),
            (4, "", 1, 3, "mpirun was stopped by a signal, or the job could not be started (mpirun ended with 1)"),
            (4, block(no_folder), 1, 3, "the job could not be started (mpirun cannot make /x/ompi.vm.0: No such file or "
             "directory; see TMPDIR)"),
            (4, "", 205, 3, "a rank or a host was lost (mpirun ended with 205)"),
            (4, "", 137, 3, "a rank died of signal 9 (Killed); mpirun does not say which"),
            (4, "", -11, 3, "mpirun died of signal 11 (Segmentation fault)"),
            (4, "", 0, 0, None), (4, block(primary), 3, 3, None), (4, block(no_route), 1, 3, "host n2 could not be reached"),
            (5, block('prterun has exited due to process rank 0 with PID 0 on\nnode vm calling "abort".'), 4, 4, None),
            (4, "[vm:1] ORTE_ERROR_LOG: Out of resource in file orte/util/show_help.c\n", 2, 2, None),
            (5, "[vm:1] 1 more process has sent help message help-mpi-api.txt / mpi-abort\n", 2, 2, None),
            (5, block(died.replace("on node", "on\nnode")), 137, 3, killed),
            (5, block(died.replace("on signal", "on\nsignal")), 137, 3, killed),
            (5, block(died.replace(" (Killed)", "")), 1, 3, "rank 1 on n2 died of signal 9"),
            (4, block(not_run), 127, 3, f"rank 1 ended with 127: {could_not}"), (4, block(not_run.replace("127", "7")), 7, 7, None),
            (4, block(primary), 127, 3, f"a rank ended with 127: {could_not}")]
        for version, text, status, code, said in cases:
            judged = Judged(version, text, status)
            self.assertEqual((judged.code, judged.said), (code, [said] if said else []),
                             (version, text))
            # Only what the line above does not say is shown; of Open MPI 5 all was shown already.
            self.assertEqual(judged.shown, [MISSING] if version == 4 and MISSING in text else [])
            self.assertEqual(judged.job_must_end, bool(text) and not any(
                word in text for word in (MISSING, "mkdir")), text)

    def test_who_died(self):
        text = "".join(block(f"mpirun noticed that process rank {n} with PID 7 on node n{n} exited on signal 11 (Segmentation fault).")
                       for n in (1, 2))
        judged = Judged(4, text, 139)
        self.assertEqual(judged.messages.dead, [("1", "n1", "signal 11 (Segmentation fault)"),
                                                ("2", "n2", "signal 11 (Segmentation fault)")])

    def test_the_end_by_a_signal_that_was_passed_on(self):
        died = "mpirun noticed that process rank 1 with PID 7 on node n2 exited on signal 12 (User defined signal 2)."
        for sent, code, said in [([12], 5, []), ([10], 3, ["rank 1 on n2 died of signal 12 (User defined signal 2)"])]:
            said_now = []
            messages = Messages(said_now.append, self.fail)
            for number in sent:
                messages.sent(number)
            messages.read_own(block(died).encode())
            self.assertTrue(messages.job_must_end)
            self.assertEqual((messages.judge(140), said_now), ((code, None), said))

    def test_ranks_that_never_start(self):
        """Those that wait for them report it; the others are missing."""
        for waiting, said in [
                ((0, 3), "ranks 1, 2 did not start MPI, for which the others waited"),
                ((0, 1, 2), "rank 3 did not start MPI, for which the others waited"),
                ((0, 1, 2, 3), None)]:
            messages = Messages(None, None, ranks=4)
            for rank in waiting:
                messages.read_shared(f"error: rank {rank} on n1: MPI_Init did not finish within "
                                     "2 s (--timeout): another\n".encode())
            messages.rank_ended = True
            self.assertEqual(messages.judge(3), (3, said))

    def test_hosts_that_may_be_meant(self):
        text = block("ORTE was unable to reliably start one or more daemons.")
        for hosts, said in [((), "a node of the allocation could not be reached"),
                            (("h1", "h2"), "one of the hosts h1 h2 could not be reached")]:
            self.assertEqual(Judged(4, 2 * text, 255, hosts).said, [said])  # once


class Streams(unittest.TestCase):
    def test_what_is_not_known_is_shown(self):
        text = f"a line\n{block('two lines')}orte_base_help_aggregate to 0\n{DASHES}\ncut off"
        judged = Judged(4, text, 0)
        self.assertEqual(judged.shown, ["a line", "two lines", "cut off"])

    def test_ranks_that_write_dashed_lines_too(self):
        table = f"{DASHES}\n" + "a row\n" * 3 * LONGEST_BLOCK
        judged = Judged(5,
                        f"{DASHES}\n{table}{block('prterun detected that one or more processes exited with non-zero status')}", 1)
        self.assertEqual(judged.code, 1)
        self.assertEqual(Judged(5, table, 1).code, 3)

    def test_idle_lines_on_the_ranks_stream_are_left_out(self):
        messages = Messages(None, None)
        for idle in ["mpirun: Forwarding signal 12 to job\n",
                     "[warn] Epoll MOD(1) on fd 26 failed. Old events were 6; read change was 0 "
                     "(none); write change was 2 (del); close change was 0 (none): Bad file "
                     "descriptor\n"]:
            for before, after in [("", ""), ("rank 0\n", "rank 1\n"), ("[warn] mine", "rank 1")]:
                self.assertEqual(messages.read_shared((before + idle + after).encode()),
                                 (before + after).encode())
        kept = b"[warn] Epoll MOD(1) on fd 26 failed. Old events were 6: No space left on device\n"
        self.assertEqual(messages.read_shared(kept), kept)

    def test_a_line_without_end_is_not_kept(self):
        messages = Messages(None, None)
        for _ in range(100):
            messages.read_shared(b"x" * 65536)
        self.assertLess(len(messages._shared._rest), 100_000)


if __name__ == "__main__":
    unittest.main()
