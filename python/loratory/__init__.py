"""Multi-LoRA serving: what a LoRA kernel must compute, whether somebody's does, and how many
adapters a deployment can hold. docs/python.md is the manual."""
from loratory.adapters import (Adapter, BaseModelShapes, LoraModule, base_model_shapes,
                               load_adapter, model_names)
from loratory.arrays import numpy_dtype
from loratory.bounds import (FP32_UNIT, TENSOR_CORE_UNIT, Bounds, embedding_bounds, linear_bounds,
                             unit_roundoff)
from loratory.cases import LoraCase, Verdict, assert_matches_reference, draw_labels
from loratory.checking import (CheckResult, Claims, Finding, Layer, Report, check,
                            check_names)
from loratory.errors import AdapterError, InputError, ProgramError
from loratory.experts import ExpertRows, expert_expand, expert_linear, expert_shrink
from loratory.layouts import (BatchLayout, ChunkedLayout, RequestLayout, RequestTokens,
                              SampledRequest, SamplerMapping, batch_layout, chunked_layout,
                              request_layout, sampler_mapping, token_slots)
from loratory.modes import DEFAULT_MODE, SGLANG_MODE, TOKENSPEED_MODE, VLLM_MODE, NumericMode
from loratory.operations import embedding, expand, linear, logits, lora_scaling, shrink
from loratory.quantized import expand_quantized, linear_quantized, quantize, shrink_quantized
from loratory.results import ConfigResult, Results, load_results
from loratory.simulate import replay, size
from loratory.traces import Trace, parse_trace, read_trace, trace_formats

__version__ = "0.1.0"

__all__ = [
    "Adapter", "AdapterError", "BaseModelShapes", "BatchLayout", "Bounds", "CheckResult",
    "ChunkedLayout", "Claims", "ConfigResult", "DEFAULT_MODE", "ExpertRows", "FP32_UNIT", "Finding",
    "InputError", "Layer", "LoraCase", "LoraModule", "NumericMode", "ProgramError", "Report",
    "RequestLayout", "RequestTokens", "Results", "SGLANG_MODE", "SampledRequest", "SamplerMapping",
    "TENSOR_CORE_UNIT", "TOKENSPEED_MODE", "Trace", "VLLM_MODE", "Verdict",
    "assert_matches_reference", "base_model_shapes", "batch_layout", "check", "check_names",
    "chunked_layout", "draw_labels", "embedding", "embedding_bounds", "expand", "expand_quantized",
    "expert_expand", "expert_linear", "expert_shrink", "linear", "linear_bounds",
    "linear_quantized", "load_adapter", "load_results", "logits", "lora_scaling", "model_names",
    "numpy_dtype", "parse_trace", "quantize", "read_trace", "replay", "request_layout",
    "sampler_mapping", "shrink", "shrink_quantized", "size", "token_slots", "trace_formats",
    "unit_roundoff",
]
