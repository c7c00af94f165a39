// SPDX-License-Identifier: Apache-2.0
// Chains of stored responses and references to their items, made at random: read, or refused,
// within their memory.
#include "server/openai/response_items.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/chat/template/request_json.h"
#include "server/openai/response_store.h"
#include "server/sessions/storage/document_storage.h"
#include "tests/fuzz/counted_memory.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace lintel::fuzz {
namespace {

using ojson = nlohmann::ordered_json;

// Bounds for the text and tree of one response, and for all kept items: at most kMostItemBytes as
// they are counted, which is more than they take.
constexpr std::size_t kReadLimit = std::size_t{112} << 20;

// A random item of 40 bytes to 700 KB as JSON, from one long text to thousands of empty parts.
ojson random_item(std::mt19937_64& random, const std::string& id) {
  const std::size_t parts = random() % 3 == 0 ? random() % 20'000 : random() % 3;
  const std::size_t bytes = random() % 4 == 0 ? random() % 700'000 : random() % 40;
  const bool is_reasoning = random() % 2 == 0;
  const ojson part = {{"type", is_reasoning ? "reasoning_text" : "input_text"},
                      {"text", std::string(parts == 0 ? 0 : bytes / parts, 'x')}};
  ojson item = {{"type", is_reasoning ? "reasoning" : "message"}, {"id", id}};
  item["content"] = std::vector<ojson>(parts, part);
  if (!is_reasoning) item["role"] = "user";
  return item;
}

struct RandomResponses {
  std::string store_one(std::mt19937_64& random, const std::string& parent) {
    ResponseRecord record;
    record.digits = random_digits();
    record.owner = "ada";
    record.parent = parent;
    record.response = {{"status", "in_progress"}, {"output", ojson::array()}};
    record.input = ojson::array();
    record.pieces = ojson::array();
    const auto add_items = [&](ojson& list, const char* suffix) {
      for (std::uint64_t i = 0, count = random() % 4; i < count; ++i) {
        ids.push_back("msg_" + record.digits + "_" + suffix + std::to_string(i));
        list.push_back(random_item(random, ids.back()));
      }
    };
    add_items(record.input, "in");
    std::shared_ptr<RunningResponse> running;
    REQUIRE(store.begin(record, /*has_log=*/false, running) == SessionError::kNone);
    add_items(record.response["output"], "");
    record.response["status"] = "completed";
    const std::string digits = record.digits;
    store.end(std::move(record), /*is_refused_when_full=*/false,
              [](SessionError error) { CHECK(error == SessionError::kNone); });
    return digits;
  }

  testing::ManualClock clock;
  MemoryDocuments documents{std::size_t{1} << 30, clock};
  ResponseStore store{documents, clock, {}};
  std::vector<std::string> ids;  // of items
};

TEST_CASE("chains and references at random are read or refused, within their memory",
          "[threat-95]") {
  std::mt19937_64 random(1);
  int read = 0, refused = 0;
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    RandomResponses responses;
    std::string last;
    for (std::uint64_t left = 1 + random() % 24; left > 0; --left) {
      last = responses.store_one(random, last);
    }
    {
      const MemoryLimit limit(kReadLimit);
      ojson items;
      std::size_t json_bytes = 0;
      const ChainBounds bounds{
          .json_bytes = kMostChainBytes, .memory_bytes = kMostItemBytes, .is_cancelled = nullptr};
      const SessionError error = responses.store.read_chain(last, "ada", bounds, items, json_bytes);
      const bool is_read = error == SessionError::kNone;
      CHECK((is_read || error == SessionError::kTooLarge));
      if (is_read) CHECK(tree_memory(items) <= kMostItemBytes + 64 + 32 * items.size());
      ++(is_read ? read : refused);
    }
    if (responses.ids.empty()) continue;
    // Few of many, or one very often.
    std::vector<ojson> list;
    const std::size_t count = std::size_t{1} << random() % 12;
    const std::size_t among = 1 + random() % responses.ids.size();
    for (std::size_t i = 0; i < count; ++i) {
      list.push_back({{"type", "item_reference"}, {"id", responses.ids[random() % among]}});
    }
    const MemoryLimit limit(kReadLimit);
    ojson items = std::move(list);
    std::size_t bytes = tree_memory(items);
    bool fits = true;
    for (auto& [digits, wanted] : references_of(items)) {
      ojson found;
      REQUIRE(responses.store.find_items(digits, "ada", found) == SessionError::kNone);
      fits = put_in_place(found, wanted, items, bytes);
      if (!fits) break;
      CHECK(wanted.empty());
    }
    CHECK(bytes <= kMostItemBytes);
    ++(fits ? read : refused);
  }
  CHECK(read >= 4);
  CHECK(refused >= 4);
}

}  // namespace
}  // namespace lintel::fuzz
