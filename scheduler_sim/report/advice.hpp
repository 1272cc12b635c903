#pragma once

#include <string>

#include "scheduler_sim/sizing/size_result.hpp"

/// The words for what sizing found: one phrase a row, and the sentences under the table. The
/// console, the page and the files share them.
namespace loratory::sim::report {

/// "meets the SLO", "TTFT 4.0x: slots", "TPOT 1.3x in 1 of 3 seeds: KV cache", or why it does not
/// fit. Of a row whose cause nobody has looked for, what its late requests waited for.
std::string verdict_text(const ConfigResult& config);

/// "slots", "adapter loads", ...: "" for none.
std::string cause_word(CauseKind kind);
/// The name of a kind in files: "slots", "loads", "load_peaks", ...
const char* name_of(CauseKind kind);

/// "1.3x the limit, because ...", with the figures that show it.
std::string cause_sentence(const Cause& cause, const Slo& slo);

/// Why this configuration, or why none.
std::string reason(const SizeResult& result);
/// What limits next, or what would meet the SLO where nothing does.
std::string next_limit(const SizeResult& result);
/// The base model alone and all adapters resident: what sizes are measured against. Empty if they
/// were not replayed.
std::string yardstick_sentence(const SizeResult& result);
/// How to give the trace adapters if it has none; else empty.
std::string about_adapters(const SizeResult& result);
/// How far to trust the figures.
std::string caveat(const SizeResult& result);

/// "1.22x", "1.004x" (never "1.00x" for a miss), "5.3x", "over 100x", "under 0.1x".
std::string factor_text(double factor);
/// Of the rate: as factor_text, and "15x or more" at the end of what was tried.
std::string headroom_text(double headroom);
/// "6 %", "under 1 %", "over 99 %", "none", "all".
std::string share_text(double share);

}  // namespace loratory::sim::report
