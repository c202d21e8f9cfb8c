#!/usr/bin/env python3
"""Runs programs of other people on the simulated Orin, and reports the outcome of each case.

    tests/foreign/run.py --tinygrad DIR --kit DIR --nvrtc DIR --cuda DIR

tinygrad is github.com/tinygrad/tinygrad at 7d5bbde74e (pull request 15465), the kit github.com/GiveThanksAlways/agx-orin-dev-kit
at 88f64a5. README.md describes how to get them; expected.txt lists the failures that the simulator does not cause.

The cases of a file run in one process until the simulator or a fault ends it; another process, with its own Orin, runs the
rest. The simulator's checks and findings are its defaults. Results are in OUT/results.jsonl, logs in OUT/logs. The exit status
is 1 if a case fails unexpectedly, or in another way than expected.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import fnmatch
import importlib.util
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
# The process has lost the GPU: later results are meaningless.
FAULT = re.compile(r"^.*tegra-sim: .*(error notifier set|stopping here)", re.M)
# Seconds that a case may continue after that.
GRACE = 5


@dataclasses.dataclass
class Program:
    """A row of the table: cases of pytest files, or programs that are one case each."""

    name: str
    tree: str
    files: list[str] = dataclasses.field(default_factory=list)
    commands: list[str] = dataclasses.field(default_factory=list)


UNIT, BACKEND = "test/unit/", "test/backend/"
MORE = [
    *(BACKEND + name for name in ["test_jit.py", "test_dtype.py", "test_dtype_alu.py", "test_uops.py", "test_linearizer.py"]),
    *(BACKEND + name for name in ["test_nn.py", "test_randomness.py", "test_schedule.py", "test_symbolic_jit.py"]),
    *(BACKEND + name for name in ["test_transcendental.py", "test_custom_kernel.py"]),
    *(UNIT + name for name in ["test_gguf.py", "test_hashing.py", "test_conv.py"]),
]
PROGRAMS = [
    Program("programs", "kit", commands=["test_nvgpu.py", "test_tegra_init.py", "tests/test_gpu_submit.py", "tests/test_two_channels.py"]),
    Program("variants", "kit", commands=[f"test_channel_variants.py {v}" for v in "ABCDE"]),
    Program("suites", "kit", files=[f"tests/test_tegra_{name}.py" for name in ["edge_cases", "stress", "models"]]),
    Program("tiny", "tinygrad", files=["test/test_tiny.py"]),
    Program("hcq", "tinygrad", files=["test/device/test_hcq.py", "test/unit/test_hcq_graph.py"]),
    Program("ops", "tinygrad", files=["test/backend/test_ops.py"]),
    Program("more", "tinygrad", files=MORE),
    Program("training", "own", files=["training.py"]),
]


@dataclasses.dataclass
class Result:
    program: str
    case: str
    outcome: str  # pass, skip or fail
    seconds: float
    detail: str  # of a failure, the program's words and the simulator's; of a skip, the reason
    expected: str = ""  # why a failure is expected


class Expected:
    """The lines `CASE | TEXT | REASON` of a file: pattern of ids, text of the failure, cause."""

    def __init__(self, path):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
        self.lines = [tuple(part.strip() for part in line.split(" | ", 2)) for line in lines]

    def reason(self, result):
        for case, text, reason in self.lines:
            if fnmatch.fnmatchcase(result.case, case) and text in result.detail:
                return reason
        return ""

    def passed(self, results):
        """Listed cases that passed. A pattern may name something that the machine lacks."""
        named = {case for case, _, _ in self.lines}
        return [r.case for r in results if r.outcome == "pass" and r.case in named]


class Runner:
    def __init__(self, args):
        self.args = args
        self.trees = {"own": HERE}
        self.numbers = itertools.count(1)
        self.lock, self.results = threading.Lock(), []
        self.starting, self.running = threading.RLock(), set()
        self.expected = Expected(HERE / "expected.txt")
        self.out = args.out.resolve()
        for folder in ["logs", "nvrtc", "tmp"]:
            (self.out / folder).mkdir(parents=True, exist_ok=True)
        self.file = open(self.out / "results.jsonl", "w", encoding="utf-8")
        if args.tinygrad:
            self.trees["tinygrad"] = args.tinygrad.resolve()
        if args.kit:
            self.trees["kit"] = self.copy_of_kit(args.kit)
        self.env = self.environment()

    def copy_of_kit(self, kit):
        """Replaces the kit's hard-coded log folder, and nothing else."""
        copy = self.out / "kit"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(kit / "examples/tinygrad", copy)
        for file in copy.rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            file.write_text(re.sub(r'"/[^"]*/examples/tinygrad/', f'"{copy}/', text), encoding="utf-8")
        return copy

    def environment(self):
        env = {**os.environ, "DEV": "NV", "NV": "0", "HCQDEV_WAIT_TIMEOUT_MS": "300000"}
        env["XDG_CACHE_HOME"] = str(self.out / "cache")
        env["HYPOTHESIS_STORAGE_DIRECTORY"] = str(self.out / "hypothesis")
        env["TMPDIR"] = str(self.out / "tmp")
        env["PYTHONPATH"] = os.pathsep.join(str(self.trees[t]) for t in ["tinygrad", "own"] if t in self.trees)
        for library in self.args.nvrtc.resolve().glob("libnvrtc*.so*"):
            for name in {library.name, library.name.split(".so")[0] + ".so"}:
                link = self.out / "nvrtc" / name
                link.unlink(missing_ok=True)
                link.symlink_to(library)
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(self.out / "nvrtc"), env.get("LD_LIBRARY_PATH")]))
        env["NVRTC_PATH"] = str(self.out / "nvrtc/libnvrtc.so")
        env["CUDA_PATH"] = str(self.args.cuda.resolve())
        return env

    def start(self, number, command, cwd, env):
        """Starts a process group, so that all child processes end with it."""
        log = self.out / "logs" / f"{number}.log"
        log.write_bytes(b"")
        with open(log, "ab") as out, self.starting:
            process = subprocess.Popen(
                [self.args.sim, "run", "--", sys.executable, *command],
                cwd=cwd, env={**self.env, **env}, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )
            self.running.add(process)
        return process, log

    def end(self, process):
        """Ends the process and its children."""
        self.running.discard(process)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def stop(self, number, _frame):
        self.starting.acquire()  # for good
        for process in list(self.running):
            self.end(process)
        os._exit(128 + number)

    def command(self, program, line):
        """A program whose exit status is the outcome."""
        tree = self.trees[program.tree]
        name, *words = line.split()
        process, log = self.start(next(self.numbers), [str(tree / name), *words], (tree / name).parent, {})
        begin, why = time.monotonic(), ""
        try:
            status = process.wait(self.args.limit)
            why = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            why = f"not ended after {self.args.limit} s"
        self.end(process)
        detail = f"{read(log)}\n{why}" if why else ""
        outcome = "fail" if why else "pass"
        self.told(Result(program.name, f"{program.tree}/{line}", outcome, time.monotonic() - begin, detail))

    def pytest(self, program, files, cases=None):
        """Yields the events of a process with the log text since the previous one; `lost` if it ends within a case."""
        tree, number = self.trees[program.tree], next(self.numbers)
        events = self.out / "logs" / f"{number}.events"
        events.write_bytes(b"")
        env = {"FOREIGN_EVENTS": str(events)}
        command = ["-m", "pytest", "-p", "worker", "-q", "-s", f"--rootdir={tree}", "-c", "/dev/null", "-W", "ignore"]
        command += ["-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:faulthandler"]
        if importlib.util.find_spec("hypothesis"):
            command.append("--hypothesis-seed=0")
        if cases is None:
            command.append("--collect-only")
        else:
            chosen = self.out / "logs" / f"{number}.cases"
            chosen.write_text(json.dumps(cases))
            env["FOREIGN_CASES"] = str(chosen)
        process, log = self.start(number, [*command, *(str(tree / file) for file in files)], tree, env)
        try:
            yield from self.follow(process, log, events)
        finally:
            self.end(process)

    def follow(self, process, log, events):
        met = at = faulted = 0
        current, since = None, time.monotonic()
        while True:
            status = process.poll()
            told = [json.loads(line) for line in events.read_bytes().split(b"\n")[:-1]]
            for event in told[met:]:
                text = read(log, at, event["at"])
                yield event, text
                if "end" in event and FAULT.search(text):
                    return
                current, at, since = event.get("begin"), event["at"], time.monotonic()
            met = len(told)
            faulted = faulted or (current and FAULT.search(read(log, at)) and time.monotonic())
            why = None
            if status is not None:
                why = f"ended with {status}"
            elif time.monotonic() - since > self.args.limit:
                why = f"not ended after {self.args.limit} s"
            elif faulted and time.monotonic() - faulted > GRACE:
                why = "the GPU was lost"
            if why:
                self.end(process)
                yield {"lost": current, "seconds": time.monotonic() - since}, f"{read(log, at)}\n{why}"
                return
            time.sleep(0.05)

    def listed(self, program):
        """Returns the case ids of each file. A file without any cannot be read, and fails."""
        cases, text = {file: [] for file in program.files}, ""
        for event, more in self.pytest(program, program.files):
            for case in event.get("cases", []):
                cases[case.split("::")[0]].append(case)
            text += more
        for file in cases:
            if not cases[file]:
                self.told(Result(program.name, f"{program.tree}/{file}", "fail", 0, text))
        return cases

    def some(self, program, file, cases):
        """Runs cases; starts a new process after each case that ends its own."""
        left = list(cases)
        while left:
            before = len(left)
            for event, text in self.pytest(program, [file], left):
                case = event.get("end") or event.get("lost")
                if case:
                    left.remove(case)
                    outcome, detail = event.get("outcome", "fail"), event.get("detail", "")
                    detail = f"{detail}\n{text}" if outcome == "fail" else detail
                    self.told(Result(program.name, f"{program.tree}/{case}", outcome, event["seconds"], detail))
            if len(left) == before:
                for case in left:
                    self.told(Result(program.name, f"{program.tree}/{case}", "fail", 0, text))
                return

    def told(self, result):
        result.expected = self.expected.reason(result) if result.outcome == "fail" else ""
        with self.lock:
            self.results.append(result)
            print(json.dumps(dataclasses.asdict(result)), file=self.file, flush=True)
            if result.outcome == "fail" and not result.expected:
                print(f"FAILED {result.case}\n    " + "\n    ".join(gist(result.detail)), flush=True)

    def run(self, programs):
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            for program in programs:
                jobs = [pool.submit(self.command, program, line) for line in program.commands if self.wanted(f"{program.tree}/{line}")]
                for file, cases in self.listed(program).items() if program.files else ():
                    cases = [case for case in cases if self.wanted(f"{program.tree}/{case}")]
                    parts = [cases[n :: self.args.jobs] for n in range(self.args.jobs)]
                    jobs += [pool.submit(self.some, program, file, part) for part in parts]
                for job in jobs:
                    job.result()

    def wanted(self, case):
        return not self.args.match or fnmatch.fnmatchcase(case, self.args.match)


