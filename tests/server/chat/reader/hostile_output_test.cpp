// SPDX-License-Identifier: Apache-2.0
// Outputs made to cost time or memory.
#include <algorithm>

#include "tests/fuzz/counted_memory.h"
#include "tests/server/chat/reader/reader_cases.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::testing {
namespace {

constexpr std::size_t kManyBytes = kSanitized ? 200'000 : 1'000'000;

std::string repeat(std::string_view piece, std::size_t bytes = kManyBytes) {
  std::string text;
  text.reserve(bytes + piece.size());
  while (text.size() < bytes) text += piece;
  return text;
}

struct OutputCost {
  double seconds = 0;
  std::size_t peak_bytes = 0;  // held by the reader
  std::size_t num_calls = 0;
};

// Reads `text` in pieces of `size` bytes, as a caller that keeps no delta.
OutputCost cost_of(const std::string& text, OutputReader::Options options, std::size_t size) {
  OutputCost cost;
  const fuzz::MemoryLimit memory(std::size_t{64} << 20);
  std::vector<OutputDelta> deltas;
  cost.seconds = cpu_seconds_of([&] {
    OutputReader reader(options);
    for (std::size_t at = 0; at < text.size(); at += size) {
      deltas.clear();
      reader.push(std::string_view(text).substr(at, size), deltas);
    }
    deltas.clear();
    reader.finish(OutputEnd::kStop, deltas);
    cost.num_calls = reader.num_calls();
  });
  cost.peak_bytes = memory.peak_bytes();
  return cost;
}

constexpr ToolDialect kDialects[] = {ToolDialect::kHermes, ToolDialect::kXml,
                                     ToolDialect::kPythonic};
constexpr ReasoningMode kModes[] = {ReasoningMode::kNone, ReasoningMode::kTags,
                                    ReasoningMode::kOpened};

}  // namespace

