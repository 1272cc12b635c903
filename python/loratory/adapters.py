"""PEFT adapters as an engine must read them. docs/adapters.md."""
from __future__ import annotations

import os

from loratory import _loratory
from loratory._loratory import BaseModelShapes
from loratory.arrays import Dtype, NumpyArray, from_bits

__all__ = ["Adapter", "LoraModule", "BaseModelShapes", "load_adapter", "base_model_shapes",
           "model_names"]


class LoraModule:
    """The delta of one matrix of the base model, of shape [N, K]: scaling · B · A."""

    def __init__(self, module: _loratory.Module) -> None:
        self._module = module
        self.name: str = module.name
        """"layers.3.self_attn.q_proj", "layers.0.mlp.experts.5.down_proj", "lm_head\""""
        self.layer: int = module.layer
        """-1: embed_tokens and lm_head"""
        self.expert: int = module.expert
        """-1: not in an expert"""
        self.projection: str = module.projection
        self.rank: int = module.rank
        self.scaling: float = module.scaling

    @property
    def a(self) -> NumpyArray:
        """[rank, K] in the file's dtype: a view of the mapped file, read-only."""
        return from_bits(self._module.a())

    @property
    def b(self) -> NumpyArray:
        """[N, rank], likewise."""
        return from_bits(self._module.b())

    def dequantized_a(self) -> NumpyArray:
        """[rank, K] in fp32: a itself, or bits · factor of fp8."""
        return self._module.dequantized_a()

    def dequantized_b(self) -> NumpyArray:
        """[N, rank], likewise."""
        return self._module.dequantized_b()

    def __repr__(self) -> str:
        return f"LoraModule({self.name}, rank={self.rank}, scaling={self.scaling})"


class Adapter:
    """An adapter as loaded; its file stays mapped as long as anything of it is used."""

    def __init__(self, adapter: _loratory.Adapter) -> None:
        self.modules: list[LoraModule] = [LoraModule(module) for module in adapter.modules]
        """sorted by layer, expert and projection"""
        self.rank: int = adapter.rank
        """the largest of the modules"""
        self.alpha: float = adapter.alpha
        self.use_rslora: bool = adapter.use_rslora
        self.base_model_name: str = adapter.base_model_name
        self.warnings: list[str] = adapter.warnings
        self._by_name = {module.name: module for module in self.modules}

    def find(self, name: str) -> LoraModule | None:
        """The module "layers.3.self_attn.q_proj"; None: this adapter leaves it as it is."""
        return self._by_name.get(name)


def model_names() -> list[str]:
    """Models that are known by name."""
    return _loratory.model_names()


def base_model_shapes(model: str | os.PathLike[str]) -> BaseModelShapes:
    """What an adapter must know of its base model: a name of model_names(), or the path of a
    config.json. Errors: InputError naming the file and the key."""
    return _loratory.base_model_shapes(os.fspath(model))


def load_adapter(directory: str | os.PathLike[str],
                 model: BaseModelShapes | str | os.PathLike[str], *, strict: bool = True,
                 max_lora_rank: int = 512, check_finite: bool = True, engine_dtype: Dtype = "f32",
                 assume_residual_base: bool = False) -> Adapter:
    """A PEFT directory: adapter_config.json and adapter_model.safetensors.

    model                 the base model: shapes, a name, or the path of a config.json
    strict                unmatched keys are errors (E_KEY); else warnings
    max_lora_rank         above it: E_RANK
    check_finite          look at every weight: E_NONFINITE
    engine_dtype          weights that overflow when cast to it: E_NONFINITE
    assume_residual_base  accept adapters whose initialisation replaced the base weights

    Errors: AdapterError with code, detail and key; either the whole adapter or nothing.
    """
    shapes = model if isinstance(model, BaseModelShapes) else base_model_shapes(model)
    return Adapter(_loratory.load_adapter(os.fspath(directory), shapes, strict, max_lora_rank,
                                          check_finite, engine_dtype, assume_residual_base))
