#!/usr/bin/env bash
# Runs every CPU benchmark on the release build and records the result, written by the tools, under
# bench/results/. Quote its numbers only from a machine that does nothing else.
#   LORATORY_MOONCAKE_CONVERSATION=FILE bench/run_cpu.sh
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset release >/dev/null
cmake --build --preset release --target simulator_bench fleet_bench trace_reading_bench
name="bench/results/cpu-$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)"
for bench in simulator fleet trace_reading; do
  "build/release/bench/${bench}_bench" --benchmark_repetitions=3 \
    --benchmark_report_aggregates_only=true --benchmark_out_format=json \
    --benchmark_out="$name-$bench.json" --benchmark_context=commit="$(git rev-parse HEAD)"
  sed -i '/"host_name":/d' "$name-$bench.json"  # says nothing about the machine
done
