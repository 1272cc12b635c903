#include "scheduler_sim/workload/client_load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

constexpr int64_t kWindowS = kClientWindowNs / 1'000'000'000;
constexpr int64_t kMaxWindows = 60'000;  // more than a year: a sane table, and a bounded matrix

struct Client {
  std::string name;
  double total_rate = 0;
  std::vector<const ClientWindow*> rows;
};

// The clients in order of first appearance.
std::vector<Client> group_by_client(const std::vector<ClientWindow>& table,
                                    std::string_view model) {
  std::vector<Client> clients;
  std::map<std::tuple<std::string_view, std::string_view, uint32_t>, size_t> index_of;
  for (const ClientWindow& row : table) {
    if (!model.empty() && row.model != model) continue;
    const auto [it, is_new] =
        index_of.try_emplace({row.category, row.model, row.client_id}, clients.size());
    if (is_new) clients.push_back({fmt::format("{}-{}", row.model, row.client_id), 0, {}});
    Client& client = clients[it->second];
    client.total_rate += row.rate_rps;
    client.rows.push_back(&row);
  }
  return clients;
}

std::pair<int64_t, int64_t> first_and_last_window(const std::vector<Client>& clients) {
  int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
  for (const Client& client : clients) {
    for (const ClientWindow* row : client.rows) {
      first = std::min(first, row->window_start_s / kWindowS);
      last = std::max(last, row->window_start_s / kWindowS);
    }
  }
  return {first, last};
}

}  // namespace

ClientLoad make_client_load(const std::vector<ClientWindow>& table, std::string_view model,
                            uint32_t max_clients, std::string_view place) {
  std::vector<Client> clients = group_by_client(table, model);
  std::erase_if(clients, [](const Client& c) { return c.total_rate <= 0; });
  if (clients.empty()) {
    throw InputError(place, fmt::format("no client of model '{}' has a rate > 0", model),
                     "name a model of the table after '#', or leave it out for all");
  }
  std::stable_sort(clients.begin(), clients.end(),
                   [](const Client& a, const Client& b) { return a.total_rate > b.total_rate; });
  if (max_clients != 0 && max_clients < clients.size()) clients.resize(max_clients);

  const auto [first, last] = first_and_last_window(clients);
  if (last / 2 - first / 2 >= kMaxWindows / 2) {
    throw InputError(place, "the windows span more than a year", "cut the table to what is needed");
  }
  ClientLoad load;
  load.windows.assign(size_t(last - first + 1), std::vector<ClientLoad::Cell>(clients.size()));
  for (size_t i = 0; i < clients.size(); ++i) {
    load.names.push_back(clients[i].name);
    for (const ClientWindow* row : clients[i].rows) {
      const int64_t window = row->window_start_s / kWindowS - first;
      load.windows[size_t(window)][i] = {row->rate_rps, row->pattern, row->shape};
    }
  }
  return load;
}

}  // namespace loratory::sim
