#include "bench/call_costs.h"

#include <string>
#include <utility>

#include "bench/own_server.h"
#include "bench/table.h"
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

std::vector<SessionFigure> prefix_costs(const std::shared_ptr<const Transformer>& model,
                                        std::int64_t num_values, int repeats) {
  constexpr int kRequests = 64;
  const OwnServer server(model, {});
  const Client client({.address = server.address()});
  v1::GenerateRequest request;
  request.set_max_new_tokens(1);
  auto& prompt = *request.mutable_prompt()->mutable_tokens()->mutable_ids();
  prompt.Resize(static_cast<int>(num_values), 0);
  const int vocab_size = model->head().num_values();

  Repeats missed, hit, miss;
  for (int r = 0; r < repeats; ++r) {
    // Another beginning each time, of which nothing is known.
    for (int i = 0; i < prompt.size(); ++i) prompt[i] = (i * (r + 3) + r) % vocab_size;
    std::vector<double> hits, misses;
    for (int i = 0; i < kRequests; ++i) {
      prompt[prompt.size() - 1] = i % vocab_size;
      std::vector<v1::SampleFinish> finished;
      const double took = 1e-3 * microseconds_of(1, [&] {
                            finished = client.generate(request, [](const v1::Chunk&) {});
                          })[0];
      (finished.at(0).cached_tokens() > 0 ? hits : misses).push_back(took);
    }
    missed.add(static_cast<double>(misses.size()));
    if (!hits.empty()) hit.add(quantile(hits, 0.5));
    if (!misses.empty()) miss.add(quantile(misses, 0.5));
  }
  std::vector<SessionFigure> figures = {
      {"prefix_misses",
       "prompts read from their beginning, of " + std::to_string(kRequests) +
           " that share all but the last of " + std::to_string(num_values) + " values",
       "calls", missed.summary(), 2, "", "vLLM with blocks: none or 52 of 64 hit (issue 45238)"}};
  if (!hit.empty() && !miss.empty()) {
    figures.push_back({"prefix_call_ms",
                       "a call of one value behind a prompt that came before",
                       "ms",
                       hit.summary(),
                       {},
                       "behind one that is read " + format_number(miss.median(), 3) + " ms",
                       ""});
  }
  return figures;
}

}  // namespace lintel::bench
