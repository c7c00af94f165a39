// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/initial_states.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "server/api/lintel_v1/restore_call.h"
#include "server/api/lintel_v1/snapshot_bytes.h"
#include "server/api/lookup.h"
#include "server/api/refusals.h"
#include "server/sessions/snapshot.h"

namespace lintel {
namespace {

namespace fs = std::filesystem;

const Owner kNobodysAccount;

void require_ok(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error_message());
}

ZeroedBytes bytes_of_file(const fs::path& path, std::size_t most) {
  const std::uintmax_t size = fs::file_size(path);
  if (size > most) {
    throw std::runtime_error(std::to_string(size) + " bytes are more than " + std::to_string(most) +
                             ", the most a session can have");
  }
  std::vector<std::byte> bytes(size);
  std::ifstream in(path, std::ios::binary);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  if (!in) throw std::runtime_error("cannot be read");
  return ZeroedBytes(std::move(bytes));
}

// The snapshot's state, with the last tokens that a state needs, as SaveState keeps it: what
// a session is that was restored from it says.
SessionImage image_of_state(const SessionImage& snapshot, const ServedModel& model,
                            const SharedAdapter& adapter, const ServiceContext& context) {
  const auto refused = [&](const SessionRefusal& refusal) {
    return store_refusal(refusal, context.sessions.options(), /*session_id=*/"", kNobodysAccount);
  };
  const auto made =
      context.sessions.restore(model.name, model.transformer, snapshot, kNobodysAccount, adapter);
  if (made.refusal) require_ok(refused(made.refusal));
  auto found = context.sessions.image(made.info.id, kNobodysAccount, std::nullopt,
                                      /*with_history=*/false, /*with_state=*/true);
  context.sessions.remove(made.info.id, kNobodysAccount);
  if (found.refusal) require_ok(refused(found.refusal));
  return std::move(found.image);
}

std::shared_ptr<NamedState> read_state(const fs::path& path, bool accept_other_numerics,
                                       const ServiceContext& context) {
  const std::string name = path.stem().string();
  require_ok(check_name(name, "a state", "name"));
  const ZeroedBytes bytes = bytes_of_file(
      path, most_restored_bytes(context.models, /*model=*/nullptr, context.sessions.options()));
  SnapshotOf snapshot = read_snapshot(bytes.span());
  grpc::Status status;
  const SharedModel model = resolve_model(snapshot.image.model, context.models, &status);
  if (model == nullptr) require_ok(status);
  require_ok(check_restored(snapshot, *model, accept_other_numerics));
  SharedAdapter adapter;
  require_ok(resolve_adapter(snapshot.image, *model, &adapter));

  SessionImage image = image_of_state(snapshot.image, *model, adapter, context);
  zero(snapshot.image);
  SessionMemory::Result admitted =
      context.sessions.admit_bytes(kNobodysAccount, sizeof(NamedState) + image.state.size() +
                                                        image.tokens.size() * sizeof(std::int32_t) +
                                                        image.marks.size() * sizeof(HistoryMark));
  if (admitted.refusal) {
    zero(image);
    require_ok(store_refusal(admitted.refusal, context.sessions.options(), /*session_id=*/"",
                             kNobodysAccount));
  }
  auto state = std::make_shared<NamedState>(std::move(admitted.reservation), std::move(image));
  state->name = name;
  state->is_public = true;
  SessionOptions taken;
  take_numerics(snapshot, *model, taken);
  state->numerics = taken.numerics.empty() ? snapshot.numerics : taken.numerics;
  state->numerics_text = snapshot.numerics_text;
  state->numerics_changed_at = snapshot.numerics_changed_at;
  state->model_identity = model_identity(*model);
  return state;
}

}  // namespace

void load_initial_states(const fs::path& directory, bool accept_other_numerics,
                         const ServiceContext& context) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const bool hidden = entry.path().filename().string().starts_with('.');
    if (!hidden && entry.is_regular_file()) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const fs::path& file : files) {
    try {
      const auto state = read_state(file, accept_other_numerics, context);
      if (context.states.find(kNobodysAccount, state->name) != nullptr) {
        throw std::runtime_error("another file is of the state " + state->name);
      }
      if (!context.states.save(kNobodysAccount, state)) {
        throw std::runtime_error("there are more than " +
                                 std::to_string(NamedStates::kMostOfOwner) + " states");
      }
    } catch (const std::exception& error) {  // also SnapshotError, ModelError, filesystem_error
      throw std::runtime_error("--initial-states: " + file.string() + ": " + error.what());
    }
  }
  spdlog::info("{} initial states of {}", files.size(), directory.string());
}

}  // namespace lintel
