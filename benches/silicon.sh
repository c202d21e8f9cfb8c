#!/usr/bin/env bash
# All measurements on a machine with an NVIDIA GPU: correctness of every kernel, decode and prefill of models as a
# share of the bandwidth measured in the same run, a minute each of tuning a model and groups of tensor operations,
# PyTorch on the same shapes.
#
# Needs Rust (or ORIND_BIN with a release build of orinctl, gpu_kernels and gpu_snippets), libcuda and Python; NVRTC for
# candidates beyond the prebuilt ones and for groups; PyTorch for the last part. Writes to OUT (default: ./silicon).
# Takes four to five minutes on an H100 if the models exist already.
#
#     bash benches/silicon.sh
#     MODELS="synthetic:qwen35-35b-a3b:q4_k_m synthetic:llama-3.1-8b:q4_k_m" bash benches/silicon.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${OUT:-silicon}
models=(
    synthetic:llama-3.2-1b:q6_k
    synthetic:llama-3.2-1b:q8_0
    synthetic:llama-3.2-1b:f16
    synthetic:qwen3-0.6b:q8_0
    synthetic:qwen3-1.7b:q4_k_m
)
[[ -z ${MODELS:-} ]] || read -ra models <<<"$MODELS"
mkdir -p "$out"

note() { printf '\n== %s\n' "$*"; }

note "machine"
{
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.mem,clocks.sm,power.limit --format=csv ||
        echo "nvidia-smi is not installed"
    lscpu | grep -E '^(Model name|CPU\(s\))' || true
    git log -1 --format='commit %H' 2>/dev/null || true
} | tee "$out/machine.txt"

note "build"
if [[ -n ${ORIND_BIN:-} ]]; then
    orinctl=$ORIND_BIN/orinctl kernels=("$ORIND_BIN/gpu_kernels")
else
    cargo build --release --locked --bins
    orinctl=target/release/orinctl kernels=(cargo bench --locked --bench gpu_kernels --)
fi

note "correctness: every step, and logits of a small model, compared with the reference"
"$orinctl" parity --devices cuda --json >"$out/parity.json" || {
    echo "parity failed: the numbers of this run are meaningless" | tee "$out/FAILED"
    exit 1
}

note "fingerprints: logits equal those of every other device, bit for bit"
sed -nE 's/^ *"([^"]*tiny[^"]*)": "([0-9a-f]*)".*/\1 \2/p' tests/data/fingerprints.json |
    while read -r model hash; do
        [[ $model == synthetic:* ]] || model=tests/data/models/$model.gguf
        "$orinctl" fingerprint "$model" --backend cuda --expect "$hash" 2>&1 | tail -n 1 | sed "s|^|$model: |"
    done | tee "$out/fingerprints.txt"
if grep -vE 'as expected|does not support' "$out/fingerprints.txt"; then
    echo "bits differ from docs/numerics.md; parity.json has the differences" | tee "$out/FAILED"
fi

note "random programs, bit for bit; their results are test vectors for the machine-code engine"
if [[ -n ${ORIND_BIN:-} ]]; then snippets=("$ORIND_BIN/gpu_snippets"); else
    snippets=(cargo bench --locked --bench gpu_snippets --)
fi
"${snippets[@]}" "$out/silicon.sm_90.bin" | tee "$out/snippets.json"
if [[ -e $out/silicon.sm_90.bin ]]; then
    cmp "$out/silicon.sm_90.bin" kernels/snippets/silicon.sm_90.bin ||
        echo "results differ from those checked in (kernels/snippets/silicon.sm_90.bin)" | tee "$out/FAILED"
fi

note "kernels: matrices by size, and every kernel of a token"
"${kernels[@]}" "${models[@]}" | tee "$out/kernels.jsonl"
if grep -q '"skipped"' "$out/kernels.jsonl"; then
    echo "no GPU found: nothing was measured"
    exit 1
fi

note "prefill and decode of whole models"
for model in "${models[@]}"; do
    "$orinctl" bench --private --backend cuda -m "$model" -p 512 -n 128 -r 5 --json \
        >"$out/bench-${model//[:.]/_}.json"
    "$orinctl" bench --private --backend cuda -m "$model" -p 512 -n 128 -r 5
done | tee "$out/bench.txt"

note "prompts of F16 in half precision"
here=$(realpath "$out")
printf '%s\n' 'model = "synthetic:llama-3.2-1b:f16"' 'backend = "cuda"' 'prompt_precision = "half"' 'context = 4096' \
    "socket = \"$here/half.sock\"" "state_dir = \"$here/half\"" "tune_dir = \"$here/half\"" >"$out/half.toml"
"${orinctl%ctl}d" --config "$out/half.toml" 2>"$out/half.log" &
daemon=$!
until "$orinctl" health --socket "$out/half.sock" >/dev/null 2>&1; do
    kill -0 "$daemon" 2>/dev/null || break
    sleep 1
done
"$orinctl" bench --socket "$out/half.sock" -p 512,2048 -n 128 -r 5 | tee "$out/half.txt"
kill "$daemon" && wait "$daemon" || true

note "a minute of tuning, and its effect on a whole model"
# A store of its own, so that this machine's daemon does not use the results.
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
(
    unset STATE_DIRECTORY
    export XDG_DATA_HOME=$data
    "$orinctl" tune --private --backend cuda -m "${models[0]}" --budget 60
    "$orinctl" tune sweep --backend cuda -m "${models[0]}" --rounds 2
) 2>&1 | tee "$out/tune.txt" || echo "tuning failed"

