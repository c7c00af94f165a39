// SPDX-License-Identifier: Apache-2.0
// Outputs read in pieces, and the cases of tests/golden/chat.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat/reader/output_reader.h"

namespace lintel::testing {

using OutputPieces = std::vector<std::string>;

// The deltas of an output, joined.
struct JoinedOutput {
  std::string reasoning, content;
  struct Call {
    std::string name, arguments;
    bool operator==(const Call&) const = default;
  };
  std::vector<Call> calls;
  bool operator==(const JoinedOutput&) const = default;

  void add(const OutputDelta& delta) {
    switch (delta.kind) {
      case OutputDelta::Kind::kReasoning:
        reasoning += delta.text;
        return;
      case OutputDelta::Kind::kContent:
        content += delta.text;
        return;
      case OutputDelta::Kind::kCall:
        break;
    }
    if (!delta.name.empty()) calls.push_back({delta.name, {}});
    if (delta.call + 1 != calls.size()) throw std::logic_error("a call out of order");
    calls.back().arguments += delta.text;
  }
};

inline std::ostream& operator<<(std::ostream& out, const JoinedOutput& joined) {
  out << "reasoning \"" << joined.reasoning << "\", content \"" << joined.content << '"';
  for (const auto& call : joined.calls) out << ", " << call.name << ' ' << call.arguments;
  return out;
}

struct ReaderCase {
  std::string name, text;
  OutputReader::Options options;
  OutputEnd end = OutputEnd::kStop;
};

struct ReadOutput {
  JoinedOutput joined;
  bool stopped = false;
  bool operator==(const ReadOutput&) const = default;
};

inline ReadOutput read_pieces(const ReaderCase& of, const OutputPieces& pieces,
                              const ToolTypes* tools) {
  OutputReader reader(of.options, tools);
  ReadOutput read;
  std::vector<OutputDelta> deltas;
  for (const std::string& piece : pieces) reader.push(piece, deltas);
  reader.finish(of.end, deltas);
  for (const OutputDelta& delta : deltas) read.joined.add(delta);
  read.stopped = reader.stopped();
  if (reader.num_calls() != read.joined.calls.size()) throw std::logic_error("calls miscounted");
  return read;
}

// Whole, in every cut of two, byte by byte, and cut at random.
inline std::vector<OutputPieces> cuts_of(const std::string& text, std::uint64_t seed) {
  std::vector<OutputPieces> cuts = {{text}, {}};
  for (const char c : text) cuts.back().push_back(std::string(1, c));
  for (std::size_t i = 1; i < text.size(); ++i) cuts.push_back({text.substr(0, i), text.substr(i)});
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20; ++i) {
    auto& pieces = cuts.emplace_back();
    for (std::size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, random() % 12));
      at += pieces.back().size();
    }
  }
  return cuts;
}

inline nlohmann::json read_golden(const std::string& name) {
  std::ifstream in(LINTEL_TEST_DATA "/golden/chat/" + name);
  return nlohmann::json::parse(in);
}

inline ReaderCase reader_case(const nlohmann::json& golden) {
  ReaderCase result;
  result.name = golden["name"];
  if (golden.contains("text")) result.text = golden["text"];
  const std::string reasoning = golden["reasoning"], dialect = golden["dialect"];
  result.options.reasoning = reasoning == "tags"     ? ReasoningMode::kTags
                             : reasoning == "opened" ? ReasoningMode::kOpened
                                                     : ReasoningMode::kNone;
  result.options.dialect = dialect == "hermes"     ? ToolDialect::kHermes
                           : dialect == "xml"      ? ToolDialect::kXml
                           : dialect == "pythonic" ? ToolDialect::kPythonic
                                                   : ToolDialect::kNone;
  result.options.parallel = golden["parallel"];
  result.end = golden["end"] == "length" ? OutputEnd::kLength : OutputEnd::kStop;
  return result;
}

}  // namespace lintel::testing
