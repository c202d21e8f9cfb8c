"""Python examples of the pages, executed in order on a real daemon."""

import contextlib
import glob
import io
import os
import re
import unittest
from unittest import mock

import support
from support import MODEL, orind

BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


class Pages(unittest.TestCase):
    def test_examples_run(self):
        daemon = support.daemon()
        path = os.path.join(daemon.folder, "embed.gguf")
        support.with_metadata(MODEL, path, "qwen3.pooling_type", 1)
        daemon.client.load(path, beside=True, name="embed", slots=2, context=64)
        self.addCleanup(daemon.client.unload, "embed")
        folder = os.getcwd()
        self.addCleanup(os.chdir, folder)
        os.chdir(os.path.join(support.DATA, "lanes"))
        ran = []
        for page in sorted(glob.glob(os.path.join(support.ROOT, "docs", "*.md"))):
            with open(page) as file:
                blocks = BLOCK.findall(file.read())
            if not any("import orind" in block for block in blocks) or any("import torch" in block for block in blocks):
                continue
            names, printed = {}, io.StringIO()
            with mock.patch.dict(os.environ, ORIND_SOCKET=daemon.socket), contextlib.redirect_stdout(printed):
                for block in blocks:
                    if "import orind" in block or names:
                        exec(compile(block, page, "exec"), names)
            ran.append(os.path.basename(page))
            if ran[-1] == "python.md":
                self.assertIn("too slow", printed.getvalue())
                self.assertIn("invalid_value temperature", printed.getvalue())
        self.assertIn("python.md", ran)


if __name__ == "__main__":
    unittest.main()
