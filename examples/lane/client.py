#!/usr/bin/env python3
"""A client of one of the daemon's control loops: client.py LOOP [STEPS]. Needs the package in `python/`."""
import sys
import time

import orind

name, steps = sys.argv[1], int((sys.argv + ["1000"])[2])
with orind.ControlLoop(name) as loop:
    period, due, worst = 1 / loop.rate_hz, time.monotonic(), 0.0
    for step in range(steps):
        for tensor in loop.inputs.values():
            tensor.memory[0] = step / steps
        outputs = loop.step()
        worst = max(worst, time.monotonic() - due)
        due += period
        time.sleep(max(0.0, due - time.monotonic()))
    print({name: tensor.memory.tolist()[:8] for name, tensor in outputs.items()}, f"worst {worst * 1e6:.0f} us")
    print(f"{loop.counts.missed} of {loop.counts.steps} steps were late")