TEST_CASE("hostile outputs: time by their length, memory within bounds", "[hostile]") {
  const std::string value = "<function=f><parameter=k>";
  const std::string texts[] = {
      repeat("<"),
      repeat(" "),
      "a" + repeat("\n"),
      repeat("<think>"),
      repeat("\n</think>"),
      repeat("<tool_call>"),
      repeat("\n<tool_call>\n"),
      repeat("<tool_call"),
      "<tool_call>" + repeat(" "),
      "<tool_call>{\"name\": \"" + repeat("n"),
      "<tool_call>{\"" + repeat("k"),
      "<tool_call>{\"arguments\": {\"a\": \"" + repeat("x"),
      "<tool_call>{\"name\": \"f\", \"arguments\": \"{" + repeat("x"),
      "<tool_call>{\"name\": \"f\", \"arguments\": " + repeat("{\"a\":["),
      repeat("<tool_call>{\"arguments\": {"),
      repeat("\n<tool_call>{\"a\": [\n<tool_call>{\"b\": {"),
      repeat("<tool_call>{\"a\": \"\\u00\", \"\\ud800"),
      repeat("<function="),
      repeat("\n<function=f>"),
      "<function=" + repeat("n"),
      "<function=f><parameter=" + repeat("k"),
      "<function=f>" + repeat("<parameter=k>"),
      value + repeat("</parameter>"),
      value + repeat("</parameter> \n"),
      value + repeat("\r\n"),
      value + "</parameter>" + repeat(" "),
      value + repeat("</function>\n"),
      value + repeat("\n<parameter=k"),
      value + repeat("</parameter>" + std::string(60'000, ' ')),
      repeat("<|tool_call_start|>"),
      repeat("<|tool_call_start|>[{\"a\": ["),
      "<|tool_call_start|>[f(" + repeat("k"),
      "<|tool_call_start|>[f(k=" + repeat("["),
      "<|tool_call_start|>[f(k='" + repeat("\\u00"),
      "<|tool_call_start|>[f(k=" + repeat("1"),
      "<|tool_call_start|>[f(k=[" + repeat("{'a': 1}, "),
      repeat("\xF0\x9F"),
      repeat("\xFF"),
      repeat(std::string(1, '\0')),
  };
  for (const std::string& text : texts) {
    for (const ToolDialect dialect : kDialects) {
      for (const ReasoningMode mode : kModes) {
        // Bounds on what is held are reached in the first mode.
        const bool all = mode == ReasoningMode::kNone;
        const OutputCost cost =
            cost_of(all ? text : text.substr(0, kManyBytes / 8), {mode, dialect, true}, 7);
        INFO(text.substr(0, 60) << "... in dialect " << static_cast<int>(dialect) << ", mode "
                                << static_cast<int>(mode) << ": " << cost.seconds << " s, "
                                << cost.peak_bytes << " bytes");
        CHECK(cost.seconds <= fuzz::time_limit_seconds(text.size()));
        CHECK(cost.peak_bytes <= 8 * kMaxHeldBytes);
      }
    }
  }
}

TEST_CASE("100,000 calls: linear time, memory of one", "[hostile]") {
  constexpr std::size_t kCalls = kSanitized ? 10'000 : 100'000;
  const struct {
    ToolDialect dialect;
    std::string begin, call, end;
  } cases[] = {
      {ToolDialect::kHermes, "",
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n", ""},
      {ToolDialect::kXml, "",
       "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n",
       ""},
      {ToolDialect::kPythonic, "<|tool_call_start|>[", "f(a=1), ", "]<|tool_call_end|>"},
  };
  for (const auto& one : cases) {
    std::string text = one.begin;
    for (std::size_t i = 0; i < kCalls; ++i) text += one.call;
    text += one.end;
    const OutputCost cost = cost_of(text, {ReasoningMode::kNone, one.dialect, true}, 100);
    INFO(text.size() << " bytes took " << cost.seconds << " s, " << cost.peak_bytes << " bytes");
    CHECK(cost.num_calls == kCalls);
    CHECK(cost.seconds <= fuzz::time_limit_seconds(text.size()));
    CHECK(cost.peak_bytes <= 100'000);
  }
}

TEST_CASE("many parameters in one call: memory within bounds, the call stays open", "[hostile]") {
  std::string xml = "<function=f>", python = "<|tool_call_start|>[f(";
  for (int i = 0; i < 30'000; ++i) {
    xml += "<parameter=k" + std::to_string(i) + ">1</parameter>";
    python += "k" + std::to_string(i) + "=1, ";
  }
  const ReaderCase cases[] = {
      {"", xml + "</function>", {ReasoningMode::kNone, ToolDialect::kXml, true}, OutputEnd::kStop},
      {"", python + ")]", {ReasoningMode::kNone, ToolDialect::kPythonic, true}, OutputEnd::kStop}};
  for (const ReaderCase& of : cases) {
    const OutputCost cost = cost_of(of.text, of.options, 100);
    INFO(cost.peak_bytes << " bytes");
    CHECK(cost.peak_bytes <= 8 * kMaxHeldBytes);
    const JoinedOutput read = read_pieces(of, {of.text}, nullptr).joined;
    REQUIRE(read.calls.size() == 1);
    CHECK_FALSE(read.calls[0].arguments.ends_with('}'));
  }
}

TEST_CASE("bytes that wait beyond their bound are text", "[hostile]") {
  const auto read = [](ToolDialect dialect, const std::string& text) {
    const ReaderCase of{"", text, {ReasoningMode::kNone, dialect, true}, OutputEnd::kStop};
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size(); at += 999) pieces.push_back(text.substr(at, 999));
    const JoinedOutput whole = read_pieces(of, {text}, nullptr).joined;
    CHECK((read_pieces(of, pieces, nullptr).joined == whole));
    return whole;
  };
  const std::string call = "<tool_call>{\"name\": \"f\"}</tool_call>";
  const std::string blanks(kMaxWaitingBytes + 1, ' ');
  CHECK((read(ToolDialect::kHermes, blanks + call) == JoinedOutput{"", blanks, {{"f", "{}"}}}));
  const std::string late =
      "<tool_call>{\"a\": \"" + std::string(kMaxHeldBytes, 'x') + "\", \"name\": \"f\"}";
  CHECK((read(ToolDialect::kHermes, late) == JoinedOutput{"", late, {}}));
  const std::string value = std::string(kMaxHeldBytes, '1');
  const ToolTypes tools(nlohmann::json::parse(
      R"([{"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}}])"));
  const ReaderCase of{"",
                      "<function=f><parameter=n>" + value + "1</parameter></function>",
                      {ReasoningMode::kNone, ToolDialect::kXml, true},
                      OutputEnd::kStop};
  const JoinedOutput joined = read_pieces(of, {of.text}, &tools).joined;
  REQUIRE(joined.calls.size() == 1);
  CHECK((joined.calls[0].arguments == "{\"n\": \"" + value + "1\"}"));
}

TEST_CASE("schemas of tools: deep unions end", "[hostile]") {
  nlohmann::json schema = {{"type", "integer"}};
  for (int i = 0; i < 1'000; ++i) schema = {{"anyOf", {schema}}};
  const ToolTypes tools(
      nlohmann::json::array({{{"name", "f"}, {"parameters", {{"properties", {{"n", schema}}}}}}}));
  REQUIRE(tools.find("f") != nullptr);
  CHECK(tools.find("f")->at("n") == kAnyType);  // beyond its bound a schema has no type
  CHECK(tools.find("g") == nullptr);
}

}  // namespace lintel::testing
