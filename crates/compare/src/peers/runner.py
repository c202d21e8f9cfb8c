"""Runs one engine on what orinctl compare sends: JSON in on standard input, one line of JSON out.

An engine has: facts, reset(), feed(ids) -> the most likely next id, step(id) -> the same for one token, and
distribution(ids, n) -> for the last of the ids, the n most likely (id, log-probability).
"""
import json, os, sys, time

asked = json.load(sys.stdin)
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # What a library prints is not the result.


def timed(work):
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def speed(engine, test):
    """Tokens per second of one test, once untimed and once timed."""
    for _ in range(2):
        engine.reset()
        if test["kind"] == "prefill":
            if test["depth"]:
                engine.feed(test["ids"][: test["depth"]])
            seconds, _ = timed(lambda: engine.feed(test["ids"][test["depth"] :]))
        else:
            token = engine.feed(test["ids"])

            def generate(token=token):
                for _ in range(test["tokens"]):
                    token = engine.step(token)

            seconds, _ = timed(generate)
    return test["tokens"] / seconds


def stream(engine, ids, n):
    """Seconds to the first token, and between the ones after it."""
    engine.reset()
    first, token = timed(lambda: engine.feed(ids))
    between = []
    for _ in range(n - 1):
        seconds, token = timed(lambda: engine.step(token))
        between.append(seconds)
    return first, between


def judged(engine, ids, steps):
    tokens, top, ids = [], [], list(ids)
    for _ in range(steps):
        best = engine.distribution(ids, asked["top"])
        tokens.append(best[0][0])
        top.append(best)
        ids.append(best[0][0])
    return {"tokens": tokens, "top": top}


def main(load):
    seconds, engine = timed(lambda: load(asked))
    outcome = {"facts": engine.facts, "load": time.time() - asked["started"]}
    result = {"outcome": outcome, "answers": []}
    if asked["what"] == "answers":
        result["answers"] = [judged(engine, ids, asked["steps"]) for ids in asked["judged"]]
    else:
        streams = [stream(engine, ids, asked["stream"]) for ids in asked["prompts"]]
        outcome["first_token"] = [first for first, _ in streams]
        outcome["between"] = [between for _, between in streams]
        outcome["speeds"] = {test["name"]: speed(engine, test) for test in asked["tests"]}
        outcome["memory"] = engine.memory()
    print(json.dumps(result), file=answer, flush=True)
