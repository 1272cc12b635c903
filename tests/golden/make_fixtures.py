#!/usr/bin/env python3
"""Writes fixtures/: tiny random models, LoRA adapters, and what transformers + PEFT make of them.

    python tests/golden/make_fixtures.py

Needs requirements.txt. Downloads nothing. Same versions, same bytes: every number comes from a
seed, torch runs on one thread. README.md says what lies in a fixture.
"""

import contextlib
import json
import os
import shutil
import sys
import warnings
import zlib
from pathlib import Path
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

FIXTURES = Path(__file__).resolve().parent / "fixtures"
NUM_PROMPT, NUM_TOKENS = 8, 16
# Between the two largest logits, and between the probabilities of an expert chosen and one not:
# more than float32 can change, which the test proves from derived bounds.
SMALLEST_GAP, SMALLEST_MARGIN = 0.1, 0.002
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


# --- models ---------------------------------------------------------------------------------

COMMON = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=128, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def rope(kind, theta=10000.0, **fields):
    return dict(rope_type=kind, rope_theta=theta, **fields)


# name -> (config, dtype on disk, bytes of a shard or None, config.json as transformers 4 wrote it)
MODELS = {
    # Grouped-query attention, untied, several shards. An eps so large that one sees it.
    "llama_gqa": (
        transformers.LlamaConfig(**COMMON, vocab_size=96, intermediate_size=56,
                                 rms_norm_eps=1e-2),
        BF16, 12_000, False),
    # head_dim is not hidden / heads, one kv head, tied, every bias, llama3: of the 8 frequencies
    # one is kept, one blended, the rest divided.
    "llama3_tied_bias": (
        transformers.LlamaConfig(**{**COMMON, "num_key_value_heads": 1}, vocab_size=64,
                                 intermediate_size=40, head_dim=16, tie_word_embeddings=True,
                                 attention_bias=True, mlp_bias=True,
                                 rope_parameters=rope("llama3", factor=8.0, low_freq_factor=1.0,
                                                      high_freq_factor=4.0,
                                                      original_max_position_embeddings=32)),
        F16, None, True),
    # Norm of q and k, yarn with the attention factor that follows from `factor`, tied.
    "qwen3_yarn": (
        transformers.Qwen3Config(**{**COMMON, "max_position_embeddings": 2048},
                                 vocab_size=80, intermediate_size=48, head_dim=16,
                                 tie_word_embeddings=True, rms_norm_eps=3e-2,
                                 rope_parameters=rope("yarn", factor=4.0,
                                                      original_max_position_embeddings=512)),
        BF16, None, False),
    # Bias on q, k, v alone; linear scaling; one sequence of kv heads per q head.
    "qwen2_linear": (
        transformers.Qwen2Config(**{**COMMON, "num_key_value_heads": 4}, vocab_size=72,
                                 intermediate_size=44, tie_word_embeddings=False,
                                 use_sliding_window=False,
                                 rope_parameters=rope("linear", factor=2.0)),
        F32, None, True),
    # Mixture of experts with the keys block_sparse_moe.experts.E.w1; 2 of 4 experts.
    "mixtral": (
        transformers.MixtralConfig(**COMMON, vocab_size=88, intermediate_size=24,
                                   num_local_experts=4, num_experts_per_tok=2,
                                   sliding_window=None),
        BF16, 16_000, True),
    # A shared expert of its own size beside 2 of 4 experts, whose weights do not sum to 1, in every
    # second layer; bias on q, k, v.
    "qwen2_moe": (
        transformers.Qwen2MoeConfig(**COMMON, vocab_size=84, intermediate_size=36,
                                    moe_intermediate_size=20, shared_expert_intermediate_size=28,
                                    num_experts=4, num_experts_per_tok=2, norm_topk_prob=False,
                                    decoder_sparse_step=2),
        BF16, None, True),
    # A dense layer before one with experts; 3 of 6, whose weights do not sum to 1; yarn with
    # every field given.
    "qwen3_moe": (
        transformers.Qwen3MoeConfig(**{**COMMON, "max_position_embeddings": 512},
                                    vocab_size=80, intermediate_size=40,
                                    moe_intermediate_size=24, num_experts=6,
                                    num_experts_per_tok=3, head_dim=16, mlp_only_layers=[0],
                                    norm_topk_prob=False,
                                    rope_parameters=rope("yarn", factor=2.0,
                                                         original_max_position_embeddings=256,
                                                         attention_factor=1.25, beta_fast=16.0,
                                                         beta_slow=2.0)),
        BF16, None, False),
}


