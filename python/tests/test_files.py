"""Layouts, adapters, traces, replays and their results."""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import threading
import time

import numpy as np
import pytest

import loratory as lt
from loratory import program, results


def test_batch_layout_is_vllms() -> None:
    layout = lt.batch_layout([2, -1, 0, 2], 3, num_padded_tokens=6)
    assert layout.token_lora_mapping.tolist() == [2, -1, 0, 2, -1, -1]
    assert layout.token_indices_sorted.tolist() == [1, 4, 5, 2, 0, 3]
    assert layout.active_lora_ids.tolist() == [-1, 0, 2, -1]
    assert layout.num_tokens_per_lora.tolist() == [3, 1, 2, 0]
    assert layout.lora_token_start_loc.tolist() == [0, 3, 4, 6, 0]
    assert layout.num_active == 4 and not layout.no_lora
    with pytest.raises(lt.InputError, match="slot 3"):
        lt.batch_layout([3], 3)


def test_counts_of_layouts_are_not_negative() -> None:
    with pytest.raises(lt.InputError, match="^max_loras: -1 is negative"):
        lt.batch_layout([], -1, num_padded_tokens=3)
    for refused in (lambda: lt.token_slots([(0, -1)]),
                    lambda: lt.chunked_layout([(0, -1)], 16, [8], [1.0]),
                    lambda: lt.request_layout([(0, -1)], [8], [1.0]),
                    lambda: lt.sampler_mapping([lt.SampledRequest(0, -1)])):
        with pytest.raises(lt.InputError, match=r"^requests\[0\]: has -1 tokens$"):
            refused()


def test_other_layouts() -> None:
    requests = [lt.RequestTokens(1, 3), lt.RequestTokens(0, 1), (1, 2)]
    assert lt.token_slots(requests).tolist() == [1, 1, 1, 0, 1, 1]
    chunked = lt.chunked_layout(requests, 2, [8, 4], [1.0, 2.0])
    assert chunked.permutation.tolist() == [3, 0, 1, 2, 4, 5]
    assert sorted(np.diff(chunked.seg_indptr).tolist()) == [1, 1, 2, 2]
    assert lt.request_layout(requests, [8, 4], [1.0, 2.0]).seg_lens.tolist() == [3, 1, 2]
    rows = lt.sampler_mapping([lt.SampledRequest(1, 3, samples=True), lt.SampledRequest(0, 2)])
    assert rows.row_slots.tolist() == [1] and rows.row_tokens.tolist() == [2]


