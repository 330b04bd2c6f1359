"""What is made of the launcher's messages and exit code, by text as Open MPI 4, Open MPI 5 and Hydra write it."""

import signal
import unittest

import tree  # noqa: F401 - what is imported below is in its folders
from shakedown_launch import hydra
from shakedown_launch.messages import LONGEST_BLOCK, Messages, OpenMpi5

DASHES = "-" * 74
MISSING = "There are not enough slots available in the system to satisfy the 50 slots"


def block(text):
    return f"{DASHES}\n{text}\n{DASHES}\n"


class Judged:
    """What `text` on mpirun's own stream (Open MPI 4), or on the ranks' (5), and its exit code lead
    to."""

    def __init__(self, version, text, status, hosts=("n9",)):
        self.shown, self.said = [], []
        messages = (Messages if version == 4 else OpenMpi5)(self.said.append, self.shown.append, hosts)
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
            text = text.replace("@", "prterun")
            judged = Judged(version, text, status)
            self.assertEqual((judged.code, judged.said), (code, [said] if said else []),
                             (version, text))
            # Only what the line above does not say is shown; of Open MPI 5 all was shown already.
            shown = [line for line in judged.shown if line != DASHES]  # of 5, where nothing follows
            self.assertEqual(shown, [MISSING] if version == 4 and MISSING in text else [])
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


class OnOpenMpi5(unittest.TestCase):
    """As 5.0.11 wrote it."""

    def judged(self, text, status, **more):
        """(code, what is said, what is shown of the ranks' standard error), however the text is cut."""
        results = []
        for size in (1, 17, len(text) + 1):
            said, shown = [], []
            messages = OpenMpi5(said.append, shown.append, ("h1", "h2"), **more)
            seen = b"".join(messages.read_shared(text.encode()[i:i + size]) for i in range(0, len(text), size))
            messages.close()
            code, last = messages.judge(status)
            results.append((code, said + [last] * bool(last), (seen.decode() + "".join(shown)).rstrip("\n")))
        self.assertEqual(results, results[:1] * 3)
        return results[0]

    def test_blocks_are_left_out_where_a_line_is_in_their_place(self):
        killed = block("prterun noticed that process rank 1 with PID 16039 on node vm exited on\nsignal 9 (Killed).")
        aborted = block("MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n  Proc: [[58195,1],1]\n  Errorcode: 3\n\n"
                        "NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.") + block(
            "prterun has exited due to process rank 1 with PID 0 on node vm calling\n\"abort\". This may have caused other") + "\0"
        code = block("prterun detected that one or more processes exited with non-zero status,\nthus causing the job to be "
                     "terminated. The first process to do so was:\n\n   Process name: [prterun-vm-29186@1,0]\n   Exit code:    NN")
        not_there = block("prterun was unable to launch the specified application as it could not\naccess an executable:\n\n"
                          "   Executable: /x/train\n   Node: n2\n\nwhile attempting to start process rank 3.")
        improper = block("prterun has exited due to process rank 1 with PID 16200 on node vm exiting\nimproperly. There are three")
        daemon = ("A daemon failed to report back after being spawned. This could\nbe due to several factors\n\n"
                  "  Local host:    vm\n  Remote host:   h2\n  Daemon exit status: @\n")
        for text, status, expected in [
                (killed, 137, (3, ["rank 1 on vm died of signal 9 (Killed)"])), (aborted, 3, (3, [])),
                (code.replace("NN", "2"), 2, (2, [])), (code.replace("NN", "2"), -6, (2, [])),  # an assertion of prterun's
                (code.replace("NN", "127"), 127,
                 (3, ["rank 0 ended with 127: its program, or a library that it needs, could not be run"])),
                (not_there, 183, (3, ["rank 3 on n2: /x/train is not there or cannot be executed"])),
                (improper, 1, (3, ["rank 1 on vm ended without MPI_Finalize"])),
                (f"{'-' * 60}\n{daemon.replace('@', '255')}{'-' * 60}\n", 255, (3, ["host h2 could not be reached"])),
                (block(daemon.replace("@", "137")), 137, (3, ["host h2 was lost: its daemon was killed"])),
                ("", 3, (3, [])), ("", 2, (2, [])),
                ("", 1, (3, ["mpirun was stopped by a signal, or the job could not be started (mpirun ended with 1)"]))]:
            self.assertEqual(self.judged(f"rank 0\n{text}rank 1\n", status), (*expected, "rank 0\nrank 1"), text)

    def test_what_is_not_known_and_what_ranks_write_is_shown(self):
        for text in [f"{DASHES}\na table\n{DASHES}\n", f"{DASHES}\n", block("prterun says something new"),
                     f"{DASHES}\nprterun noticed, and was cut off\n"]:
            self.assertEqual(self.judged(text, 0)[2], text.rstrip("\n"))
        refused = block("Your job has requested more processes than the ppr for\nthis topology can support:")
        self.assertEqual(self.judged(refused, 213), (3, ["the job could not be started (mpirun ended with 1)"], refused.rstrip("\n")))


