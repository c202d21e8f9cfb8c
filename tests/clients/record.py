"""Records the requests of coding agents for tests/host/agents.rs.

    record.py PROGRAMS AGENTS OUT [NAME...]

PROGRAMS is the folder of orind and orinctl; AGENTS that of claude, codex and opencode (.ci/clients installs them into
`clients/npm/node_modules/.bin`). Each agent answers three questions in one conversation, the first with three calls of
its shell, in a network namespace without other machines. A proxy between agent and daemon stores the requests.

OUT/NAME.json then has the agent's own structure: fields, names, tags, blocks, limits. Its prose is not copied: each
word of a long text becomes letters of the same number, which depend on the word only, so equal beginnings stay equal;
long texts are cut.
Identifiers, dates and paths become fixed ones of the same length. Texts and lists of tools are stored once:
`{"stored": N}` is a reference to `stored`.
"""

import hashlib
import http.server
import json
import os
import re
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time

import scripted

QUESTIONS = ["Write three files.", "Which files are there?", "Thank you."]
FILES = ["one", "two", "three"]
# Name: tool, its arguments with a place for the command, first command line and that of a later question.
AGENTS = {
    "claude": ("Bash", {"description": "write a file"}, "command",
               ["-p", "--allowedTools", "Bash", "--"], ["-c", "-p", "--allowedTools", "Bash", "--"]),
    "codex": ("exec_command", {}, "cmd",
              ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"],
              ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "resume", "--last"]),
    "opencode": ("bash", {"description": "write a file"}, "command", ["run"], ["run", "-c"]),
}
LIMIT = 180  # seconds of one question
ROUTES = ("/v1/messages", "/v1/responses", "/v1/chat/completions")
OWN_HEADERS = {"host", "content-length", "connection", "authorization", "x-api-key", "accept-encoding", "transfer-encoding"}


def proxy(path, daemon, requests):
    """Serves the socket `path`: stores each request and passes it to the socket `daemon`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def body(self):
            if "chunked" in self.headers.get("transfer-encoding", ""):
                body = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body
            return self.rfile.read(int(self.headers.get("content-length", 0)))

        def exchange(self):
            body = self.body()
            headers = [(name.lower(), value) for name, value in self.headers.items()]
            if self.command == "POST" and self.path.split("?")[0] in ROUTES:
                requests.append({"path": self.path, "headers": dict(h for h in headers if h[0] not in OWN_HEADERS), "body": json.loads(body)})
            kept = [h for h in headers if h[0] not in ("connection", "transfer-encoding", "content-length")]
            head = [f"{self.command} {self.path} HTTP/1.1", *(": ".join(h) for h in kept), f"content-length: {len(body)}", "connection: close", "", ""]
            with socket.socket(socket.AF_UNIX) as upstream:
                upstream.connect(daemon)
                upstream.sendall("\r\n".join(head).encode() + body)
                while part := upstream.recv(1 << 16):
                    self.wfile.write(part)
            self.close_connection = True

        do_GET = do_POST = do_HEAD = do_DELETE = exchange

        def log_message(self, *_):
            pass

        def address_string(self):
            return path

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    server = Server(path, Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def record(programs, agents, name):
    """Requests of an agent's conversation."""
    tool, more, key, first, later = AGENTS[name]
    requests = []
    with tempfile.TemporaryDirectory() as work:
        calls = [json.dumps({"name": tool, "arguments": {key: f"echo {file} > {file}.txt", **more}}) for file in FILES]
        with open(f"{work}/script.json", "w") as file:
            json.dump([f"<tool_call>\n{call}\n</tool_call>" for call in calls] + ["Three files are written."], file)
        scripted.main(f"{work}/scripted.gguf", f"{work}/script.json")
        for folder in ("here", "home"):
            os.mkdir(f"{work}/{folder}")
        home = f"{work}/home"
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("CLAUDE", "ANTHROPIC", "OPENAI", "CODEX"))},
            "HOME": home, "XDG_CACHE_HOME": f"{home}/.cache", "XDG_DATA_HOME": f"{home}/.data",
            "XDG_RUNTIME_DIR": work, "ORIND_SOCKET": f"{work}/recorded",
        }
        daemon = subprocess.Popen(
            [f"{programs}/orind", "--socket", f"{work}/daemon", "--model", f"{work}/scripted.gguf"],
            env={**environment, "ORIND_CONTEXT": "65536", "ORIND_SLOTS": "2", "ORIND_BACKEND": "cpu"},
            stderr=subprocess.DEVNULL,
        )
        try:
            loaded = [f"{programs}/orinctl", "--socket", f"{work}/daemon", "health"]
            while subprocess.run(loaded, env=environment, capture_output=True).returncode and daemon.poll() is None:
                time.sleep(0.1)
            proxy(f"{work}/recorded", f"{work}/daemon", requests)
            for at, question in enumerate(QUESTIONS):
                command = [f"{programs}/orinctl", "launch", f"{agents}/{name}", *(later if at else first), question]
                isolated = ["unshare", "-n", "bash", "-c", 'ip link set lo up && exec "$@"', "bash", *command]
                ran = subprocess.run(isolated, env=environment, cwd=f"{work}/here", stdin=subprocess.DEVNULL,
                                     capture_output=True, text=True, timeout=LIMIT)
                if ran.returncode:
                    sys.exit(f"{name}: {ran.stdout}{ran.stderr}")
        finally:
            daemon.terminate()
            daemon.wait()
        return requests, work


