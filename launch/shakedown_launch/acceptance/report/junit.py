"""An acceptance as JUnit XML, which CI servers show: a suite per node, a test case per stage.

FAIL is a failure, INCONCLUSIVE an error, what only warns is output of a case that passed."""

import re
import xml.etree.ElementTree as xml

from ..model import FAIL, INCONCLUSIVE
from .jsonl import replaced

JOB = "job"  # suite of what concerns no single node


def write(path, acceptance):
    with replaced(path) as file:
        file.write(text(acceptance))


def text(acceptance):
    suites = [suite(verdict.node.name, acceptance, stages_of(verdict), verdict.findings) for verdict in acceptance.verdicts]
    if acceptance.findings or not suites:
        found = acceptance.findings
        suites.append(suite(JOB, acceptance, list(dict.fromkeys(each.stage for each in found)) or ["acceptance"], found))
        if not acceptance.verdicts and not found:
            failed(suites[-1][0], INCONCLUSIVE, "no node was judged", "")
    root = xml.Element("testsuites", {"name": f"acceptance {acceptance.tier}", "time": f"{acceptance.seconds:.3f}"})
    root.extend(suites)
    for each in [root, *suites]:
        for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
            each.set(name, str(len(list(each.iter(tag)))))
    return xml.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def stages_of(verdict):
    """Those that ran, and those of which something was found all the same: a reason not to pass."""
    return list(dict.fromkeys([*verdict.stages, *verdict.missing, *(each.stage for each in verdict.findings)]))


def suite(name, acceptance, stages, findings):
    made = xml.Element("testsuite", {"name": name, "hostname": name, "timestamp": acceptance.started.rstrip("Z")})
    for stage in stages:
        seconds = sum(run.seconds for run in acceptance.runs if run.stage == stage and name in run.nodes)
        case = xml.SubElement(made, "testcase", {"classname": f"shakedown.{name}", "name": stage, "time": f"{seconds:.3f}"})
        output = []
        for each in findings:
            if each.stage != stage:
                continue
            words = ": ".join(filter(None, [each.subject, each.cause]))
            more = "\n".join(f"{key}: {value}" for key, value in [("class", each.class_), ("action", each.action),
                             ("check", each.check), ("evidence", each.evidence), ("gpu", each.gpu)] if value)
            if each.outcome in (FAIL, INCONCLUSIVE):
                failed(case, each.outcome, words, more, each.class_)
            else:
                output.append(f"{each.outcome} {words}\n{more}")
        if output:
            xml.SubElement(case, "system-out").text = printable("\n".join(output))
    return made


def failed(case, outcome, message, more, kind=""):
    xml.SubElement(case, "failure" if outcome == FAIL else "error",
                   {"message": printable(message), "type": kind or outcome}).text = printable(more)


def printable(text):
    """XML 1.0 has no control characters, not even escaped ones."""
    return re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
