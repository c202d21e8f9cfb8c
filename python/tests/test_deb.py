"""The Debian package: contents, architectures, reproducibility and refusals. Small programs take the place of orind's."""

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
import unittest

import support
from support import ROOT

NEEDED = ("dpkg-deb", "readelf", "git", "bash")
TRUE = shutil.which("true")


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        missing = [tool for tool in NEEDED if shutil.which(tool) is None]
        program = support.program()
        cls.tools = os.path.dirname(program) if program else ""
        if missing or TRUE is None or not os.path.exists(os.path.join(cls.tools, "orinctl")):
            raise unittest.SkipTest(f"not installed: {', '.join(missing) or 'orinctl'}")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.bin = cls.programs("amd64", 62)
        cls.package = cls.build(cls.bin)

    @classmethod
    def programs(cls, name, machine, data=None):
        """A folder with both programs: `true`, as a program of that machine."""
        folder = os.path.join(cls.folder, name)
        os.mkdir(folder)
        with open(TRUE, "rb") as file:
            image = bytearray(file.read())
        struct.pack_into("<H", image, 18, machine)
        for program in ("orind", "orinctl"):
            path = os.path.join(folder, program)
            with open(path, "wb") as file:
                file.write(image)
            os.chmod(path, 0o755)
        return folder

    @classmethod
    def run_(cls, folder, *options):
        return subprocess.run(
            ["bash", os.path.join(ROOT, ".ci", "deb"), "--bin", folder, "--tools", cls.tools, "--compression", "gzip",
             "--output", os.path.join(cls.folder, "deb"), *options],
            env={**os.environ, "PATH": f"/usr/bin:{os.environ['PATH']}"}, capture_output=True, text=True, timeout=120)

    @classmethod
    def build(cls, folder, *options):
        done = cls.run_(folder, *options)
        package = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
        # The summary of lintian has a say about orind's own programs only.
        assert package.endswith(".deb") or "lintian" in done.stderr, done.stdout + done.stderr
        return package

    def field(self, package, name):
        return subprocess.run(["dpkg-deb", "--field", package, name], check=True, capture_output=True, text=True).stdout.strip()

    def test_files_are_those_of_an_installation(self):
        listed = subprocess.run(["dpkg-deb", "--contents", self.package], check=True, capture_output=True, text=True).stdout
        files = {line.split()[5][1:]: line.split() for line in listed.splitlines() if line.startswith("-")}
        stage = os.path.join(self.folder, "stage")
        subprocess.run([os.path.join(self.tools, "orinctl"), "install", "--root", stage, "--prefix", "/usr"], check=True,
                       stdout=subprocess.DEVNULL)
        for folder, _, names in os.walk(stage):
            for name in names:
                path = os.path.join(folder, name)[len(stage):].replace("/site-functions/", "/vendor-completions/")
                path += ".gz" if "/man/" in path else ""
                if not path.endswith("/share/orind/installed"):
                    self.assertIn(path, files)
        for path in ["/usr/share/orind/rules.yml", "/usr/share/orind/grafana.json", "/usr/share/doc/orind/copyright"]:
            self.assertIn(path, files)
        for path, line in files.items():
            self.assertEqual((line[0], line[1]), ("-rwxr-xr-x" if path.startswith("/usr/bin/") else "-rw-r--r--", "root/root"), path)
        control = os.path.join(self.folder, "control")
        subprocess.run(["dpkg-deb", "--control", self.package, control], check=True)
        with open(os.path.join(control, "conffiles")) as file:
            self.assertEqual(file.read(), "/etc/orind/orind.toml\n")
        for script in ("postinst", "prerm", "postrm"):
            path = os.path.join(control, script)
            self.assertTrue(os.access(path, os.X_OK))
            subprocess.run(["sh", "-n", path], check=True)

    def test_version_and_dependencies(self):
        self.assertRegex(self.field(self.package, "Version"), rf"^{support.orind.__version__}(~git\d{{12}}\.[0-9a-f]+)?$")
        self.assertRegex(self.field(self.package, "Depends"), r"^libc6 \(>= 2\.\d+\), ")
        self.assertEqual(self.field(self.package, "Architecture"), "amd64")

    def test_the_same_programs_give_the_same_bytes(self):
        def digest():
            with open(self.package, "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        before = digest()
        os.remove(self.package)
        self.assertEqual(self.build(self.bin), self.package)
        self.assertEqual(digest(), before)

    def test_arm64(self):
        package = self.build(self.programs("arm64", 183))
        self.assertEqual(self.field(package, "Architecture"), "arm64")

    def test_refusals(self):
        done = self.run_(self.bin, "--glibc", "2.3")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("newer than 2.3", done.stderr)
        done = self.run_(self.programs("riscv", 243))
        self.assertIn("no package for RISC-V", done.stderr)
        self.assertIn("--bin must name", self.run_(self.folder).stderr)


if __name__ == "__main__":
    unittest.main()
