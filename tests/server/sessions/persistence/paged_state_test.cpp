// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/persistence/paged_state.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/ops/kv_kernels.h"
#include "model/transformer.h"
#include "server/sessions/persistence/call_writer.h"
#include "server/sessions/storage/memory_storage.h"
#include "server/sessions/storage/storage_records.h"
#include "tests/server/sessions/persistence/persistent_requests.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace lintel::testing {
namespace {

using StateRef = SessionStorage::StateRef;

// A claimed session without tokens in a storage, for states to be put.
struct Slots {
  Slots() {
    NewSession made;
    made.row.id = "s";
    made.row.expires = clock.wall_time() + std::chrono::hours(1);
    WriteBatch batch;
    batch.add({.kind = SessionStorage::Write::Kind::kCreate, .id = "s"}, encode_new_session(made));
    REQUIRE(batch.commit_and_wait(storage) == SessionError::kNone);
    REQUIRE(storage.open("s", "", nullptr).outcome == SessionError::kNone);
  }
  // Saves the state of a sequence as a call's end does.
  StoredStates add(const SequenceState& sequence, std::int64_t start = 0) {
    PagedState saved;
    saved.save(sequence, states);
    StoredStates put;
    REQUIRE(saved.put(storage, "s", put) == SessionError::kNone);
    add_states(states, put, start);
    return put;
  }
  std::optional<PagedState> read(const StateRef& ref, std::size_t most = 1 << 24) {
    PagedState saved;
    if (!saved.read(storage, states, ref, most)) return std::nullopt;
    return saved;
  }

