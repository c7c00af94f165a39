// SPDX-License-Identifier: Apache-2.0
// Requests of Anthropic's API, damaged at random: read or refused, within memory and time, and what
// was read is what a chat takes.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "server/anthropic/message_request.h"
#include "tests/fuzz/counted_memory.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::fuzz {
namespace {

using ojson = nlohmann::ordered_json;

const Sealer kSealerOfFuzz(Sealer::Secret{}, "ada");

ojson whole_request() {
  const ojson text = {{"type", "text"}, {"text", "a"}, {"cache_control", {{"type", "ephemeral"}}}};
  const ojson thinking = {{"type", "thinking"},
                          {"thinking", ""},
                          {"signature", seal_thinking(kSealerOfFuzz, "thought")}};
  const ojson call = {
      {"type", "tool_use"}, {"id", "1"}, {"name", "f"}, {"input", {{"a", {1, 2.5, nullptr}}}}};
  const ojson result = {{"type", "tool_result"},
                        {"tool_use_id", "1"},
                        {"is_error", true},
                        {"content", ojson::array({text})}};
  const ojson tool = {{"name", "f"},
                      {"description", "d"},
                      {"strict", true},
                      {"input_schema", {{"type", "object"}, {"properties", ojson::object()}}}};
  const ojson search = {{"type", "web_search_20250305"}, {"name", "web_search"}};
  return {{"model", "m"},
          {"max_tokens", 10},
          {"system", ojson::array({text, text})},
          {"messages",
           ojson::array({{{"role", "user"}, {"content", ojson::array({text, text})}},
                         {{"role", "assistant"}, {"content", ojson::array({thinking, text, call})}},
                         {{"role", "user"}, {"content", ojson::array({result, text})}},
                         {{"role", "system"}, {"content", "s"}},
                         {{"role", "assistant"}, {"content", "b"}}})},
          {"tools", ojson::array({tool, search})},
          {"tool_choice", {{"type", "tool"}, {"name", "f"}, {"disable_parallel_tool_use", true}}},
          {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}, {"display", "omitted"}}},
          {"output_config",
           {{"effort", "low"},
            {"format", {{"type", "json_schema"}, {"schema", {{"type", "object"}}}}}}},
          {"stop_sequences", {"x"}},
          {"temperature", 0.5},
          {"metadata", {{"user_id", "u"}}},
          {"speed", "fast"},
          {"stream", true}};
}

// A value of another type or size than the one that was there.
ojson other_value(std::mt19937_64& random, const ojson& whole) {
  switch (random() % 9) {
    case 0:
      return nullptr;
    case 1:
      return true;
    case 2:
      return -1;
    case 3:
      return 1e300;
    case 4:
      return std::string(random() % 300, 'x');
    case 5:
      return ojson::array({whole["messages"][0], 1});
    case 6:
      return ojson::object({{"type", "text"}});
    case 7:
      return whole["messages"][random() % whole["messages"].size()];
    default:
      return ojson::array();
  }
}

// Replaces, removes or repeats values of the tree.
void damage(std::mt19937_64& random, const ojson& whole, ojson& value) {
  if (!value.is_structured() || value.empty() || random() % 5 == 0) {
    value = other_value(random, whole);
    return;
  }
  auto member = value.begin();
  std::advance(member, static_cast<std::ptrdiff_t>(random() % value.size()));
  switch (random() % 6) {
    case 0:
      value.erase(member);
      return;
    case 1:
      if (value.is_array()) value.push_back(ojson(*member));
      return;
    default:
      damage(random, whole, *member);
  }
}

// Returns whether it was read. Checks the invariants of every request that was read.
bool try_message_request(std::string_view text) {
  ChatRequest request;
  MessageForm form;
  read_message_request(text, MessageUse::kCreate, kSealerOfFuzz, "ada", {}, request, form);
  std::string names;
  const bool is_reported = request.ignored.report(/*refuses=*/false, names).ok();
  if (!is_reported || names.size() > 2048) throw std::logic_error("names of ignored members");
  if (!request.status.ok()) return false;
  const api::ChatParams& params = request.params;
  if (!params.messages.is_array() || params.messages.empty()) throw std::logic_error("messages");
  for (const ojson& message : params.messages) {
    const std::string role = message.at("role");
    const ojson& content = message.at("content");
    const bool is_text = content.is_string() || (content.is_null() && role == "assistant");
    if (!is_text) throw std::logic_error("content of " + role);
  }
  if (params.continue_final_message != !params.add_generation_prompt) {
    throw std::logic_error("continues");
  }
  return true;
}

TEST_CASE("damaged message requests are read or refused, within their memory and time",
          "[threat-103]") {
  std::mt19937_64 random(1);
  const ojson whole = whole_request();
  REQUIRE(try_message_request(whole.dump()));
  int read = 0, refused = 0;
  const int rounds = testing::kSanitized ? 500 : 4000;
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    ojson damaged = whole;
    for (std::uint64_t i = 0, count = 1 + random() % 3; i < count; ++i) {
      damage(random, whole, damaged);
    }
    std::string text = damaged.dump();
    if (random() % 4 == 0 && !text.empty()) {
      char& byte = text[random() % text.size()];
      byte = static_cast<char>(byte ^ (1 << random() % 7));
    }
    const MemoryLimit limit(std::size_t{4} << 20);
    const bool is_read = within_time(try_message_request, text);
    ++(is_read ? read : refused);
  }
  CHECK(read >= rounds / 20);
  CHECK(refused >= rounds / 20);
}

TEST_CASE("large message requests take memory and time as their text does", "[threat-103]") {
  const auto request_of = [](const ojson& messages) {
    return ojson{{"max_tokens", 1}, {"messages", messages}}.dump();
  };
  std::vector<ojson> neighbours(9000, {{"role", "user"}, {"content", std::string(400, 'x')}});
  std::vector<ojson> blocks(60'000, {{"type", "text"}, {"text", "xxxxxxxxxxxxxxxxxxxx"}});
  ojson names = {{"max_tokens", 1}, {"messages", ojson::array({neighbours[0]})}};
  for (int i = 0; i < 50'000; ++i) names["unknown_member_" + std::to_string(i)] = i;
  for (const std::string& text :
       {request_of(neighbours), request_of(ojson::array({{{"role", "user"}, {"content", blocks}}})),
        request_of(ojson::array({{{"role", "user"}, {"content", std::string(4 << 20, 'x')}}})),
        names.dump()}) {
    const MemoryLimit limit(std::size_t{96} << 20);
    CHECK(within_time(try_message_request, text));
  }
}

}  // namespace
}  // namespace lintel::fuzz
