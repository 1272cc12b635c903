#!/usr/bin/env bash
# Gets the LoRA kernels that bench/gpu/lora_bench.py is measured against, from PyPI and, for
# TokenSpeed, GitHub, and leaves in $1 only the files that it needs (a few MB), to be carried to a
# machine without a network. Their code stays outside this repository. Needs pip, unzip, git and,
# for Punica, nvcc.
#   bench/peers/get_gpu_peers.sh /tmp/gpu-peers
set -euo pipefail
if [[ $# -ne 1 ]]; then
  echo "get_gpu_peers.sh: needs one argument, the folder to fill" >&2
  exit 2
fi
here="$(cd "$(dirname "$0")" && pwd)"
out="$(mkdir -p "$1" && cd "$1" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
pip() { python3 -m pip --disable-pip-version-check "$@"; }
for_linux=(--only-binary=:all: --python-version 3.12 --implementation cp)
for n in 17 27 28 31 34 35; do for_linux+=(--platform "manylinux_2_${n}_x86_64"); done
for_linux+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)

vllm=0.33.0
vllm_0_8=0.8.5  # for bench/gpu/slots_bench.py
sglang=0.5.23
punica=0.3.3  # of vLLM, the last whose sources hold it
tokenspeed=8e742de5a34cb542e2743cfca96b193d20db5bd5  # no wheel up to 0.1.1 holds its LoRA kernels

pip download -q --no-deps "${for_linux[@]}" -d "$work" "vllm==$vllm" "sglang==$sglang"
rm -rf "$out"/{vllm,vllm_0_8,sglang,tokenspeed_kernel,punica,site}
unzip -qo "$work"/vllm-$vllm-*.whl 'vllm/lora/ops/triton_ops/*.py' -d "$out"
pip download -q --no-deps "${for_linux[@]}" -d "$work" "vllm==$vllm_0_8"
unzip -qo "$work"/vllm-$vllm_0_8-*.whl 'vllm/lora/ops/triton_ops/*.py' \
  'vllm/lora/punica_wrapper/utils.py' -d "$work/0_8"
mv "$work/0_8/vllm" "$out/vllm_0_8"
unzip -qo "$work"/sglang-*.whl 'sglang/kernels/ops/lora/common/*.py' \
  'sglang/kernels/ops/lora/dense/*' 'sglang/kernels/ops/lora/moe/*.py' \
  'sglang/srt/environ.py' 'sglang/srt/lora/utils.py' \
  'sglang/srt/lora/workspace.py' 'sglang/srt/lora/dense/*' -d "$out"
# What SGLang's plans are read with, if that machine has it not.
pip install -q --no-deps --no-compile "${for_linux[@]}" --target "$out/site" pydantic==2.9.2 \
  pydantic-core==2.23.4 annotated-types==0.7.0 msgspec==0.20.0

# Only as a source distribution, whose build does not matter here: pip leaves what it unpacked.
mkdir "$work/punica"
TMPDIR="$work/punica" pip download -q --no-clean --no-deps --no-binary :all: \
  --no-build-isolation -d "$work" "vllm==$punica" >/dev/null 2>&1 || true
sources="$(dirname "$(find "$work/punica" -path '*/csrc/punica/bgmv' -type d)")"
mkdir -p "$out/punica" "$work/include/ATen/cuda"
touch "$work/include/ATen/cuda/CUDAContext.h"  # punica_bgmv.cu has what is used of it
nvcc -shared -Xcompiler -fPIC -O3 -std=c++17 -gencode=arch=compute_90,code=sm_90 \
  --cudart=static -I "$work/include" -I "$sources" \
  "$here/punica_bgmv.cu" -o "$out/punica/libpunica_bgmv.so"

# Only in its repository: the one commit, and of its files only these.
lora="tokenspeed-kernel/python/tokenspeed_kernel/ops/lora/triton"
git init -q "$work/tokenspeed"
cd "$work/tokenspeed"
git remote add origin https://github.com/lightseekorg/tokenspeed
if git fetch -q --depth 1 --filter=blob:none origin "$tokenspeed" &&
  git checkout -q FETCH_HEAD -- "$lora"; then
  mkdir -p "$out/tokenspeed_kernel/ops/lora"
  cp -r "$lora" "$out/tokenspeed_kernel/ops/lora"
else
  echo "TokenSpeed is left out: $tokenspeed could not be had from GitHub" >&2
  tokenspeed="left out"
fi

cat >"$out/versions.json" <<JSON
{"vllm": "$vllm", "vllm_0_8": "$vllm_0_8", "sglang": "$sglang", "tokenspeed": "$tokenspeed",
 "punica_bgmv": "vllm $punica (sources)"}
JSON
du -sh "$out"
