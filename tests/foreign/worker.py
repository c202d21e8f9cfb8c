"""A pytest plugin: runs the chosen cases of a file, in their order, and tells the runner how each goes.

FOREIGN_CASES is a file with a JSON list of ids (without it every case is meant). FOREIGN_EVENTS is a file to which it appends
one JSON object a line: the cases found, the begin and the end of each. `at` is the size of the log by then, so that the
runner knows which of the simulator's lines belong to a case.
"""

import json
import os
import sys
import time

import pytest

EVENTS = os.open(os.environ["FOREIGN_EVENTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
running = {}


def tell(**event):
    os.write(EVENTS, json.dumps({**event, "at": os.fstat(1).st_size}).encode() + b"\n")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    if chosen := os.environ.get("FOREIGN_CASES"):
        with open(chosen, encoding="utf-8") as file:
            by_id = {item.nodeid: item for item in items}
            items[:] = [by_id[case] for case in json.load(file)]
    tell(cases=[item.nodeid for item in items])


def pytest_runtest_logstart(nodeid):
    running.update(outcome="pass", detail="", begin=time.monotonic())
    tell(begin=nodeid)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """Work that a case left to the GPU is a part of it."""
    if device := sys.modules.get("tinygrad.device"):
        for name in device.Device._opened_devices:
            device.Device[name].synchronize()


def pytest_runtest_logreport(report):
    """Set-up, call, subtests and teardown each report; the worst counts. A failure that the case expects is none."""
    expected = hasattr(report, "wasxfail")
    if report.failed:
        running.update(outcome="fail", detail=report.longreprtext)
    elif report.skipped and not expected and running["outcome"] == "pass":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        running.update(outcome="skip", detail=reason)


def pytest_runtest_logfinish(nodeid):
    tell(end=nodeid, seconds=time.monotonic() - running.pop("begin"), **running)
