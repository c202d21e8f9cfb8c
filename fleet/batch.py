#!/usr/bin/env python3
"""Sends requests from a file to orind nodes as Ray tasks, and writes the answers in the order of the requests.

    fleet/batch.py requests.jsonl answers.jsonl --node http://orin-a:8080 --node http://orin-b:8080

A line is a request in the format of OpenAI's batches: {"custom_id": .., "url": "/v1/chat/completions", "body": {..}}. Its
answer is {"custom_id": .., "response": {"status_code": .., "body": {..}}, "error": null}. A failed request is retried on
another node; a node that fails is skipped until its /health answers. Each answer is written as soon as all before it are
complete, so the same command resumes an interrupted run. Needs ray from PyPI. $ORIND_TOKEN is sent to nodes that need a token.
"""

import argparse
import collections
import json
import os
import sys
import time
import urllib.error
import urllib.request

import ray

# Status codes that are worth a retry.
AGAIN = {408, 425, 429, 500, 502, 503, 504}


def ask(url, body, token, timeout):
    """Returns status and body of an answer; status 0 if there is none."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=timeout) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        try:
            return error.code, json.load(error)
        except (ValueError, OSError):
            return error.code, None
    except (OSError, ValueError) as error:
        return 0, str(error)


class Node:
    def __init__(self, url):
        self.url = url.rstrip("/")
        self.under_way = 0
        # Time of the next attempt.
        self.rests_until = 0.0

    def is_there(self, token):
        now = time.monotonic()
        if self.rests_until == 0.0 or now < self.rests_until:
            return self.rests_until == 0.0
        status, _ = ask(f"{self.url}/health", None, token, 2)
        self.rests_until = 0.0 if status == 200 else now + 1.0
        return status == 200


def read(path):
    with open(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                request = json.loads(line)
                request["custom_id"], request["url"], request["body"]
            except (ValueError, KeyError, TypeError) as error:
                sys.exit(f"{path}, line {number}: {error!r}; a request has custom_id, url and body")
            yield request


def finished(path, requests):
    """Returns the number of complete answers of an earlier run; truncates an incomplete one."""
    if not os.path.exists(path):
        return 0
    count, good = 0, 0
    with open(path, "rb+") as lines:
        for line in lines:
            try:
                answer = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                answer = None
            if answer is None:
                break
            if count >= len(requests) or answer.get("custom_id") != requests[count]["custom_id"]:
                sys.exit(f"{path}: its answer {count + 1} is not to request {count + 1}; name another file")
            count, good = count + 1, good + len(line)
        lines.truncate(good)
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("requests")
    parser.add_argument("answers")
    parser.add_argument("--node", action="append", required=True, metavar="URL")
    parser.add_argument("--in-flight", type=int, default=8, metavar="N", help="requests to one node at once")
    parser.add_argument("--tries", type=int, default=20, metavar="N", help="maximum number of attempts per request")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--patience", type=float, default=300.0, metavar="SECONDS",
                        help="time to wait while no node is available")
    options = parser.parse_args()
    token = os.environ.get("ORIND_TOKEN", "")
    requests = list(read(options.requests))
    done = finished(options.answers, requests)

    ray.init(log_to_driver=False, include_dashboard=False, ignore_reinit_error=True)
    # A task only waits, so it reserves almost no CPU.
    task = ray.remote(num_cpus=0.01, max_retries=3)(ask)
    nodes = [Node(url) for url in options.node]
    waiting = collections.deque(range(done, len(requests)))
    tries = collections.Counter()
    under_way, answers = {}, {}
    last_seen, told, began, first = time.monotonic(), 0.0, time.monotonic(), done
    with open(options.answers, "a") as out:
        while done < len(requests):
            there = [node for node in nodes if node.is_there(token)]
            now = time.monotonic()
            if there or under_way:
                last_seen = now
            elif now - last_seen > options.patience:
                sys.exit(f"no node has answered for {options.patience:.0f} s; {done} of {len(requests)} answers are written")
            while waiting and there:
                node = min(there, key=lambda node: node.under_way)
                if node.under_way >= options.in_flight:
                    break
                at = waiting.popleft()
                tries[at] += 1
                node.under_way += 1
                reference = task.remote(node.url + requests[at]["url"], requests[at]["body"], token, options.timeout)
                under_way[reference] = (at, node)
            ready, _ = ray.wait(list(under_way), num_returns=1, timeout=0.2) if under_way else (time.sleep(0.2) or [], [])
            more, _ = ray.wait(list(under_way), num_returns=len(under_way), timeout=0) if ready else ([], [])
            for reference in more:
                at, node = under_way.pop(reference)
                node.under_way -= 1
                try:
                    status, body = ray.get(reference)
                except ray.exceptions.RayError as error:
                    status, body = 0, str(error)
                if (status == 0 or status in AGAIN) and tries[at] < options.tries:
                    # A full queue is not a failure; the request is retried.
                    if status != 429:
                        node.rests_until = time.monotonic() + 1.0
                    waiting.appendleft(at)
                    continue
                failed = None if status else {"message": body}
                response = {"status_code": status, "body": body} if status else None
                answers[at] = {"custom_id": requests[at]["custom_id"], "response": response, "error": failed}
            while done in answers:
                out.write(json.dumps(answers.pop(done)) + "\n")
                done += 1
            out.flush()
            if now - told >= 1.0 or done == len(requests):
                told = now
                speed = (done - first) / max(now - began, 1e-3)
                print(f"\r{done} of {len(requests)}, {speed:.1f} a second, {len(there)} of {len(nodes)} nodes ", end="",
                      file=sys.stderr, flush=True)
    print(file=sys.stderr)


if __name__ == "__main__":
    main()
