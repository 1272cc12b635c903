"""Tables of lora_bench.json."""

import math

BEFORE = "before"  # the name of another build of ours
_NOISE = 1.02  # as much may two runs of one build differ


def _times(row, kinds, temperature="cold"):
    """[(us, name)] of the implementations of these kinds, best first."""
    return sorted((result[temperature]["median_us"], name)
                  for name, result in row["implementations"].items()
                  if result.get("kind") in kinds and temperature in result)


def _us(row, name, temperature="cold"):
    result = row["implementations"].get(name, {})
    return result[temperature]["median_us"] if temperature in result else math.nan


def _rms(row, names):
    found = [row["implementations"][n]["rms_error"] for n in names
             if "rms_error" in row["implementations"].get(n, {})]
    return min(found, default=math.nan)


def figures(row):
    """What a line says of a row; NaN or "-" where there is nothing."""
    shipped, any_ = _times(row, {"shipped"}), _times(row, {"shipped", "yardstick"})
    ours_name = "loratory_fp8" if row.get("weights") == "fp8" else "loratory"
    ours = _us(row, ours_name)
    shipped_us, shipped_name = shipped[0] if shipped else (math.nan, "-")
    any_us, any_name = any_[0] if any_ else (math.nan, "-")
    return {"mb": row["min_bytes"] / 1e6, "read_node": _us(row, "read_node"), "ours": ours,
            "ours_warm": _us(row, ours_name, "warm"), "serial": _us(row, "loratory_serial"),
            "shipped": shipped_us, "shipped_name": shipped_name,
            "shipped_warm": _us(row, shipped_name, "warm"), "any": any_us, "any_name": any_name,
            "to_shipped": shipped_us / ours, "to_any": any_us / ours,
            "ours_rms": _rms(row, [ours_name]),
            "peers_rms": _rms(row, [name for _, name in shipped])}


_COLUMNS = [("min MB", "{mb:.2f}"), ("read", "{read_node:.2f}"), ("ours", "{ours:.2f}"),
            ("(warm)", "({ours_warm:.2f})"), ("serial", "{serial:.2f}"),
            ("best shipped", "{shipped_name}"), ("cold", "{shipped:.2f}"),
            ("(warm)", "({shipped_warm:.2f})"), ("/ours", "{to_shipped:.2f}"),
            ("best of any", "{any_name}"), ("cold", "{any:.2f}"), ("/ours", "{to_any:.2f}"),
            ("rms ours", "{ours_rms:.1e}"), ("peers", "{peers_rms:.1e}")]
_WIDTHS = [7, 6, 7, 9, 7, 14, 7, 9, 6, 14, 7, 6, 9, 9]
_NAME = 44


def _cells(row):
    values = figures(row)
    return [text.format(**values).replace("nan", "-") for _, text in _COLUMNS]


def _aligned(name, cells):
    return f"{name:<{_NAME}}" + "".join(f"{c:>{w}}" for c, w in zip(cells, _WIDTHS))


def header():
    return ("cold us of an operation in a CUDA graph (warm in brackets); /ours: theirs by ours; "
            "rms of the error by that of the result\n"
            + _aligned("", [title for title, _ in _COLUMNS]))


def line(name, row):
    notes = [f"    {other}: {result['error']}"
             for other, result in row["implementations"].items() if "error" in result]
    return "\n".join([_aligned(name, _cells(row))] + notes)


def _geometric_mean(values):
    values = [v for v in values if not math.isnan(v)]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def summary(data):
    def is_fp8(row):
        return row.get("weights") == "fp8"

    out = []
    for title, wanted in [("decode pairs", lambda r: r["kind"] == "D" and r["op"] == "pair" and
                           not is_fp8(r)),
                          ("prefill pairs", lambda r: r["kind"] != "D" and r["op"] == "pair" and
                           not is_fp8(r)),
                          ("rows of fp8", is_fp8),
                          ("all rows", lambda r: True)]:
        chosen = [figures(row) for row in data["rows"].values() if wanted(row)]
        means = [_geometric_mean([f[key] for f in chosen]) for key in ("to_shipped", "to_any")]
        if not all(map(math.isnan, means)):
            out.append(f"geometric mean, {title}: best shipped peer / ours {means[0]:.2f}, "
                       f"best of anything / ours {means[1]:.2f}")
    return "\n".join(filter(None, [*out, before_line(data)]))


