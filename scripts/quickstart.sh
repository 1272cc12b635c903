#!/usr/bin/env bash
# Installs the packages, builds the program and sizes max_loras for the bundled trace.
# Results: out/quickstart/report.html (look at it) and results.json (for scripts).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/packages.sh --program
echo "build: the program, into build/release"
cmake --preset release --log-level=WARNING
cmake --build --preset release --target loratory

out=out/quickstart
mkdir -p "$out"
size=(build/release/cli/loratory size --trace traces/sample.jsonl.gz --gpu L40S --rate-scale 0.3
      --slo-ttft-ms 1000 --slo-tpot-ms 70 --json "$out/results.json" --html "$out/report.html")
echo "run: ${size[*]}"
echo
status=0
"${size[@]}" || status=$?  # 3 and 4: nothing to recommend, but a report that says why
[[ $status -eq 0 || $status -eq 3 || $status -eq 4 ]] || exit "$status"
echo
echo "report: $PWD/$out/report.html"
exit "$status"