PROSE = {"text", "content", "description", "instructions", "system", "output", "title", "thinking"}
SHORTEST_PROSE = 40
LONGEST = {"description": 160}  # characters that are stored of a text, by key
LONGEST_OTHER = 2400
WORD = re.compile(r"(</?[a-zA-Z_-]+>|x-anthropic-billing-header:|cc_[a-z]+=|cch=)|([A-Za-z]+)|([0-9]+)")
IDENTIFIER = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{12,}\b|\b(?:call|toolu|msg|resp|fc|rs|ses|prt)_[A-Za-z0-9]{8,}"
    r"|\b\d{13}\b"
)


class Trimmer:
    """Replaces what belongs to a machine or to an author, equal things by equal ones."""

    def __init__(self, work):
        self.work, self.known = work, {}

    def identifier(self, found):
        text = found.group()
        number = self.known.setdefault(text, str(len(self.known) + 1))
        kept = re.match(r"[a-z]+_", text)
        prefix = kept.group() if kept else ""
        shape = re.sub(r"[A-Za-z0-9]", "0", text[len(prefix):])
        digits = list(number)
        letters = list(prefix + shape)
        for at in range(len(letters) - 1, len(prefix) - 1, -1):
            if digits and letters[at] == "0":
                letters[at] = digits.pop()
        return "".join(letters)

    def word(self, found):
        kept, letters, digits = found.groups()
        if kept:
            return kept
        whole = letters or digits
        made = hashlib.shake_128(whole.encode()).digest(len(whole))
        if digits:
            return "".join(str(byte % 10) for byte in made)
        lower = "".join(chr(97 + byte % 26) for byte in made)
        return lower.capitalize() if letters[0].isupper() else lower

    def plain(self, text):
        path = "/srv/user/".ljust(len(self.work), "x")
        return IDENTIFIER.sub(self.identifier, text.replace(self.work, path))

    def __call__(self, value, key=None):
        if isinstance(value, dict):
            return {self.plain(name): self(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [self(inner, key) for inner in value]
        if not isinstance(value, str):
            return value
        if key in PROSE and len(value) >= SHORTEST_PROSE:
            return WORD.sub(self.word, self.plain(value))[:LONGEST.get(key, LONGEST_OTHER)]
        return self.plain(value)


SHARED = 80  # characters of the shortest text that is stored once


def share(value, stored, key=None):
    """Replaces long texts and lists of tools by references."""
    if key != "tools" and isinstance(value, dict):
        return {name: share(inner, stored, name) for name, inner in value.items()}
    if key != "tools" and isinstance(value, list):
        return [share(inner, stored) for inner in value]
    if key != "tools" and (not isinstance(value, str) or len(value) < SHARED):
        return value
    return {"stored": stored.setdefault(json.dumps(value), len(stored))}


def main(programs, agents, out, *names):
    for name in names or AGENTS:
        version = subprocess.run([f"{agents}/{name}", "--version"], capture_output=True, text=True).stdout.strip()
        requests, work = record(programs, agents, name)
        if os.environ.get("RAW"):
            json.dump([requests, work, version], open(f"{os.environ['RAW']}/{name}.json", "w"), indent=1)
        stored, trimmed = {}, Trimmer(work)
        requests = [share(trimmed(request), stored) for request in requests]
        with open(f"{out}/{name}.json", "w") as file:
            lines, parts = (",\n".join(texts) for texts in (map(json.dumps, requests), stored))
            file.write(f'{{"version": {json.dumps(version)}, "requests": [\n{lines}\n], "stored": [\n{parts}\n]}}\n')
        print(f"{name} {version}: {len(requests)} requests, {os.path.getsize(f'{out}/{name}.json')} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
