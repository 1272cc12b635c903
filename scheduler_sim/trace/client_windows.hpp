#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loratory::sim {

/// Law of the gaps between the requests of one client in one window.
enum class GapLaw : uint8_t {
  none,     ///< too few requests to fit one: take the rate as Poisson
  gamma,    ///< shape k, scale theta: mean k * theta seconds
  weibull,  ///< shape k, scale lambda: mean lambda * Gamma(1 + 1/k) seconds
};

/// Request rate of one client during one window of 600 s. Not a request log: ServeGen publishes,
/// per client, how often it asked and how bursty it was.
struct ClientWindow {
  std::string category;  ///< language, multimodal, reason
  std::string model;     ///< m-large, m-mid, ...; clients are numbered per (category, model)
  uint32_t client_id = 0;
  int64_t window_start_s = 0;
  double rate_rps = 0;  ///< requests per second, >= 0
  double cv = 0;        ///< standard deviation / mean of the gaps; 0 = unknown
  GapLaw pattern = GapLaw::none;
  double shape = 0;  ///< of `pattern`; 0 when it is kNone
  double scale = 0;  ///< seconds, of `pattern`; 0 when it is kNone

  friend bool operator==(const ClientWindow&, const ClientWindow&) = default;
};

/// Reads a CSV `category,model,client_id,window_start_s,rate_rps,cv,pattern,shape,scale` in file
/// order; plain, gzip or zstd, "-" is stdin. The last four may be empty. Throws InputError at
/// `file:line:column`. The same bytes always give the same windows. Data: alibaba/ServeGen.
std::vector<ClientWindow> read_client_windows(const std::string& path);

/// The same from bytes in memory; `name` stands for the file in error messages.
std::vector<ClientWindow> read_client_windows_from(std::string_view bytes, std::string_view name);

}  // namespace loratory::sim
