#!/usr/bin/env bash
# Times lora_linear against PyTorch in turns, on two threads each, and prints the medians and their
# ratio. Quote it only from a machine that does nothing else. $1: a python with the packages that
# bench/peers/cpu_lora_delta.py names; $2: a built lora_delta_bench, if not the release build's.
#   bench/compare_lora_delta.sh ~/venv/bin/python
set -euo pipefail
cd "$(dirname "$0")/.."

python="${1:-python3}"
bench="${2:-build/release/bench/lora_delta_bench}"
if [[ $# -lt 2 ]]; then
  cmake --preset release >/dev/null
  cmake --build --preset release --target lora_delta_bench >/dev/null
fi
results="$(mktemp -d)"
trap 'rm -r "$results"' EXIT
for round in 1 2 3 4 5; do
  "$bench" --benchmark_filter='mode:0/threads:2' --benchmark_repetitions=5 \
    --benchmark_min_time=0.1 --benchmark_format=json >"$results/ours-$round.json" 2>/dev/null
  "$python" bench/peers/cpu_lora_delta.py --threads 2 --repetitions 5 >"$results/torch-$round.json"
done
"$python" - "$results"/*.json <<'PYTHON'
import collections, json, statistics, sys

times = collections.defaultdict(list)
for path in sys.argv[1:]:
    for run in json.load(open(path))["benchmarks"]:
        if run["run_type"] == "iteration":
            label = " " + run["label"] if "label" in run else ""
            times[run["name"].removesuffix("/real_time") + label].append(run["real_time"])
peer = statistics.median(times["torch_lora_delta/dtype:float32/threads:2"])
print(f"{'median ms':>10} {'least':>8} {'/ torch float32':>16}")
for name, values in times.items():
    median = statistics.median(values)
    print(f"{median:10.3f} {min(values):8.3f} {median / peer:16.2f}  {name}")
PYTHON
