"""Dashboard, rules and pages name only metrics that a daemon has, on a recorded Orin."""

import json
import os
import re
import tempfile
import unittest

import support
from support import ROOT

try:
    import promql_parser
except ImportError:
    promql_parser = None

NAME = re.compile(r"\borind_\w+")


def recorded(name, folder):
    """Writes the files of a machine of tests/data/orin; tests/host/orin/tree.rs describes the format."""
    with open(os.path.join(support.DATA, "orin", f"{name}.tree")) as file:
        lines = iter(file.read().splitlines())
    for line in lines:
        if line.startswith("#"):
            continue
        if line.endswith(" <<"):
            path, body = line[:-3], []
            for text in lines:
                if text == ">>":
                    break
                body.append(text)
            value = "\n".join(body)
        else:
            path, _, value = line.partition(" =")
            value = value[1:] if value.startswith(" ") else value
        where = folder + path
        os.makedirs(os.path.dirname(where), exist_ok=True)
        with open(where, "w") as file:
            file.write(value.replace("\\0", "\0") + "\n")


def read(*path):
    with open(os.path.join(ROOT, *path)) as file:
        return file.read()


def dashboard():
    return [target["expr"] for panel in json.loads(read("fleet", "grafana.json"))["panels"] for target in panel["targets"]]


def rules():
    return re.findall(r"^ +expr: (.+)$", read("fleet", "rules.yml"), re.M)


class Dashboards(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        machine = tempfile.TemporaryDirectory()
        cls.addClassCleanup(machine.cleanup)
        recorded("agx64-throttling", machine.name)
        daemon = support.Daemon(support.LOOPS, environment={"ORIND_SYSROOT": machine.name})
        cls.addClassCleanup(daemon.stop)
        with daemon.client.control_loop("policy") as loop:
            loop.step()
        daemon.client.chat("hi", max_tokens=2)
        try:
            daemon.client.chat("hi", temperature=9)
        except support.orind.APIError:
            pass
        metrics = daemon.client.metrics()
        cls.names = {sample.name for sample in metrics}
        cls.labels = {(sample.name, label) for sample in metrics for label in sample.labels}

    def check(self, expressions):
        self.assertTrue(expressions)
        for expression in expressions:
            for name in NAME.findall(expression):
                self.assertIn(name, self.names, expression)
            if promql_parser is not None:
                promql_parser.parse(expression.replace("$node", ".*"))

    def test_the_dashboard(self):
        self.check(dashboard())
        self.assertIn(("orind_lane_deadlines_met_total", "lane"), self.labels)
        panels = json.loads(read("fleet", "grafana.json"))["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
        self.assertEqual(len(set(places)), len(places))

    def test_the_rules(self):
        self.check(rules())
        text = read("fleet", "rules.yml")
        recorded_names = set(re.findall(r"record: (\S+)", text))
        for expression in rules():
            for name in re.findall(r"\borind:[\w:]+", expression):
                self.assertIn(name, recorded_names)
        self.assertIn("rule_files: [rules.yml]", read("fleet", "prometheus.yml"))
        alerts = re.findall(r"alert: (\w+)", text)
        self.assertEqual(len(alerts), len(set(alerts)))
        self.assertEqual(text.count("summary:"), len(alerts))

    def test_the_page_on_metrics(self):
        page = read("docs", "api.md").split("\n## `/metrics`\n")[1].split("\n## ")[0]
        there = {name for name in NAME.findall(page) if not name.startswith("orind_lane_...")}
        # Present only on a device with modes, or after a failure.
        there -= {"orind_device_mode_info"}
        for name in there:
            self.assertTrue(any(one == name or one.startswith(f"{name}_") for one in self.names | {
                "orind_requests_refused_total"}), name)


if __name__ == "__main__":
    unittest.main()
