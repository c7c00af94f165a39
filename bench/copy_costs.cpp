#include "bench/copy_costs.h"

#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bench/table.h"
#include "model/core/tensor.h"
#include "server/grpc/lintel_v1/snapshot_bytes.h"
#include "server/sessions/snapshot.h"

namespace lintel::bench {
namespace {

const Owner kNobody;

double median_of(int count, const std::function<void()>& call) {
  return quantile(microseconds_of(count, call), 0.5);
}

}  // namespace

std::vector<SessionFigure> copy_costs(MadeSession& session, int repeats, int count) {
  SessionStore& store = session.store();
  const auto image_of = [&] {
    return std::move(store.image(session.id(), kNobody, std::nullopt, true, true).image);
  };
  SnapshotOf of = snapshot_of(image_of(), session.model());
  const std::vector<std::byte> bytes = write_snapshot(of);
  std::vector<std::byte> target(bytes.size());
  const auto values = static_cast<std::int64_t>(session.values().size());
  volatile std::byte sink{};

  Repeats copied, hashed, image, written, snapshot, read, restore, forked, rewound;
  for (int r = 0; r < repeats; ++r) {
    copied.add(median_of(count, [&] {
      std::memcpy(target.data(), bytes.data(), bytes.size());
      sink = target[static_cast<std::size_t>(r)];
    }));
    hashed.add(median_of(count, [&] { sink = digest_of(bytes).bytes[0]; }));
    image.add(median_of(count, [&] {
      SessionImage taken = image_of();
      zero(taken);
    }));
    written.add(median_of(count, [&] {
      std::vector<std::byte> made = write_snapshot(of);
      zero_memory(std::span(made));
    }));
    snapshot.add(median_of(count, [&] {  // as the RPC makes one
      const SnapshotOf about = snapshot_of({}, session.model());
      std::optional<SnapshotDraft> draft;
      SessionImage taken =
          store
              .image(session.id(), kNobody, std::nullopt, true, true,
                     [&](const SessionImage& rest, std::size_t size) -> std::vector<std::byte>& {
                       return draft.emplace(about, rest, size).bytes();
                     })
              .image;
      const ZeroedBytes made(draft->finish(taken));
      zero(taken);
    }));
    read.add(median_of(count, [&] {
      SnapshotOf taken = view_snapshot(bytes);
      zero(taken.image);
    }));
    std::vector<double> restores, forks, rewinds;
    for (int i = 0; i < count; ++i) {
      std::string id;
      restores.push_back(microseconds_of(1, [&] {
        SnapshotOf taken = view_snapshot(bytes);
        id = store.restore("model", session.model().transformer, taken.image).info.id;
        zero(taken.image);
      })[0]);
      store.remove(id);
      forks.push_back(microseconds_of(
          1, [&] { id = store.fork(session.id(), kNobody, std::nullopt, 1).infos.at(0).id; })[0]);
      rewinds.push_back(
          microseconds_of(1, [&] { store.rewind(id, kNobody, values / 2, std::nullopt); })[0]);
      store.remove(id);
    }
    restore.add(quantile(restores, 0.5));
    forked.add(quantile(forks, 0.5));
    rewound.add(quantile(rewinds, 0.5));
  }
  (void)sink;

  const std::string beside = "memcpy " + format_number(copied.median(), 2) + ", XXH3-128 " +
                             format_number(hashed.median(), 2) + " us";
  const char* const llama =
      "llama.cpp: 20 and 26 us for 541 KB, and then computes the prompt again (issue 25913)";
  const std::string size = format_number(static_cast<double>(bytes.size()), 6) + " bytes";
  const auto row = [](std::string name, std::string what, const Repeats& values_of,
                      std::optional<double> most = {}, std::string beside_it = "",
                      std::string others = "") {
    return SessionFigure{std::move(name),      std::move(what),  "us", values_of.summary(), most,
                         std::move(beside_it), std::move(others)};
  };
  std::vector<SessionFigure> figures = {
      row("snapshot_us", "snapshot in process, " + size, snapshot, 20, beside, llama),
      row("snapshot_image_us", "state and history taken, as for a store", image),
      row("snapshot_write_us", "written out of that, and hashed", written),
      row("restore_us", "restored in process", restore, 20, beside, llama),
      row("restore_read_us", "of that: hash checked, read", read),
      row("fork_us", "fork of " + std::to_string(values) + " values", forked, 50, beside,
          "none is exact to the token; rwkv_lightning forks by turn"),
      row("rewind_us", "rewind to half of them", rewound, 50, "", "as above"),
  };
  const Transformer& model = *session.model().transformer;
  const auto state = static_cast<double>(model.state_bytes(values));
  const auto admitted = static_cast<double>(
      SessionStore::session_bytes(model, {.max_values = values}, store.options().history_tokens));
  Repeats share;
  share.add(100 * (admitted - state) / state);
  figures.push_back({"beside_state_percent", "memory of an open session beside its state", "%",
                     share.summary(), 5, "a state is " + format_number(state, 6) + " bytes", ""});
  return figures;
}

}  // namespace lintel::bench
