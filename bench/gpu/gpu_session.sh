#!/bin/bash
# All that is measured on one GPU, part after part; a part that fails or takes too long does not
# stop the others. The last lines are a table of exit codes.
#
#   bench/gpu/gpu_session.sh BUILD OUT tests|benches|peers|lora
#
# BUILD is a build folder of the preset cuda, or a copy of its programs in the same folders. lora
# (fp8 and experts) wants LORATORY_PEERS_DIR, which bench/peers/get_gpu_peers.sh makes.
set -u
build=$1 out=$2 kind=$3
mkdir -p "$out"
commit=${LORATORY_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
export LORATORY_SOURCE_DIR=${LORATORY_SOURCE_DIR:-$PWD} LORATORY_CLI=$build/cli/loratory
table=""

part() {  # name, seconds, command...
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
  code=$?
  table+="$(printf '%-16s %4s %6s s' "$name" "$code" $((SECONDS - begin)))"$'\n'
}

case $kind in
  tests)
    part golden 60 "$build/tests/run_test" --gtest_filter='*GoldenGpu*'
    part suite 460 bench/gpu/record_gpu_tests.py "$build/tests/gpu_test" --out "$out" \
      --commit "$commit" --tool-seconds 200
    ;;
  benches)
    part model_kernels 40 "$build/bench/gpu/model_kernels_bench" "$out/model_kernels.json"
    part attention 40 "$build/bench/gpu/attention_bench"
    part engine 400 "$build/bench/gpu/engine_bench" "$out/engine.json"
    ;;
  peers)
    part attention_peers 60 bench/gpu/attention_peers.py
    part peft 420 bench/gpu/peft_bench.py --loratory "$build/cli/loratory" --out "$out/peft.json"
    ;;
  lora)
    with=(--lib "$build/bench/gpu/libloratory_c.so" --commit "$commit"
      --peers-dir "${LORATORY_PEERS_DIR:?}")
    part lora_fp8 220 bench/gpu/lora_bench.py "${with[@]}" --rows fp8 --out "$out/lora_fp8" \
      --budget-s 200
    part moe 360 bench/gpu/moe_bench.py "${with[@]}" --out "$out/moe" --budget-s 320
    ;;
  *)
    echo "gpu_session.sh: $kind: tests, benches, peers or lora" >&2
    exit 2
    ;;
esac
# Few files: logs go into one.
tar -C "$out" --remove-files -czf "$out/logs-$kind.tar.gz" \
  $(cd "$out" && ls | grep '\.log$') 2>/dev/null
printf 'part             exit   took\n%s' "$table"
