#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_sim/trace/client_windows.hpp"

namespace loratory::sim {

/// Length of a client window of ServeGen.
inline constexpr int64_t kClientWindowNs = 600'000'000'000;

/// Rate and gap law of every client in every window: the table of ServeGen as a matrix.
struct ClientLoad {
  struct Cell {
    double rate_rps = 0;
    GapLaw law = GapLaw::none;
    double shape = 0;  ///< of `law`; its scale follows from the rate
  };
  std::vector<std::string> names;          ///< `<model>-<client_id>`, the busiest client first
  std::vector<std::vector<Cell>> windows;  ///< [window][client]; window 0 begins at time 0
};

/// The `max_clients` (0: all) busiest clients of `model` (empty: of every model). Ties keep the
/// order of the table. The fitted scale is not used: scale x shape often misses the measured rate,
/// and the rate is the datum. Throws InputError at `place` when no client is left.
ClientLoad make_client_load(const std::vector<ClientWindow>& table, std::string_view model,
                            uint32_t max_clients, std::string_view place);

}  // namespace loratory::sim
