"""What is made of the launcher's messages and exit code: messages.txt has these texts as Open MPI 4, Open MPI 5.0.11,
MPICH 4.3.2 and 5.0.2, Intel MPI 2021.18 and Slurm 22.05 wrote them."""

import re
import unittest

from tree import TREE
import transcript
from shakedown_launch.messages import LONGEST_BLOCK, Hydra, Messages, OpenMpi5, Srun

DASHES = "-" * 74
KINDS = {"openmpi4": Messages, "openmpi5": OpenMpi5, "hydra": Hydra, "srun": Srun}


def judged(given, size):
    """Of a case of messages.txt, with its text in parts of this many bytes."""
    (kind, *words), *lines = given.split("\n")[0].split(), *given.split("\n")[1:]
    options = dict(word.split("=", 1) for word in words)
    said, shown, seen = [], [], b""
    messages = KINDS[kind](said.append, shown.append, tuple(filter(None, options.get("hosts", "").split(","))),
                           int(options.get("ranks", 0)), ask=lambda: options.get("slurm", "").replace("_", " "))
    for number in map(int, filter(None, options.get("sent", "").split(","))):
        messages.sent(messages.instead.get(number, number))
    text = {False: "", True: ""}  # own, shared with the ranks
    for line in lines:
        line = "  " if line == "  ~" else line  # an empty one
        line = re.sub(r"^([-=])\1{3}$", lambda sign: sign[1] * (74 if sign[1] == "-" else 83), line[2:])
        text[kind == "openmpi5" or line.startswith("ranks: ")] += line[7 * line.startswith("ranks: "):] + "\n"
    if kind != "openmpi5":  # whose lines are whole
        seen, text[True] = messages.read_shared(text[True].encode()), ""
    for at in range(0, len(text[True]), size):
        seen += messages.read_shared(text[True].encode()[at:at + size])
    seen += messages.read_shared(b"")
    for at in range(0, len(text[False]), size):
        messages.read_own(text[False].encode()[at:at + size])
    must_end = messages.job_must_end
    messages.rank_ended = messages.rank_ended or "ended" in options
    messages.close()
    code, last = messages.judge(int(options["status"]))
    return "\n".join([f"exit code {code}{', the job must end' * must_end}",
                      *(f"said: {text}" for text in (*said, *[last] * bool(last))),
                      *(f"shown: {line}" for text in shown for line in text.split("\n") if line != DASHES),
                      *(f"of the ranks: {line}" for line in seen.decode().splitlines()),
                      *(f"lost: {host or 'a host'}" for host, _ in messages.lost),
                      *(f"dead: rank {rank} on {host}" for rank, host, _ in messages.dead)])


class Texts(unittest.TestCase):
    def test_texts(self):
        def answer(given):
            answers = {judged(given, size) for size in (1, 17, 10 ** 6)}  # however it is cut
            self.assertEqual(len(answers), 1, given)
            return answers.pop()
        transcript.check(self, TREE / "tests/launch/messages.txt", answer)


class Streams(unittest.TestCase):
    def test_ranks_that_write_dashed_lines_too(self):
        table = f"{DASHES}\n" + "a row\n" * 3 * LONGEST_BLOCK
        ended = "prterun detected that one or more processes exited with non-zero status"
        for text, code in ((f"{DASHES}\n{table}{DASHES}\n{ended}\n{DASHES}\n", 1), (table, 3)):
            messages = OpenMpi5(lambda said: None, lambda shown: None)
            messages.read_shared(text.encode())
            messages.read_shared(b"")
            messages.close()
            self.assertEqual(messages.judge(1)[0], code)

    def test_blocks_on_the_ranks_output(self):
        messages = OpenMpi5(lambda said: None, lambda shown: None)
        block = (f"{DASHES}\nA daemon failed to report back after being spawned.\n\n  Remote host:   n9\n"
                 f"  Daemon exit status: 255\n{DASHES}\n")
        seen = "".join(messages.read_output(part.encode()).decode() for part in (*f"{DASHES}\na row\n{block}{DASHES}\n", ""))
        self.assertEqual((seen, messages.lost), (f"{DASHES}\na row\n{DASHES}\n", [("n9", "host n9 could not be reached")]))

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
