"""Commands of the agent skill, executed on a daemon; options of those that need root or a network; links of llms.txt."""

import json
import os
import re
import subprocess
import unittest

import support
from support import ROOT

BLOCK = re.compile(r"^```(sh|console)\n(.*?)^```", re.M | re.S)
# Exit codes of `orinctl doctor`: nothing to fix, warnings, failures.
DOCTOR = (0, 3, 4)


def commands(kind, text):
    """Commands of all blocks of a kind; a line that ends in a backslash continues."""
    blocks = [block for found, block in BLOCK.findall(text) if found == kind]
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]


class Skill(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        support.daemon()
        cls.bin = os.path.dirname(support.program())
        if not os.path.exists(os.path.join(cls.bin, "orinctl")):
            raise unittest.SkipTest("no program orinctl next to orind")
        with open(os.path.join(ROOT, "skills", "orind", "SKILL.md")) as file:
            cls.text = file.read()

    def run_(self, command, environment):
        return subprocess.run(["bash", "-c", command], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=120)

    def test_the_frontmatter(self):
        head = self.text.split("---\n")[1]
        unfolded = re.sub(r">-\n((?:  .*\n)+)", lambda found: " ".join(found.group(1).split()) + "\n", head)
        fields = dict(line.split(": ", 1) for line in unfolded.splitlines() if not line.startswith(" ") and ": " in line)
        self.assertEqual(fields["name"], "orind")
        self.assertTrue(20 < len(fields["description"]) <= 1024)
        self.assertLess(len(self.text.splitlines()), 500)

    def test_commands_run(self):
        daemon = support.Daemon("", wait=False)
        self.addCleanup(daemon.stop)
        daemon.wait()
        environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "ORIND_SOCKET": daemon.socket,
                       "HOME": daemon.folder, "XDG_CACHE_HOME": daemon.folder, "XDG_DATA_HOME": daemon.folder}
        lines = commands("sh", self.text)
        self.assertGreater(len(lines), 10)
        for line in lines:
            if line.startswith("curl") and subprocess.run(["which", "curl"], capture_output=True).returncode:
                continue
            done = self.run_(line, environment)
            allowed = DOCTOR if line.startswith("orinctl doctor") else (0,)
            self.assertIn(done.returncode, allowed, f"{line}\n{done.stdout}\n{done.stderr}")
            self.assertTrue(done.stdout.strip() or "health" in line or "load" in line, line)
            if "--json" in line or line.startswith("curl"):
                json.loads(done.stdout)

    def test_options_of_the_other_commands_exist(self):
        inline = re.findall(r"`((?:sudo )?(?:target/dist/)?orinctl [a-z][^`]*)`", self.text)
        checked = 0
        for line in [*commands("console", self.text), *inline]:
            words = line.split()
            words = words[1:] if words[0] == "sudo" else words
            if not words[0].endswith("orinctl") or len(words) < 2:
                continue
            done = self.run_(f"{self.bin}/orinctl {words[1]} --help", os.environ)
            self.assertEqual(done.returncode, 0, line)
            for option in (word for word in words[2:] if re.match(r"^--?[a-z]", word)):
                self.assertRegex(done.stdout, rf"(^|[\s,]){option}\b", line)
                checked += 1
        self.assertGreater(checked, 8)
        for option in ("--context", "--slots", "--kv-type"):
            self.assertIn(option, self.run_(f"{self.bin}/orinctl load --help", os.environ).stdout)

    def test_pages_exist(self):
        for page in re.findall(r"`(docs/[\w.-]+\.md)`", self.text):
            self.assertTrue(os.path.exists(os.path.join(ROOT, page)), page)
        with open(os.path.join(ROOT, "llms.txt")) as file:
            index = file.read()
        self.assertTrue(index.startswith("# orind\n\n> "))
        links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", index, re.M)
        self.assertGreater(len(links), 15)
        for link in links:
            self.assertTrue(os.path.exists(os.path.join(ROOT, link)), link)


if __name__ == "__main__":
    unittest.main()
