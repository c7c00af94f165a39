// SPDX-License-Identifier: Apache-2.0
// The outputs of tests/golden/chat in every cut.
#include "tests/server/chat/reader/reader_cases.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

JoinedOutput expected_output(const nlohmann::json& joined) {
  JoinedOutput expected{joined["reasoning"], joined["content"], {}};
  for (const auto& call : joined["calls"]) {
    expected.calls.push_back({call["name"], call["arguments"]});
  }
  return expected;
}

// True if `part` is `whole` as known at some time.
bool is_beginning(const JoinedOutput& part, const JoinedOutput& whole) {
  if (!whole.reasoning.starts_with(part.reasoning) || !whole.content.starts_with(part.content) ||
      part.calls.size() > whole.calls.size()) {
    return false;
  }
  for (std::size_t i = 0; i < part.calls.size(); ++i) {
    if (part.calls[i].name != whole.calls[i].name ||
        !whole.calls[i].arguments.starts_with(part.calls[i].arguments)) {
      return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("golden outputs: the same deltas in every cut") {
  const nlohmann::json golden = read_golden("tools/cases.json");
  const ToolTypes tools(golden["tools"]);
  REQUIRE(golden["cases"].size() >= 60);
  for (const auto& one : golden["cases"]) {
    const ReaderCase of = reader_case(one);
    INFO(of.name);
    const ReadOutput expected{expected_output(one["joined"]), one["stopped"]};
    for (const OutputPieces& pieces : cuts_of(of.text, 1)) {
      const ReadOutput read = read_pieces(of, pieces, &tools);
      if (read == expected) continue;
      INFO("cut into " << pieces.size() << ", the first of " << pieces[0].size() << " bytes");
      CHECK(read.joined == expected.joined);
      REQUIRE(read.stopped == expected.stopped);
    }
  }
}

TEST_CASE("golden outputs: a delta comes as early as it can") {
  const nlohmann::json golden = read_golden("tools/cases.json");
  const ToolTypes tools(golden["tools"]);
  for (const auto& one : golden["cases"]) {
    const ReaderCase of = reader_case(one);
    const JoinedOutput whole = expected_output(one["joined"]);
    OutputReader reader(of.options, &tools);
    JoinedOutput so_far, at_least;
    for (std::size_t i = 0; i < one["deltas"].size(); ++i) {
      INFO(of.name << ", piece " << i);
      std::vector<OutputDelta> deltas;
      if (i < one["pieces"].size()) {
        reader.push(one["pieces"][i].get<std::string>(), deltas);
      } else {
        reader.finish(of.end, deltas);
      }
      for (const OutputDelta& delta : deltas) so_far.add(delta);
      for (const auto& delta : one["deltas"][i]) {
        at_least.reasoning += delta.value("reasoning", "");
        at_least.content += delta.value("content", "");
        if (!delta.contains("call")) continue;
        at_least.calls.resize(delta["call"].get<std::size_t>() + 1);
        at_least.calls.back().name += delta.value("name", "");
        at_least.calls.back().arguments += delta.value("arguments", "");
      }
      CHECK(is_beginning(so_far, whole));
      REQUIRE(is_beginning(at_least, so_far));
    }
  }
}

TEST_CASE("golden streams: the chunks of an answer are the reader's deltas") {
  const nlohmann::json golden = read_golden("responses/streams.json");
  const ToolTypes tools(golden["tools"]);
  for (const auto& one : golden["cases"]) {
    const ReaderCase of = reader_case(one);
    INFO(of.name);
    std::vector<OutputDelta> deltas;
    OutputReader reader(of.options, &tools);
    JoinedOutput expected, read;
    for (const auto& piece : one["pieces"]) reader.push(piece.get<std::string>(), deltas);
    reader.finish(of.end, deltas);
    for (const OutputDelta& delta : deltas) read.add(delta);
    std::size_t chunks = 0;
    for (const auto& chunk : one["chat_chunks"]) {
      if (chunk["choices"].empty()) continue;
      const auto& delta = chunk["choices"][0]["delta"];
      if (delta.empty() || delta.contains("role")) continue;
      ++chunks;
      expected.reasoning += delta.value("reasoning_content", "");
      expected.content += delta.value("content", "");
      if (!delta.contains("tool_calls")) continue;
      const auto& call = delta["tool_calls"][0];
      expected.calls.resize(call["index"].get<std::size_t>() + 1);
      expected.calls.back().name += call["function"].value("name", "");
      expected.calls.back().arguments += call["function"].value("arguments", "");
    }
    CHECK(read == expected);
    CHECK(deltas.size() == chunks);
  }
}

}  // namespace lintel::testing
