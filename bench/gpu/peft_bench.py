#!/usr/bin/env python3
"""Throughput of `loratory run` beside transformers + PEFT's generate with mixed adapters: the same
random model, adapters and prompts, greedy, on the same card, one after the other.

  bench/gpu/peft_bench.py --loratory build/cuda/cli/loratory --out peft.json
  bench/gpu/peft_bench.py --loratory build/dev/cli/loratory --model tiny --device cpu   # a try

All requests come at once and get the same number of tokens. Both sides have the model and all
adapters in memory when the clock starts: PEFT has generated once before, loratory has served each
adapter once. PEFT pads prompts on the left, to the longest. Folders of the model (16 GB for
Llama-3.1-8B) and of the adapters are written to --folder and removed. Needs torch, transformers and
peft.
"""
import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

MODELS = {
    "Llama-3.1-8B": dict(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=128256, rope_theta=500000.0),
    "Llama-3.2-1B": dict(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, vocab_size=128256, rope_theta=500000.0),
    "tiny": dict(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=256, rope_theta=10000.0),
}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WARM_UP_S = 30  # after so long every adapter has been served once


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message}\n")  # one line
    parser.add_argument("--loratory", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--model", choices=MODELS, default="Llama-3.1-8B")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=256, help="longest; a quarter is the least")
    parser.add_argument("--output", type=int, default=128, help="tokens of each request")
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S,
                        help="seconds in which loratory serves each adapter once")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=pathlib.Path, help="JSON")
    parser.add_argument("--part", choices=["model", "peft"], help=argparse.SUPPRESS)
    return parser.parse_args()


# --- what both sides get --------------------------------------------------------------------------

