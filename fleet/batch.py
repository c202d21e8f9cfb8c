#!/usr/bin/env python3
"""Sends requests from a file through orind nodes as Ray tasks, and writes the answers in the requests' order.

    fleet/batch.py requests.jsonl answers.jsonl --node http://orin-a:8080 --node http://orin-b:8080

A line is a request as OpenAI's batches have it: {"custom_id": .., "url": "/v1/chat/completions", "body": {..}}. Its answer is
{"custom_id": .., "response": {"status_code": .., "body": {..}}, "error": null}. What a node does not answer is asked of another
one; a node that fails rests until its /health answers. Answers are written as soon as all before them are there: the same
command goes on where it stopped. Needs ray from PyPI. $ORIND_TOKEN is shown to nodes that want a token.
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

# Answers that another try may change.
AGAIN = {408, 425, 429, 500, 502, 503, 504}


def ask(url, body, token, timeout):
    """Status and body of an answer; status 0 where there is none."""
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
        # When it may be asked again.
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
    """How many answers an earlier run has left, all of them whole; a half one is cut off."""
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
    parser.add_argument("--tries", type=int, default=20, metavar="N", help="times that a request is asked at most")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--patience", type=float, default=300.0, metavar="SECONDS",
                        help="how long to wait while no node is there")
    options = parser.parse_args()
    token = os.environ.get("ORIND_TOKEN", "")
    requests = list(read(options.requests))
    done = finished(options.answers, requests)

    ray.init(log_to_driver=False, include_dashboard=False, ignore_reinit_error=True)
    # Only waits: a task takes no share of a processor to speak of.
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
                    # A full queue is no failure: it only waits for another turn.
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