  ManualClock clock;
  MemoryStorage storage{clock};
  StoredStates states;
};

// Feeds tokens that depend on the position and `text` alone. Returns the last output.
std::vector<float> feed(const Transformer& model, SequenceState& sequence, std::int64_t count,
                        std::int64_t text = 0) {
  Workspace workspace = model.new_workspace(1);
  std::vector<float> last;
  for (; count > 0; --count) {
    const auto token = static_cast<std::int32_t>((7 + text) * sequence.position() % 50);
    const BatchRow row{.token = token, .sequence = &sequence, .wants_output = true};
    const auto output = model.step(std::span(&row, 1), workspace).row(0);
    last.assign(output.begin(), output.end());
  }
  return last;
}

void require_continues(const Transformer& model, const PagedState& saved, SequenceState twin) {
  SequenceState loaded = model.new_sequence();
  PagedStateReader reader(saved.bytes, saved.pages);
  loaded.load(reader);
  CHECK(reader.all_read());
  CHECK(loaded.next_position() == twin.next_position());
  CHECK(feed(model, loaded, 20) == feed(model, twin, 20));
}

std::vector<std::int64_t> ends_of_pages(const StoredStates& states) {
  std::vector<std::int64_t> ends;
  for (const StateRef& ref : states) {
    if (ref.is_pages) ends.push_back(ref.position);
  }
  return ends;
}

TEST_CASE("paged states: a full page is stored once, and every state continues bit for bit",
          "[durable]") {
  const KvType type = GENERATE(KvType::kF32, KvType::kBf16, KvType::kInt8);
  const auto model = hybrid_model(type);
  Slots slots;
  SequenceState sequence = model->new_sequence();
  std::vector<SequenceState> twins;
  std::size_t pages = 0;
  for (const std::int64_t tokens : {10, 6, 1, 95, 16, 300}) {  // ends at 10, 16, 17, 112, 128, 428
    feed(*model, sequence, tokens);
    for (const StateRef& ref : slots.add(sequence)) pages += ref.is_pages ? ref.bytes : 0;
    twins.push_back(sequence.clone());
    const auto read = slots.read(slots.states.back());
    REQUIRE(read);
    require_continues(*model, *read, twins.back().clone());
  }
  CHECK(ends_of_pages(slots.states) == std::vector<std::int64_t>{16, 80, 112, 128, 384, 416});
  // 26 pages, and the table of each run.
  const std::size_t page = kv_page_bytes({.heads = 2, .width = 16, .type = type});
  CHECK(pages == 26 * page + 6 * 4 + 26 * 4);
  // Whole states that are left of the earlier ones.
  std::size_t whole = 0;
  for (const StateRef& ref : slots.states) {
    if (ref.is_pages) continue;
    ++whole;
    const auto twin = std::ranges::find(twins, ref.position, &SequenceState::next_position);
    REQUIRE(twin != twins.end());
    const auto read = slots.read(ref);
    REQUIRE(read);
    require_continues(*model, *read, twin->clone());
  }
  CHECK(whole == kMostStates);
}

TEST_CASE("paged states: the first state after pages of another KV type stores all pages",
          "[durable]") {
  const KvType from = GENERATE(KvType::kF32, KvType::kBf16, KvType::kInt8);
  const KvType to = GENERATE(KvType::kF32, KvType::kBf16, KvType::kInt8);
  if (from == to) return;
  CAPTURE(to_string(from), to_string(to));
  const auto before = hybrid_model(from), after = hybrid_model(to);
  Slots slots;
  SequenceState sequence = before->new_sequence();
  feed(*before, sequence, 100);
  slots.add(sequence);
  feed(*before, sequence, 40);
  slots.add(sequence);
  const auto read = slots.read(slots.states.back());
  REQUIRE(read);
  SequenceState converted = after->new_sequence();
  PagedStateReader reader(read->bytes, read->pages);
  converted.load(reader);
  CHECK(reader.all_read());
  CHECK(reader.has_converted());

  feed(*after, converted, 20);
  const StoredStates all = slots.add(converted);
  CHECK(all.front().is_pages);
  CHECK(all.front().first == 0);
  CHECK(ends_of_pages(slots.states) == ends_of_pages(all));
  const auto whole = slots.read(slots.states.back());
  REQUIRE(whole);
  require_continues(*after, *whole, converted.clone());
  // The next one has those of its own tokens.
  feed(*after, converted, 32);
  CHECK(slots.add(converted).front().first == 160);
  const auto next = slots.read(slots.states.back());
  REQUIRE(next);
  require_continues(*after, *next, converted.clone());
}

TEST_CASE("paged states: after a rewind only pages of tokens that are left are kept", "[durable]") {
  const auto model = hybrid_model();
  Slots slots;
  SequenceState sequence = model->new_sequence();
  feed(*model, sequence, 40);
  slots.add(sequence);
  const SequenceState at_40 = sequence.clone();
  feed(*model, sequence, 100);
  slots.add(sequence);
  // Rewinds to token 50, and then feeds another text.
  std::erase_if(slots.states, [](const StateRef& ref) { return ref.position > 50; });
  sequence.assign(at_40);
  feed(*model, sequence, 10);
  feed(*model, sequence, 150, /*text=*/4);
  slots.add(sequence);
  CHECK(ends_of_pages(slots.states) == std::vector<std::int64_t>{32, 160, 192});
  for (const StateRef& ref : slots.states) {
    if (ref.is_pages) continue;
    const auto read = slots.read(ref);
    REQUIRE(read);
    require_continues(*model, *read, ref.position == 40 ? at_40.clone() : sequence.clone());
  }
}

TEST_CASE("paged states: pages of many short turns are stored together again", "[durable]") {
  const auto model = hybrid_model();
  Slots slots;
  SequenceState sequence = model->new_sequence();
  std::size_t most = 0;
  for (int turn = 0; turn < 220; ++turn) {
    feed(*model, sequence, 17);
    slots.add(sequence);
    most = std::max(most, ends_of_pages(slots.states).size());
  }
  CHECK(most <= 194);
  CHECK(ends_of_pages(slots.states).size() < 60);
  const auto read = slots.read(slots.states.back());
  REQUIRE(read);
  require_continues(*model, *read, sequence.clone());
}

TEST_CASE("paged states: a state whose pages are missing, damaged or too large is not read",
          "[durable]") {
  const auto model = hybrid_model();
  Slots slots;
  SequenceState sequence = model->new_sequence();
  feed(*model, sequence, 100);
  slots.add(sequence);
  const StateRef state = slots.states.back();
  REQUIRE(slots.read(state));
  CHECK(holds_state(slots.storage, slots.states, state));
  CHECK_FALSE(slots.read(state, state.bytes));
  const StoredStates whole = slots.states;

  slots.states.erase(slots.states.begin());
  CHECK_FALSE(slots.read(state));
  CHECK_FALSE(holds_state(slots.storage, slots.states, state));

  slots.states = whole;
  slots.states.front().checksum.bytes[0] ^= std::byte{1};
  CHECK_FALSE(slots.read(state));

  // Bytes that are no pages, with the right checksum.
  for (const std::vector<std::byte>& bytes :
       {std::vector<std::byte>(3), std::vector<std::byte>(64, std::byte{255}),
        std::vector<std::byte>{std::byte{1}, {}, {}, {}, std::byte{9}, {}, {}, {}, {}}}) {
    slots.states = whole;
    StateRef& ref = slots.states.front();
    REQUIRE(slots.storage.put_state("s", bytes, &ref) == SessionError::kNone);
    CHECK_FALSE(slots.read(state));
  }
  // A table that is whole, of blocks that the model does not have.
  slots.states = whole;
  std::vector<std::byte> bytes(4 + 4 + 8);
  bytes[0] = std::byte{1};
  bytes[4] = std::byte{8};
  REQUIRE(slots.storage.put_state("s", bytes, &slots.states.front()) == SessionError::kNone);
  const auto read = slots.read(state);
  REQUIRE(read);
  SequenceState loaded = model->new_sequence();
  PagedStateReader reader(read->bytes, read->pages);
  CHECK_THROWS_AS(loaded.load(reader), ModelError);
}

TEST_CASE("rows with pages and rows from before there were pages are read", "[durable]") {
  SessionStorage::Row row;
  row.id = "s";
  row.states = {{.position = 8, .where = 3, .bytes = 100}};
  const StorageBytes before = encode_row(row);
  CHECK(decode_row(before) == row);
  row.states.insert(row.states.begin(), {.position = 16, .first = 0, .is_pages = true, .where = 7});
  row.states.push_back({.position = 20, .first = 16, .where = 9, .bytes = 50});
  const StorageBytes after = encode_row(row);
  CHECK(decode_row(after) == row);
  CHECK(after.size() == before.size() + 2 * 40 + 3 * 9);
}

TEST_CASE("large states are stored at the end of each call, small ones where many tokens have come",
          "[durable]") {
  const auto small = hybrid_model();
  const ParkPolicy automatic;
  CHECK(automatic.at_end(small->state_bytes(0)) == 1024);
  CHECK(automatic.at_end((1 << 20) - 1) == 1024);
  CHECK(automatic.at_end(1 << 20) == 1);
  CHECK(automatic.on_the_way() == 1024);
  CHECK(ParkPolicy{500}.at_end(1 << 20) == 500);
  CHECK(automatic.pays(*small, 1024, false));
  CHECK_FALSE(automatic.pays(*small, 1023, false));
  CHECK(automatic.pays(*small, 256, true));
  const auto grows = tiny_model(TinyModel::kTokens, "softmax");
  CHECK_FALSE(automatic.pays(*grows, 100'000, true));
}

}  // namespace
}  // namespace lintel::testing