def stored(path: pathlib.Path) -> dict[str, tuple[str, list[int], bytes]]:
    """The tensors of a safetensors file, read by hand."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    return {name: (entry["dtype"], entry["shape"],
                   data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items() if name != "__metadata__"}


@pytest.mark.parametrize("name", ["qv_r4", "embed_tokens_r3_f16"])
def test_an_adapter_has_the_bits_of_its_file(fixtures: pathlib.Path, name: str) -> None:
    directory = fixtures / "llama_gqa" / "adapters" / name
    adapter = lt.load_adapter(directory, fixtures / "llama_gqa" / "config.json")
    tensors = stored(directory / "adapter_model.safetensors")
    tensors = {key: tensor for key, tensor in tensors.items() if "lora_" in key}
    assert adapter.modules and 2 * len(adapter.modules) == len(tensors)
    for module in adapter.modules:
        a_name = next(key for key in tensors if module.name in key and "_A" in key)
        dtype, shape, data = tensors[a_name]
        assert module.a.tobytes() == data and list(module.a.shape) == shape
        assert np.array_equal(module.dequantized_a(), module.a.astype(np.float32))
        assert module.rank == shape[0] == module.b.shape[1]
        assert adapter.find(module.name) is module
    first = adapter.modules[0].a
    del adapter, module
    assert np.isfinite(first.astype(np.float32)).all()  # the file is still mapped
    with pytest.raises(ValueError):
        first[0, 0] = 1


def test_why_an_adapter_is_refused(fixtures: pathlib.Path) -> None:
    with pytest.raises(lt.AdapterError) as refused:
        lt.load_adapter(fixtures / "rejected" / "dora", fixtures / "llama_gqa" / "config.json")
    assert (refused.value.code, refused.value.detail) == ("E_UNSUPPORTED", "dora")
    assert str(refused.value).startswith("E_UNSUPPORTED(dora): ")
    assert isinstance(refused.value, lt.InputError)
    assert lt.base_model_shapes("Llama-3.1-8B").hidden == 4096
    with pytest.raises(lt.InputError, match="no-such-model"):
        lt.base_model_shapes("no-such-model")


ROWS = """{"arrival_ms": 0, "prompt_tokens": 20, "output_tokens": 3, "adapter": "a"}
{"arrival_ms": 5, "prompt_tokens": 30, "output_tokens": 4}
"""


def test_a_trace_is_columns(tmp_path: pathlib.Path) -> None:
    trace = lt.parse_trace(ROWS)
    assert len(trace) == 2
    assert trace.arrival_ns.tolist() == [0, 5_000_000]
    assert trace.prompt_tokens.tolist() == [20, 30]
    assert trace.adapter.tolist() == [0, -1] and trace.adapters[0].name == "a"
    trace.save(tmp_path / "trace.jsonl.zst")
    again = lt.read_trace(tmp_path / "trace.jsonl.zst")
    for name in ("arrival_ns", "cancel_ns", "prompt_tokens", "output_tokens", "adapter"):
        assert np.array_equal(getattr(again, name), getattr(trace, name)), name
    assert again.summary() == trace.summary()
    assert again.summary().prompt.max == 30


def test_a_bad_row_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "bad.jsonl").write_text(
        ROWS + '{"arrival_ms": 6, "prompt_tokens": 0, "output_tokens": 1}\n')
    with pytest.raises(lt.InputError, match=r"bad\.jsonl:3:\d+: "):
        lt.read_trace(tmp_path / "bad.jsonl")
    assert lt.read_trace(tmp_path / "bad.jsonl", skip_bad_rows=True).num_rows_skipped == 1
    with pytest.raises(lt.InputError, match="--format"):
        lt.read_trace(tmp_path / "bad.jsonl", format="excel")
    assert "mooncake" in lt.trace_formats()


@pytest.fixture(scope="module")
def small_trace(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """300 requests for 8 adapters in a minute."""
    rows = [{"arrival_ms": 200 * i, "prompt_tokens": 100 + i % 7 * 50, "output_tokens": 20 + i % 5,
             "adapter": f"a{i * i % 8}"} for i in range(300)]
    path = tmp_path_factory.mktemp("traces") / "small.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_replay_from_a_file_and_from_memory(small_trace: pathlib.Path) -> None:
    result = lt.replay(small_trace, max_loras=4, gpu="L40S", seed=3)
    assert result.best is result.configs[0] and result.best.max_loras == 4
    assert result.best.num_requests == result.workload.num_requests == 300
    assert result.best.p50_ttft_ms is not None and 0 < result.best.p50_ttft_ms < 1e4
    assert "max_loras" in result.table or "max-loras" in result.table
    given = {setting.name: setting.value for setting in result.settings if setting.given}
    assert given["gpu"] == "L40S" and given["max-loras"] == "4"
    again = lt.replay(lt.read_trace(small_trace), max_loras=4, gpu="L40S", seed=3)
    assert again.best is not None
    assert again.best.event_log_hash == result.best.event_log_hash


def test_every_field_of_results_json_has_its_place(small_trace: pathlib.Path) -> None:
    """A field that the program writes and the dataclasses lack would be in `extra`."""
    replay = lt.replay(small_trace, max_loras=4)
    sized = lt.size(small_trace, max_loras=[2, 4], slo_ttft_ms=1000, slo_tpot_ms=100)
    misses = lt.size(small_trace, max_loras=[1], slo_ttft_ms=1, no_headroom=True)
    fleet = lt.size(small_trace, max_loras="4", replicas="auto", slo_ttft_ms=1000, slo_tpot_ms=100)
    assert [r.extra for r in (replay, sized, misses, fleet)] == [{}] * 4
    assert sized.best is not None and sized.reason and sized.yardsticks is not None
    assert misses.best is None and misses.remedies and misses.configs[0].cause is not None
    assert fleet.fleets and fleet.best is not None and fleet.best.num_replicas >= 1


def test_results_are_read_back(small_trace: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = program.run_program(["replay", f"--trace={small_trace}", "--max-loras=4",
                                f"--json={tmp_path / 'r.json'}"])
    assert done.exit_code == 0 and done.stdout
    result = lt.load_results(tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text())
    names = {field.name for field in dataclasses.fields(results.ConfigResult)}
    assert document["configs"][0].keys() <= names
    for name, value in document["configs"][0].items():
        if name != "cause":
            assert getattr(result.configs[0], name) == value, name
    document["configs"][0]["brand_new"] = 1
    (tmp_path / "new.json").write_text(json.dumps(document))
    assert lt.load_results(tmp_path / "new.json").extra == {"configs.brand_new": 1}
    document["schema"] = "loratory.results/9"
    (tmp_path / "old.json").write_text(json.dumps(document))
    with pytest.raises(lt.InputError, match="loratory.results/9"):
        lt.load_results(tmp_path / "old.json")


def test_bad_flags_are_the_programs_own_line(small_trace: pathlib.Path) -> None:
    with pytest.raises(lt.InputError, match="^--max-loras"):
        lt.replay(small_trace, max_loras=-1)
    with pytest.raises(lt.InputError, match="no-such-file"):
        lt.replay("no-such-file.jsonl")
    with pytest.raises(lt.InputError, match="max-lorsa"):
        lt.replay(small_trace, max_lorsa=4)


def test_ctrl_c_ends_the_program(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                 sigint: None) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    script = tmp_path / "program"
    script.write_text(f"#!/bin/sh\ntrap 'touch {ended}; exit 130' INT\ntouch {begun}\n"
                      "while :; do sleep 0.01; done\n")
    script.chmod(0o755)
    monkeypatch.setattr(program, "program_path", lambda: script)

    def interrupt() -> None:
        while not begun.exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        program.run_program(["size"])
    thread.join()
    assert ended.exists()
