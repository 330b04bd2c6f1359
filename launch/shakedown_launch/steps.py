"""What launch/bench and launch/experiments are made of: jobs one after the other, then their
report."""

from . import places
from .command import say
from .job import RUNNING, Job, Stopped


def finish(job):
    """The exit code of a job that is run to its end; one that was stopped ends the command."""
    job.start()
    job.wait()
    if RUNNING.stopped or job.result.code == 5:
        raise Stopped
    return job.result.code


class Steps:
    """`code` is that of the first step that did not end with 0."""

    def __init__(self, folder):
        self._folder = folder
        self.code = 0

    def step(self, name, make_job):
        """The exit code of make_job(log); what the job prints is kept in the log NAME.log."""
        log = f"{self._folder}/{name}.log"
        code = finish(make_job(log))
        if code:
            say(f"{name} ended with {code}: {log}")
        self.code = self.code or code
        return code

    def report(self, what, environ):
        code = finish(Job([places.report_program(environ), *what, "--output",
                           f"{self._folder}/report"], environ))
        self.code = self.code or code