note "a minute of tuning the kernels of groups: elements, many rows, few long rows, and columns"
# Softmax and tanh of x, and the maximum of each column; both extents are open.
python3 - "$out/groups.onnx" <<'PYTHON'
import sys

def field(number, *parts):
    data = b"".join(parts)
    size = len(data)
    return bytes([number << 3 | 2, *([size] if size < 128 else [size & 127 | 128, size >> 7])]) + data

def node(op, out, *attributes):
    return field(1, field(1, b"x"), field(2, out), field(4, op), *attributes)

def value(number, name):
    extents = (field(1, field(2, axis)) for axis in (b"rows", b"columns"))
    return field(number, field(1, name), field(2, field(1, b"\x08\x01", field(2, *extents))))

axes = field(5, field(1, b"axes"), b"\x40\x00\xa0\x01\x07")
nodes = node(b"Softmax", b"s"), node(b"Tanh", b"t"), node(b"ReduceMax", b"m", axes)
graph = field(7, *nodes, value(11, b"x"), *(value(12, name) for name in (b"s", b"t", b"m")))
open(sys.argv[1], "wb").write(graph + field(8, b"\x10\x11"))
PYTHON
(
    unset STATE_DIRECTORY
    export XDG_DATA_HOME=$data
    for shape in 4096,1024 64,4096 1,65536; do
        "$orinctl" tune --private --backend cuda --network "$out/groups.onnx" --shape "x=$shape" --budget 20
    done
) 2>&1 | tee "$out/tune-groups.txt" || echo "tuning groups failed"

note "decode by kind of weight memory (matters if GPU and CPU share their memory)"
for kind in device pinned managed; do
    ORIND_CUDA_MEMORY=$kind "$orinctl" bench --private --backend cuda -m "${models[0]}" -p 0 -n 64 -r 3 |
        sed "s/^/$kind: /"
done | tee "$out/memory.txt"

note "PyTorch on the same shapes"
python3 - <<'PYTHON' | tee "$out/pytorch.jsonl" || echo "PyTorch is not installed"
import json, time
import torch
assert torch.cuda.is_available()

def timed(run, times=50):
    for _ in range(10):
        run()
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in zip(events, events[1:]))[times // 2] * 1e-3

a, b = (torch.randn(1 << 26, device="cuda") for _ in range(2))
c = torch.empty_like(a)
roof = 3 * a.numel() * 4 / timed(lambda: torch.add(a, b, out=c))
print(json.dumps({"torch": torch.__version__, "bandwidth_gb_s": roof / 1e9}))
for n, k in [(2048, 2048), (8192, 2048), (16384, 4096), (65536, 4096)]:
    w = torch.randn(n, k, device="cuda", dtype=torch.float16)
    x = torch.randn(k, device="cuda", dtype=torch.float16)
    s = timed(lambda: torch.mv(w, x))
    speed = w.numel() * 2 / s
    print(json.dumps({"matrix": f"{n}x{k}", "type": "F16", "us": s * 1e6, "gb_s": speed / 1e9,
                      "percent_of_bandwidth": 100 * speed / roof}))

# A decode step of Llama-3.2-1B's shape in half precision, as one CUDA graph.
h, ff, layers, heads, kv, d, vocabulary, context = 2048, 8192, 16, 32, 8, 64, 128256, 512
half = dict(device="cuda", dtype=torch.float16)
def matrix(n, k):
    return torch.randn(n, k, **half) * 0.02
blocks = [dict(qkv=matrix(h + 2 * kv * d, h), o=matrix(h, h), gu=matrix(2 * ff, h), down=matrix(h, ff),
               k=torch.randn(kv, context, d, **half), v=torch.randn(kv, context, d, **half))
          for _ in range(layers)]
head, norm = matrix(vocabulary, h), torch.ones(h, **half)
def step(x):
    for block in blocks:
        y = torch.nn.functional.rms_norm(x, (h,), norm) @ block["qkv"].T
        q = y[0, :h].view(kv, heads // kv, d)
        p = torch.softmax(q @ block["k"].transpose(1, 2) / 8, -1) @ block["v"]
        x = x + p.reshape(1, h) @ block["o"].T
        g, u = (torch.nn.functional.rms_norm(x, (h,), norm) @ block["gu"].T).chunk(2, -1)
        x = x + (torch.nn.functional.silu(g) * u) @ block["down"].T
    return torch.argmax(torch.nn.functional.rms_norm(x, (h,), norm) @ head.T, -1)
x = torch.randn(1, h, **half)
with torch.no_grad():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(x)
    s = timed(graph.replay)
print(json.dumps({"model": "llama-3.2-1b:f16", "tokens_s": 1 / s}))
PYTHON

if [[ -x ${LLAMA_BENCH:-} ]]; then
    note "llama.cpp (LLAMA_BENCH) on the same files"
    for model in "${models[@]}"; do
        name=${model#synthetic:}
        file=$(compgen -G "${XDG_CACHE_HOME:-$HOME/.cache}/orind/synthetic/${name/:/-}-v*.gguf" | head -n 1) || continue
        "$LLAMA_BENCH" -m "$file" -p 0 -n 128 -r 5 -ngl 99 -o json
    done | tee "$out/llama-bench.json"
fi

note "done: $out"