def generator(name):
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def draw(shape, deviation, gen, dtype):
    """Normal numbers that `dtype` holds exactly, as float32."""
    return (torch.randn(shape, generator=gen) * deviation).to(dtype).to(F32)


def fill_weights(model, gen, dtype):
    """Sizes that keep every part of the model alive: peaked attention, gaps between logits."""
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight.data = draw(weight.shape, 0.3, gen, dtype)
        elif "norm" in name:
            weight.data = (1 + draw(weight.shape, 0.25, gen, dtype)).to(dtype).to(F32)
        elif "embed_tokens" in name:
            weight.data = draw(weight.shape, 0.5, gen, dtype)
        else:
            gain = 2.0 if "q_proj" in name or "gate.weight" in name else 1.0
            weight.data = draw(weight.shape, gain / weight.shape[-1] ** 0.5, gen, dtype)


def as_transformers_4(config):
    """rope_theta and rope_scaling at the top, as nearly all published models have them."""
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    if parameters["rope_type"] != "default":
        config["rope_scaling"] = parameters
    config["torch_dtype"] = config.pop("dtype")
    return config


def edit_json(path, change):
    path.write_text(json.dumps(change(json.loads(path.read_text())), indent=2, sort_keys=True)
                    + "\n")


def make_model(name):
    """Writes the folder of a model and returns what transformers reads from it, in float32."""
    config, dtype, shard_size, is_old = MODELS[name]
    folder = FIXTURES / name
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    fill_weights(model, generator(name), dtype)
    exact = {key: value.clone() for key, value in model.state_dict().items()}
    model.to(dtype).save_pretrained(folder, max_shard_size=shard_size or "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    if is_old:
        edit_json(folder / "config.json", as_transformers_4)
    loaded = load_model(name)
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, exact[key]), key
    return loaded


def load_model(name):
    return AutoModelForCausalLM.from_pretrained(FIXTURES / name, dtype=F32,
                                                attn_implementation="eager").eval()


# --- mixtures of experts with one nn.Linear for each matrix ---------------------------------

class Expert(nn.Module):
    def __init__(self, names, gate_up, down):
        super().__init__()
        gate, up = gate_up.chunk(2)
        self.names = names
        for name, weight in zip(names, (gate, up, down)):
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            linear.weight.data = weight.clone()
            self.add_module(name, linear)

    def forward(self, x):
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(nn.functional.silu(gate(x)) * up(x))


class Experts(nn.ModuleList):
    """Takes the place of the fused experts of transformers 5."""

    def forward(self, x, chosen, weights):
        y = torch.zeros_like(x)
        for t in range(x.shape[0]):
            for e, weight in zip(chosen[t].tolist(), weights[t]):
                y[t] += weight * self[e](x[t])
        return y


def unfuse_experts(model):
    """Modules as transformers 4 named them, so that PEFT writes a pair for each expert."""
    is_mixtral = model.config.model_type == "mixtral"
    names = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    for layer in model.model.layers:
        block = layer.mlp
        if not hasattr(block, "experts"):
            continue
        fused = block.experts
        block.experts = Experts(Expert(names, gate_up, down) for gate_up, down in
                                zip(fused.gate_up_proj.data, fused.down_proj.data))
        if is_mixtral:
            del layer.mlp
            layer.block_sparse_moe = block
            layer.__dict__["mlp"] = block
    return model


@contextlib.contextmanager
def no_conversion():
    """Keeps PEFT from turning per-expert adapters into target_parameters."""
    place = "peft.utils.transformers_weight_conversion.get_checkpoint_conversion_mapping"
    with mock.patch(place, lambda model_type: None):
        yield


# --- adapters -------------------------------------------------------------------------------

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]