def _table(heads, lines):
    bar = "|" + "|".join(" --- " if i == 0 else " ---: " for i in range(len(heads))) + "|"
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heads]) + "\n" + bar + "\n" + \
        "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _every(data, temperature):
    names = list(dict.fromkeys(n for row in data["rows"].values() for n in row["implementations"]))
    lines = []
    for name, row in data["rows"].items():
        cells = []
        for other in names:
            result = row["implementations"].get(other, {})
            time = result.get(temperature)
            cells.append(f"{time['median_us']:.2f} ({time['p10_us']:.2f}-{time['p90_us']:.2f})"
                         if time else "wrong" if "ArithmeticError" in result.get("error", "")
                         else "failed" if "error" in result else "-")
        lines.append([name] + cells)
    return _table(["us"] + names, lines)


_FP8_COLUMNS = ("read_node", "loratory_fp8", "loratory_w8a8", "loratory", "vllm_fp8")


def fp8_table(data):
    """Rows in 8 bits: cold us, and what bf16 and vLLM take by ours; "" if there are none."""
    lines = []
    for name, row in data["rows"].items():
        if row.get("weights") != "fp8":
            continue
        read, ours, w8a8, wide, vllm = (_us(row, column) for column in _FP8_COLUMNS)
        values = [read, ours, w8a8, wide, wide / ours, vllm, vllm / ours, vllm / w8a8]
        lines.append([name] + [f"{v:.2f}".replace("nan", "-") for v in values])
    heads = ["row", "read", "w8a16", "w8a8", "bf16", "bf16 / w8a16", "vLLM w8a8", "/ w8a16",
             "/ w8a8"]
    return _table(heads, lines) if lines else ""


def _beside_before(data):
    """[(row, implementation, us before, us now)] of what both builds of ours were timed with."""
    return [(name, ours, before, now) for name, row in data["rows"].items()
            for ours in ("loratory", "loratory_serial", "loratory_fp8", "loratory_w8a8")
            for now, before in [(_us(row, ours), _us(row, ours.replace("loratory", BEFORE)))]
            if not math.isnan(now + before)]


def before_line(data):
    """What is slower than in the build before, the worst first; "" if there is one build alone."""
    pairs = _beside_before(data)
    if not pairs:
        return ""
    mean = _geometric_mean([now / before for _, _, before, now in pairs])
    slower = sorted(((now / before, name, ours) for name, ours, before, now in pairs
                     if now > _NOISE * before), reverse=True)
    return (f"geometric mean, now / before {mean:.3f}; slower by more than {_NOISE - 1:.0%}: "
            + (", ".join(f"{name} {ours} {ratio:.3f}" for ratio, name, ours in slower) or "none"))


def before_table(data):
    """Cold us of both builds; "" if there is one alone."""
    lines = [[name, ours, f"{before:.2f}", f"{now:.2f}", f"{now / before:.3f}"]
             for name, ours, before, now in _beside_before(data)]
    heads = ["row", "implementation", "before", "now", "now / before"]
    return _table(heads, lines) if lines else ""


def _told(value):
    if not isinstance(value, dict):
        return value
    return ", ".join(f"{name} {version}" for name, version in value.items())


def markdown(data):
    about = data["about"]
    told = [f"- {key}: {_told(value)}" for key, value in about.items() if value]
    failures = [f"- {row_name}, {name}: `{result['error']}`"
                for row_name, row in data["rows"].items()
                for name, result in row["implementations"].items() if "error" in result]
    parts = ["# LoRA kernels against their peers", "\n".join(told),
             "Microseconds of an operation, cold; one CUDA graph of many chained operations, "
             "median over the replays. /ours: theirs by ours. rms: of the error against float64, "
             "by that of the result.",
             _table(["row"] + [title for title, _ in _COLUMNS],
                    [[name] + _cells(row) for name, row in data["rows"].items()]),
             summary(data),
             *(["## In 8 bits, cold us", table] if (table := fp8_table(data)) else []),
             *(["## Beside the build before, cold us", table] if (table := before_table(data))
               else []),
             "## Everything, cold: median (p10-p90)", _every(data, "cold"),
             "## Everything, warm", _every(data, "warm")]
    if failures:
        parts += ["## What did not work", "\n".join(failures)]
    return "\n\n".join(parts) + "\n"