class OnHydra(unittest.TestCase):
    """As MPICH 4.3.2 and 5.0.2 and Intel MPI 2021.18 wrote it."""
    MPICH_END = ("\n{0}\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 5380 RUNNING AT vm\n=   EXIT CODE: 9\n"
                 "=   CLEANING UP REMAINING PROCESSES\n{0}\n".format(83 * "="))
    INTEL_END = ("\n{0}\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 1 PID 6864 RUNNING AT vm\n"
                 "=   KILLED BY SIGNAL: 9 (Killed)\n{0}\n".format(83 * "="))

    def judged(self, text, status, shared="", sent=(), hosts=("n9",), ranks=2):
        said, shown = [], []
        messages = hydra.Messages(said.append, shown.append, hosts, ranks)
        for number in sent:
            messages.sent(messages.instead.get(number, number))
        seen = messages.read_shared(shared.encode())
        for byte in text.encode():
            messages.read_own(bytes([byte]))
        messages.close()
        code, last = messages.judge(status)
        return code, said + [last] * bool(last), shown, seen.decode()

    def test_exit_codes_are_the_ranks_own(self):
        end = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
        which = "a rank died of signal 9 (Killed); mpiexec.hydra does not say which"
        for text, status, code, *said in [
                ("[mpiexec@vm] Exit codes: [vm] 0,0\n", 0, 0), ("[mpiexec@vm] Exit codes: [vm:0] 256,512\n", 3, 1),
                ("[mpiexec@n1] Exit codes: [n1] 0,0\n[n2] 512,512\n", 2, 2), ("[mpiexec@vm] Exit codes: [vm] 768,1024\n", 7, 3),
                (f"{self.MPICH_END}[mpiexec@vm] Exit codes: [vm] 0,9\n{end}", 9, 3, "rank 1 on vm died of signal 9 (Killed)"),
                (f"{self.MPICH_END}[mpiexec@n1] Exit codes: [n1:0] 0,0\n[n2:0] 0,11\n", 11, 3,
                 "rank 3 on n2 died of signal 11 (Segmentation fault)"),
                (f"{self.INTEL_END}{self.INTEL_END}[mpiexec@vm] Exit codes: [vm:0] 9,9\n", 255, 3, which),
                # Intel MPI kills those that remain.
                (f"{self.INTEL_END}[mpiexec@vm] Exit codes: [vm:0] 9,768\n", 255, 3),
                (f"{self.INTEL_END}[mpiexec@vm] Exit codes: [vm:0] 9,11\n", 255, 3,
                 "rank 1 on vm died of signal 11 (Segmentation fault)"),
                ("", 1, 1), ("", 3, 3),  # MPICH after MPI_Abort
                ("", -11, 3, "mpiexec.hydra died of signal 11 (Segmentation fault)")]:
            self.assertEqual(self.judged(text, status)[:3], (code, said, []), text)

    def test_a_stop(self):
        """SIGUSR2 would end mpiexec.hydra itself."""
        for codes, status, code in [("10,10", 255, 5), ("10,0", 10, 5), ("1280,1280", 5, 5)]:
            self.assertEqual(self.judged(f"[mpiexec@vm] Exit codes: [vm] {codes}\n", status, sent=[signal.SIGUSR2])[:2], (code, []))
        self.assertEqual(self.judged("[mpiexec@vm] Exit codes: [vm] 10,0\n", 10)[0], 3)

    def test_hosts(self):
        refused = "ssh: connect to host h2 port 22: Connection refused\n"
        said = "host h2 could not be reached: Connection refused"
        mpich = "[mpiexec@vm] ui_cmd_cb (/mpich/pmiserv_pmci.c:51): Launch proxy failed.\n[mpiexec@vm] main (mpiexec.c:270): error\n"
        intel = "[mpiexec@vm] Error: Unable to run bstrap_proxy on h2 (pid 21190, exit code 65280)\n"
        lost = "[mpiexec@vm] control_cb (/mpich-5.0.2/src/pm/hydra/mpiexec/pmiserv_cb.c:280): assert (!closed) failed\n"
        for text, shared, expected in [
                (refused + mpich, "", said), (mpich, refused, said), (intel, refused, said),
                (intel, "", "host h2 could not be reached"), (lost, "", "host h2 was lost: it or its network link failed"),
                (lost, "Timeout, server h2 not responding.\n", "host h2 was lost: it or its network link failed: ssh had no answer")]:
            self.assertEqual(self.judged(text, 255, shared, hosts=("h2",))[:3], (3, [expected], []), (text, shared))

    def test_a_program_that_is_missing_on_a_host(self):
        line = "[proxy:{}@n2] HYDU_create_process (launch.c:73): execvp error on file /x/train (No such file or directory)\n"
        for proxy, codes, status in [("0", "[mpiexec@vm] Exit codes: [n2] 65280,65280\n", 255), ("0:0", "", 141)]:
            self.assertEqual(self.judged(2 * line.format(proxy) + codes, status)[:3],
                             (3, ["a rank on n2: /x/train is not there or cannot be executed"], []))

    def test_what_is_not_known_is_shown(self):
        text = "[mpiexec@vm] match_arg (args.c:163): unrecognized argument x\n"
        self.assertEqual(self.judged(text, 255)[:3], (3, ["a rank or a host was lost (mpiexec.hydra ended with 255)"], [text.strip()]))
        abort = "Abort(3) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 3) - process 1\n"
        self.assertEqual(self.judged("", 3, f"error: rank 1\n{abort}")[3], "error: rank 1\n")


class AnotherMpi(unittest.TestCase):
    def test_a_program_of_mpich_under_open_mpi(self):
        for line in ["check_MPIR_CVAR_PMI_VERSION(167):  Runtime environment uses unsupported PMI version PMIx. Aborting.",
                     "[unset]: launcher not compatible with PMI1 client"]:
            for kind in (Messages, OpenMpi5):
                messages = kind(self.fail, self.fail)
                messages.read_shared(f"{line}\n".encode())
                code, text = messages.judge(16)
                self.assertEqual((code, text.partition(",")[0]), (2, "the program was built with MPICH or Intel MPI"))


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