# What Unsloth's get_peft_regex and LLaMA-Factory's patch_target_modules write for target_modules.
NAMES, PARTS = "|".join(ATTENTION + MLP), "self_attn|attention|attn|mlp|feed_forward|ffn|dense"
UNSLOTH = (rf"(?:.*?(?:vision|image|visual|patch|language|text).*?(?:{PARTS}).*?(?:{NAMES}).*?)"
           rf"|(?:\bmodel\.layers\.[\d]{{1,}}(?!.*\.experts\.\d)\.(?:{PARTS})\.(?:(?:{NAMES})))")
LLAMA_FACTORY = "^(?!.*visual).*(?:q_proj|k_proj).*"

# model -> name -> LoraConfig; `file_dtype`, `unfused` and `save_embeddings` are ours.
ADAPTERS = {
    "llama_gqa": {
        "qv_r4": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
        "all_linear_rslora_r5": dict(r=5, lora_alpha=3, use_rslora=True,
                                     target_modules="all-linear"),
        # In the file's (sorted) order the first pattern that matches counts: "^..." wins over
        # "v_proj", and ranks are searched apart from alphas.
        "patterns": dict(r=6, lora_alpha=9, target_modules=ATTENTION + MLP,
                         rank_pattern={"q_proj|k_proj": 3, "layers.1.mlp.down_proj": 16,
                                       "^model.layers.0.self_attn.o_proj": 1},
                         alpha_pattern={"v_proj": 10, "^model.layers.1.*": 4.5,
                                        "down_proj": -2}),
        "rslora_patterns_f32": dict(r=4, lora_alpha=2.5, use_rslora=True, target_modules=ATTENTION,
                                    rank_pattern={"v_proj": 9}, alpha_pattern={"o_proj": 7},
                                    file_dtype=F32),
        "layer_1_only": dict(r=2, lora_alpha=4, target_modules=["k_proj", "up_proj"],
                             layers_to_transform=[1], layers_pattern="layers"),
        "regex_r1": dict(r=1, lora_alpha=2,
                         target_modules=r"(.*\.(q|o)_proj)|(model\.layers\.0\.mlp\.down_proj)"),
        "excluded": dict(r=3, lora_alpha=3, target_modules=ATTENTION + MLP,
                         exclude_modules=["layers.0.self_attn.q_proj", "down_proj"]),
        "embed_tokens_r3_f16": dict(r=3, lora_alpha=6, target_modules=["embed_tokens"],
                                    file_dtype=F16),
        "lm_head_r16": dict(r=16, lora_alpha=16, target_modules=["lm_head"]),
        "unsloth_regex": dict(r=2, lora_alpha=3, target_modules=UNSLOTH),
        "llama_factory_regex": dict(r=2, lora_alpha=5, target_modules=LLAMA_FACTORY,
                                    rank_pattern={r"(?<=layers\.1\.self_attn\.)q_proj": 3}),
        # The model has no biases, so PEFT saves none.
        "bias_flag": dict(r=2, lora_alpha=2, bias="all", target_modules=["v_proj"]),
        "saved_embeddings": dict(r=1, lora_alpha=2, target_modules=["o_proj"],
                                 save_embeddings=True),
        "everything_r7": dict(r=7, lora_alpha=-5,
                              target_modules=ATTENTION + MLP + ["embed_tokens", "lm_head"]),
    },
    "llama3_tied_bias": {
        "all_r8": dict(r=8, lora_alpha=16, target_modules=ATTENTION + MLP),
        # PEFT replaces the base by the copy in the file: the file must hold it exactly.
        "tied_lm_head": dict(r=4, lora_alpha=4, target_modules=["lm_head"], file_dtype=F16),
        "tied_embed_tokens": dict(r=4, lora_alpha=4, target_modules=["embed_tokens"],
                                  file_dtype=F16),
        "alpha_0": dict(r=2, lora_alpha=0, target_modules=["q_proj"]),
    },
    "qwen3_yarn": {
        "attention_rslora_r16": dict(r=16, lora_alpha=8, use_rslora=True,
                                     target_modules=ATTENTION),
        "k_and_up_f16": dict(r=3, lora_alpha=5, target_modules=["k_proj", "up_proj"],
                             file_dtype=F16),
    },
    "qwen2_linear": {
        "qkv_r5_f32": dict(r=5, lora_alpha=10, target_modules=["q_proj", "k_proj", "v_proj"],
                           file_dtype=F32),
        "mlp_layer_0": dict(r=8, lora_alpha=2, target_modules=MLP, layers_to_transform=0),
    },
    "mixtral": {
        # PEFT nests the two parameters; the order of this list does not count.
        "parameters_r3": dict(r=3, lora_alpha=5, target_modules=[], target_parameters=[
            "mlp.experts.down_proj", "mlp.experts.gate_up_proj"]),
        "down_parameter_rslora": dict(r=2, lora_alpha=3, use_rslora=True, target_modules=["q_proj"],
                                      target_parameters=["mlp.experts.down_proj"]),
        "gate_up_parameter": dict(r=4, lora_alpha=4, target_modules=[],
                                  target_parameters=["mlp.experts.gate_up_proj"]),
        "parameter_patterns": dict(r=4, lora_alpha=4, target_modules=["v_proj"],
                                   target_parameters=["experts.gate_up_proj", "experts.down_proj"],
                                   rank_pattern={"experts.down_proj": 2, "gate_up_proj": 5},
                                   alpha_pattern={"mlp.experts.gate_up_proj": 7}),
        "per_expert_r3": dict(r=3, lora_alpha=6, target_modules=["w1", "w2", "w3", "v_proj"],
                              unfused=True),
        "some_experts": dict(r=2, lora_alpha=2, unfused=True,
                             target_modules=r".*layers\.1.*experts\.(0|3)\.w(1|2)",
                             rank_pattern={r"experts\.3\.w1": 5}),
    },
    "qwen2_moe": {
        "shared_expert_r3": dict(r=3, lora_alpha=5, target_modules=[
            "shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"]),
        "shared_gate_rslora": dict(r=2, lora_alpha=3, use_rslora=True,
                                   target_modules=["q_proj", "shared_expert_gate"]),
        # No target_parameters here: PEFT leaves the routed experts out, and keeps the dense layer.
        "mlp_r2": dict(r=2, lora_alpha=3, target_modules=MLP),
        "per_expert_r3": dict(r=3, lora_alpha=4, target_modules=MLP + ["shared_expert_gate"],
                              rank_pattern={"shared_expert.up_proj": 5}, unfused=True),
        "shared_down_and_parameters": dict(
            r=2, lora_alpha=3, target_modules=["shared_expert.down_proj", "o_proj"],
            target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
    },
    "qwen3_moe": {
        # What PEFT makes of target_modules gate_proj, up_proj, down_proj: patterns with twice the
        # rank and alpha for the fused gate_up_proj.
        "converted_r3": dict(r=3, lora_alpha=5, target_modules=MLP),
        "attention_and_parameters": dict(r=2, lora_alpha=3, target_modules=ATTENTION,
                                         target_parameters=["mlp.experts.gate_up_proj",
                                                            "mlp.experts.down_proj"]),
        "per_expert_rslora": dict(r=4, lora_alpha=3, use_rslora=True,
                                  target_modules=MLP + ["o_proj"], unfused=True),
    },
}


def fill_adapter(model, gen, dtype):
    """A and B as large as the base weights make it: the delta must be seen in every logit."""
    for name, weight in sorted(model.named_parameters()):
        if "lora_" in name:
            weight.data = draw(weight.shape, 0.35, gen, dtype)


def clean_config(config):
    """Sets have no order of their own; the path of this machine says nothing."""
    for field in ("target_modules", "target_parameters", "exclude_modules"):
        if isinstance(config.get(field), list):
            config[field].sort()
    config["base_model_name_or_path"] = Path(config["base_model_name_or_path"]).name
    return config


def save_adapter(model, folder, dtype, save_embeddings="auto"):
    model.save_pretrained(folder, save_embedding_layers=save_embeddings)
    (folder / "README.md").unlink(missing_ok=True)
    edit_json(folder / "adapter_config.json", clean_config)
    weights = folder / "adapter_model.safetensors"
    exact = load_file(weights)
    save_file({key: value.to(dtype) for key, value in exact.items()}, weights)
    return all(torch.equal(value.to(dtype).to(F32), value) for value in exact.values())


def base_for(name, unfused):
    model = load_model(name)
    if model.config.tie_word_embeddings:
        # Else merging an adapter of one of the two would change both.
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.data.clone())
    return unfuse_experts(model) if unfused else model


