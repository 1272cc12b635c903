#!/usr/bin/env bash
# Times lora_linear against PyTorch in turns, on two threads each, prints the medians and their
# ratio, and keeps them in bench/results/. Quote it only from a machine that does nothing else.
# $1: a python with the packages that bench/peers/cpu_lora_delta.py names; $2: a built
# lora_delta_bench, if not the release build's.
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
commit="$(git rev-parse --short HEAD)"
"$python" - "$commit" "$results"/*.json <<'PYTHON'
import collections, datetime, json, os, statistics, sys

times = collections.defaultdict(list)
for path in sys.argv[2:]:
    for run in json.load(open(path))["benchmarks"]:
        if run["run_type"] == "iteration":
            label = " " + run["label"] if "label" in run else ""
            times[run["name"].removesuffix("/real_time") + label].append(run["real_time"])
peer = statistics.median(times["torch_lora_delta/dtype:float32/threads:2"])
medians = {name: statistics.median(values) for name, values in times.items()}
date = datetime.date.today().isoformat()
with open(f"bench/results/lora-delta-{date}-{sys.argv[1]}.json", "w") as out:
    json.dump({"date": date, "commit": sys.argv[1], "cpus": os.cpu_count(), "rounds": 5,
               "median_ms": medians,
               "to_torch_float32": {n: round(m / peer, 3) for n, m in medians.items()}}, out,
              indent=1)
    out.write("\n")
print(f"{'median ms':>10} {'least':>8} {'/ torch float32':>16}")
for name, values in times.items():
    median = statistics.median(values)
    print(f"{median:10.3f} {min(values):8.3f} {median / peer:16.2f}  {name}")
PYTHON
