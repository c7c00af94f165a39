#include "bench/sessions/call_costs.h"

#include <string>
#include <utility>

#include "bench/parts/own_server.h"
#include "bench/report/table.h"
#include "client/lib/client.h"

namespace lintel::bench {

std::vector<SessionFigure> call_costs(const std::shared_ptr<const Transformer>& model,
                                      std::int64_t num_values, int repeats, int count) {
  const OwnServer server(model, {});
  const Client client({.address = server.address()});
  const std::string id = client.create_session("model", num_values).id();
  v1::GenerateRequest generate;
  generate.set_session_id(id);
  generate.set_max_new_tokens(static_cast<std::uint32_t>(num_values));
  client.generate(generate);
  v1::SnapshotSessionRequest request;
  request.set_id(id);
  const std::string bytes = client.snapshot_session(request);

  Repeats smallest, snapshot, restore;
  for (int r = 0; r < repeats; ++r) {
    smallest.add(quantile(microseconds_of(count, [&] { client.get_session(id); }), 0.5));
    snapshot.add(quantile(microseconds_of(count, [&] { client.snapshot_session(request); }), 0.5));
    std::vector<double> restores;
    for (int i = 0; i < count; ++i) {
      std::string made;
      restores.push_back(
          microseconds_of(1, [&] { made = client.restore_session({}, bytes).id(); })[0]);
      client.delete_session(made);
    }
    restore.add(quantile(restores, 0.5));
  }
  const std::string beside = "a call of nothing " + format_number(smallest.median(), 2) + " us";
  const char* const others = "ai00: states as JSON; llama.cpp refuses recurrent ones (issue 8220)";
  return {
      {"snapshot_call_us", "Snapshot over loopback", "us", snapshot.summary(), 500, beside, others},
      {"restore_call_us", "Restore over loopback", "us", restore.summary(), 500, beside, others}};
}

}  // namespace lintel::bench