def requests(args):
    """[(adapter's name, prompt)]: adapters in turn, lengths from a quarter of the longest."""
    draw = random.Random(1)
    vocab = MODELS[args.model]["vocab_size"]
    lengths = [draw.randint(max(1, args.prompt // 4), args.prompt) for _ in range(args.requests)]
    return [(f"a{i % args.adapters}", [draw.randrange(3, vocab) for _ in range(length)])
            for i, length in enumerate(lengths)]


def make_model(args):
    """Random weights, by transformers, where the card is."""
    import torch
    import transformers
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    config = transformers.LlamaConfig(
        **MODELS[args.model], max_position_embeddings=8192, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2, dtype=dtype)
    torch.manual_seed(1)
    with torch.device(args.device):
        model = transformers.LlamaForCausalLM._from_config(config, dtype=dtype)
    model.save_pretrained(args.folder / "model", max_shard_size="4GB")
    for i in range(args.adapters):
        make_adapter(args, config, dtype, i)


def make_adapter(args, config, dtype, index):
    """As PEFT would save it: all linear layers of the model."""
    import torch
    from safetensors.torch import save_file
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    sizes = {"q_proj": (heads * dim, hidden), "k_proj": (kv * dim, hidden),
             "v_proj": (kv * dim, hidden), "o_proj": (hidden, heads * dim),
             "gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    draw = torch.Generator(device=args.device).manual_seed(100 + index)

    def numbers(rows, columns, size):
        return (torch.rand(rows, columns, generator=draw, device=args.device) - 0.5).mul(
            size).to(dtype).cpu()

    tensors = {}
    for layer in range(config.num_hidden_layers):
        for name, (rows, columns) in sizes.items():
            part = "self_attn" if name in TARGETS[:4] else "mlp"
            key = f"base_model.model.model.layers.{layer}.{part}.{name}"
            tensors[f"{key}.lora_A.weight"] = numbers(args.rank, columns, 2 / columns**0.5)
            tensors[f"{key}.lora_B.weight"] = numbers(rows, args.rank, 0.1)
    folder = args.folder / f"a{index}"
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": args.rank, "lora_alpha": 2 * args.rank,
        "lora_dropout": 0.0, "bias": "none", "target_modules": TARGETS, "inference_mode": True,
        "base_model_name_or_path": "model"}))


# --- transformers + PEFT --------------------------------------------------------------------------

def run_peft(args):
    """Prints one JSON object."""
    import peft
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.folder / "model", dtype="auto", device_map=args.device)
    begin = time.monotonic()
    model = peft.PeftModel.from_pretrained(  # without low_cpu_mem_usage weights are drawn first
        model, args.folder / "a0", adapter_name="a0", low_cpu_mem_usage=True)
    for i in range(1, args.adapters):
        model.load_adapter(args.folder / f"a{i}", adapter_name=f"a{i}", low_cpu_mem_usage=True)
    model.eval()
    print(f"peft: adapters loaded in {time.monotonic() - begin:.1f} s", file=sys.stderr)
    wanted = requests(args)
    longest = max(len(prompt) for _, prompt in wanted)
    ids = torch.tensor([[0] * (longest - len(p)) + p for _, p in wanted], device=args.device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for _, p in wanted],
                        device=args.device)

    def generate(tokens):
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids, attention_mask=mask, adapter_names=[name for name, _ in wanted],
                max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
        if args.device == "cuda":
            torch.cuda.synchronize()
        return out[:, longest:].tolist()

    generate(2)
    begin = time.monotonic()
    tokens = generate(args.output)
    seconds = time.monotonic() - begin
    print(f"peft: {args.output} tokens each in {seconds:.1f} s", file=sys.stderr)
    assert all(len(t) == args.output for t in tokens)
    print(json.dumps({
        "seconds": seconds, "tokens": tokens, "transformers": transformers.__version__,
        "peft": peft.__version__, "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if args.device == "cuda" else "none"}))


def part(args, name):
    """A part of this script in a process of its own: what it held on the card is free again."""
    command = [sys.executable, __file__, "--part", name]
    for flag in ("loratory", "model", "device", "requests", "adapters", "rank", "prompt", "output",
                 "folder"):
        command += [f"--{flag}", str(getattr(args, flag))]
    begin = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"peft_bench: the part {name} failed with {done.returncode}")
    print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
    return done.stdout


# --- loratory -------------------------------------------------------------------------------------

def run_loratory(args):
    """Seconds from the arrival of all requests to the last token, and the tokens."""
    wanted = requests(args)
    lines = [{"request_id": f"warm-{i}", "model": f"a{i}", "prompt": [3], "max_tokens": 2,
              "temperature": 0, "ignore_eos": True} for i in range(args.adapters)]
    lines += [{"request_id": f"r{i}", "model": name, "prompt": prompt, "max_tokens": args.output,
               "temperature": 0, "ignore_eos": True, "arrival_s": args.warm_up}
              for i, (name, prompt) in enumerate(wanted)]
    file, out = args.folder / "requests.jsonl", args.folder / "results.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [args.loratory, "run", "--model", args.folder / "model", "--requests", file, "--out",
               out, "--max-loras", args.adapters, "--max-cpu-loras", 2 * args.adapters,
               "--max-num-seqs", max(args.requests, args.adapters),
               "--max-num-batched-tokens", 8192,
               "--executor", "gpu" if args.device == "cuda" else "reference"]
    for i in range(args.adapters):
        command += ["--adapter", f"a{i}={args.folder / f'a{i}'}"]
    done = subprocess.run([str(word) for word in command], text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"peft_bench: loratory run failed with {done.returncode}")
    results = [json.loads(line) for line in out.read_text().splitlines()]
    late = [r["timings"]["e2el_ms"] for r in results[:args.adapters]]
    if max(late) > 1e3 * args.warm_up:
        raise SystemExit("peft_bench: adapters were still loading; give a longer --warm-up")
    measured = results[args.adapters:]
    return (max(r["timings"]["e2el_ms"] for r in measured) / 1e3,
            [r["token_ids"] for r in measured])


def common_prefix(left, right):
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


def main():
    args = arguments()
    if args.part == "model":
        return make_model(args)
    if args.part == "peft":
        return run_peft(args)
    args.loratory = args.loratory.resolve()
    args.folder = pathlib.Path(tempfile.mkdtemp(prefix="peft_bench-", dir=args.folder))
    try:
        part(args, "model")
        theirs = json.loads(part(args, "peft").splitlines()[-1])
        seconds, tokens = run_loratory(args)
    finally:
        shutil.rmtree(args.folder)
    count = args.requests * args.output
    result = {
        "model": args.model, "gpu": theirs["gpu"], "requests": args.requests,
        "adapters": args.adapters, "rank": args.rank, "prompt": args.prompt,
        "output": args.output, "transformers": theirs["transformers"], "peft": theirs["peft"],
        "torch": theirs["torch"], "peft_s": theirs["seconds"], "loratory_s": seconds,
        "peft_tokens_per_s": count / theirs["seconds"], "loratory_tokens_per_s": count / seconds,
        "times_faster": theirs["seconds"] / seconds,
        # 16 bits round otherwise on each side: greedy tokens part somewhere.
        "equal_tokens_at_first": [common_prefix(a, b) for a, b in zip(tokens, theirs["tokens"])],
    }
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{args.requests} requests of {args.output} tokens, {args.adapters} adapters of rank "
          f"{args.rank}: PEFT {result['peft_tokens_per_s']:.0f} tokens/s, loratory "
          f"{result['loratory_tokens_per_s']:.0f} tokens/s, {result['times_faster']:.1f} times")
    return 0


if __name__ == "__main__":
    sys.exit(main())