def make_adapter(model_name, name, fields):
    """Writes the adapter; returns it as PEFT reads it back."""
    fields = dict(fields)
    unfused, dtype = fields.pop("unfused", False), fields.pop("file_dtype", BF16)
    save_embeddings = fields.pop("save_embeddings", "auto")
    folder = FIXTURES / model_name / "adapters" / name
    with no_conversion() if unfused else contextlib.nullcontext():
        model = get_peft_model(base_for(model_name, unfused), LoraConfig(**fields))
        fill_adapter(model, generator(f"{model_name}/{name}"), dtype)
        exact = save_adapter(model, folder, dtype, save_embeddings)
        assert exact, f"{name}: rounded on its way to the disk"
        return PeftModel.from_pretrained(base_for(model_name, unfused), folder).eval()


# transformers' names of a matrix -> those of loratory, where they differ.
RENAMED = {"block_sparse_moe": "mlp", "w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def modules_of(model):
    """{"layers.0.self_attn.q_proj": [rank, scaling]}, as PEFT sees it."""
    modules = {}
    for path, layer in model.base_model.model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        parts = [RENAMED.get(part, part) for part in path.removeprefix("model.").split(".")
                 if part != "base_layer"]
        paths = [".".join(parts)]
        if isinstance(layer, ParamWrapper):
            halves = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
            paths = [f"{paths[0]}.{e}.{half}" for half in halves[layer.parameter_name]
                     for e in range(layer.num_experts)]
        for name in paths:
            modules[name] = [layer.r["default"], layer.scaling["default"]]
    return modules


# --- what they compute ----------------------------------------------------------------------

def logits_of(model, tokens):
    return model(input_ids=tokens[None]).logits[0]


def greedy(model, prompt):
    """The prompt and what follows it, with transformers' own loop and its KV cache."""
    out = model.generate(input_ids=prompt[None], attention_mask=torch.ones_like(prompt[None]),
                         max_new_tokens=NUM_TOKENS - len(prompt), do_sample=False, use_cache=True)
    return out[0]


def prompt_of(model, name):
    """The first and the last token of the vocabulary among random ones."""
    size, gen = model.config.vocab_size, generator(name)
    rest = torch.randint(size, (NUM_PROMPT - 2,), generator=gen)
    prompt = torch.cat([torch.tensor([0, size - 1]), rest])
    return prompt[torch.randperm(NUM_PROMPT, generator=gen)]


def router_margin(model, tokens):
    """The smallest distance between the last expert chosen and the first one not chosen."""
    margins = [torch.tensor(1.0)]

    def watch(router, _, out):
        p = out[0].softmax(-1).sort(descending=True).values
        margins.append((p[:, router.top_k - 1] - p[:, router.top_k]).min())

    hooks = [module.register_forward_hook(watch) for module in model.modules()
             if type(module).__name__.endswith("TopKRouter")]
    logits = logits_of(model, tokens)
    for hook in hooks:
        hook.remove()
    return logits, min(margins)


def decide(model, name):
    """A prompt whose greedy tokens, and experts, no rounding can change; what follows it."""
    for attempt in range(1000):
        prompt = prompt_of(model, f"{name} prompt {attempt}")
        if router_margin(model, prompt)[1] < SMALLEST_MARGIN:
            continue
        tokens = greedy(model, prompt)
        logits, margin = router_margin(model, tokens)
        best = logits[len(prompt) - 1:-1].topk(2).values
        if margin > SMALLEST_MARGIN and (best[:, 0] - best[:, 1]).min() > SMALLEST_GAP:
            return tokens, logits
    raise RuntimeError(f"{name}: no prompt without a close decision")


def record(expected, name, model, model_name):
    tokens, logits = decide(model, f"{model_name}/{name}")
    assert torch.equal(logits[NUM_PROMPT - 1:-1].argmax(-1), tokens[NUM_PROMPT:]), name
    expected[f"{name}.tokens"] = tokens.to(torch.int32)
    expected[f"{name}.logits"] = logits.contiguous()
    return tokens, logits


def make_fixture(model_name):
    base = make_model(model_name)
    expected = {"num_prompt": torch.tensor([NUM_PROMPT], dtype=torch.int32)}
    record(expected, "base", base, model_name)
    modules = {}
    for name, fields in ADAPTERS[model_name].items():
        model = make_adapter(model_name, name, fields)
        modules[name] = modules_of(model)
        tokens, logits = record(expected, name, model, model_name)
        apart = (logits - logits_of(base, tokens)).abs().max()
        if fields["lora_alpha"] != 0:
            assert apart > 1e-3, f"{model_name}/{name} changes too little: {apart}"
        merged = logits_of(model.merge_and_unload(), tokens)
        expected[f"{name}.merged_logits"] = merged.contiguous()
        print(f"{model_name}/{name}: delta {apart:.3g}, "
              f"merged differs by {(merged - logits).abs().max():.3g}")
    save_file(expected, FIXTURES / model_name / "expected.safetensors")
    path = FIXTURES / model_name / "expected_modules.json"
    path.write_text(json.dumps(modules, indent=1, sort_keys=True) + "\n")


# --- adapters to refuse ---------------------------------------------------------------------

REJECTED = {
    "dora": lambda: LoraConfig(r=1, use_dora=True, target_modules=["k_proj"]),
    "bias_lora_only": lambda: LoraConfig(r=1, bias="lora_only", target_modules=["q_proj"]),
    "bias_all": lambda: LoraConfig(r=1, bias="all", target_modules=["k_proj"]),
    "lora_bias": lambda: LoraConfig(r=1, lora_bias=True, target_modules=["k_proj"]),
    "modules_to_save": lambda: LoraConfig(r=1, target_modules=["k_proj"],
                                          modules_to_save=["lm_head"]),
    "trainable_tokens": lambda: LoraConfig(r=1, target_modules=["k_proj"],
                                           trainable_token_indices=[3, 5]),
    "layer_replication": lambda: LoraConfig(r=1, target_modules=["k_proj"],
                                            layer_replication=[[0, 2], [1, 2]]),
    "pissa": lambda: LoraConfig(r=1, target_modules=["k_proj"], init_lora_weights="pissa"),
    "ia3": lambda: peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]),
    "loha": lambda: peft.LoHaConfig(r=1, target_modules=["k_proj"]),
    "lokr": lambda: peft.LoKrConfig(r=1, target_modules=["k_proj"]),
    "adalora": lambda: peft.AdaLoraConfig(init_r=1, total_step=10, tinit=1, tfinal=1,
                                          target_modules=["k_proj"]),
    "vera": lambda: peft.VeraConfig(r=1, target_modules=["k_proj"], save_projection=False),
}


def make_rejected(name):
    torch.manual_seed(zlib.crc32(name.encode()))
    model = get_peft_model(base_for("llama3_tied_bias", False), REJECTED[name]())
    save_adapter(model, FIXTURES / "rejected" / name, F16)


def make_router():
    """PEFT's all-linear reaches the router of a mixture of experts."""
    torch.manual_seed(1)
    model = get_peft_model(base_for("qwen3_moe", False),
                           LoraConfig(r=1, target_modules="all-linear"))
    save_adapter(model, FIXTURES / "rejected" / "router", F16)


def check_versions():
    wanted = dict(line.split("==") for line in
                  (Path(__file__).parent / "requirements.txt").read_text().split())
    for module in (torch, transformers, peft):
        found = module.__version__.split("+")[0]
        if found != wanted[module.__name__]:
            sys.exit(f"{module.__name__} {found}, but requirements.txt says "
                     f"{wanted[module.__name__]}")


def main():
    check_versions()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    shutil.rmtree(FIXTURES, ignore_errors=True)
    for name in MODELS:
        make_fixture(name)
    for name in REJECTED:
        make_rejected(name)
    make_router()


if __name__ == "__main__":
    main()