def read(log, start=0, stop=None):
    with open(log, "rb") as file:
        file.seek(start)
        return file.read(None if stop is None else stop - start).decode(errors="replace")


def gist(text):
    """Returns the first message of the simulator and the end of the log."""
    lines = [line[:300] for line in text.splitlines() if line.strip()]
    return [line for line in lines[:-4] if "tegra-sim: " in line and "-oversized" not in line][:3] + lines[-4:]


def table(programs, results):
    """Yields the table of docs/simulator.md."""
    yield "| program | cases | pass | skip | fail | of these expected |"
    yield "|---|---|---|---|---|---|"
    for program in programs:
        mine = [r for r in results if r.program == program.name]
        count = collections.Counter(r.outcome for r in mine)
        known = sum(bool(r.expected) for r in mine)
        yield f"| {program.tree}: {program.name} | {len(mine)} | {count['pass']} | {count['skip']} | {count['fail']} | {known} |"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = {"type": pathlib.Path, "metavar": "DIR"}
    parser.add_argument("--tinygrad", **folder, help="tinygrad's tree")
    parser.add_argument("--kit", **folder, help="the kit's tree")
    parser.add_argument("--nvrtc", **folder, required=True, help="where libnvrtc.so.12 and libnvrtc-builtins.so.12.6 are")
    parser.add_argument("--cuda", **folder, required=True, help="where include/cuda_fp16.h is")
    parser.add_argument("--sim", default="target/debug/tegra-sim", metavar="PROGRAM", help="default: %(default)s")
    parser.add_argument("--out", **folder, default=pathlib.Path("target/foreign"), help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes at a time")
    parser.add_argument("--limit", type=int, default=600, metavar="SECONDS", help="of a case; default: %(default)s")
    parser.add_argument("--match", metavar="PATTERN", help="only cases whose id fits, as '*test_ops*matmul*'")
    parser.add_argument("programs", nargs="*", choices=[[], *(p.name for p in PROGRAMS)], metavar="PROGRAM",
                        help="rows of the table: " + ", ".join(p.name for p in PROGRAMS))
    return parser.parse_args()


def main():
    args = arguments()
    args.sim = os.path.abspath(args.sim)
    if not os.access(args.sim, os.X_OK):
        sys.exit(f"there is no program {args.sim}: cargo build -p tegra-sim -p tegra-sim-preload, or --sim")
    runner = Runner(args)
    for number in [signal.SIGINT, signal.SIGTERM]:
        signal.signal(number, runner.stop)
    asked = [p for p in PROGRAMS if not args.programs or p.name in args.programs]
    programs = []
    for program in asked:
        lacking = [t for t in [program.tree, *(["tinygrad"] if program.files else [])] if t not in runner.trees]
        if lacking:
            print(f"skipped {program.tree}: {program.name}: there is no --{lacking[0]}")
        else:
            programs.append(program)
    runner.run(programs)
    results = runner.results
    print(*table(programs, results), sep="\n")
    for result in results:
        if result.expected:
            print(f"expected: {result.case}: {result.expected}")
    for case in runner.expected.passed(results):
        print(f"passes, though expected.txt says that it fails: {case}")
    skipped = collections.Counter("".join(gist(r.detail)[-1:]) for r in results if r.outcome == "skip")
    for reason, count in skipped.most_common():
        print(f"{count} skipped by themselves: {reason}")
    unexpected = [r for r in results if r.outcome == "fail" and not r.expected]
    for result in unexpected:
        print(f"UNEXPECTED: {result.case}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
