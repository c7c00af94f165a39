// SPDX-License-Identifier: Apache-2.0
// Models' outputs: seeds, and what a reader promises of any.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/core/utf8.h"
#include "server/chat/reader/output_reader.h"
#include "tests/fuzz/inputs.h"
#include "tests/fuzz/mutations.h"

namespace lintel::fuzz {
namespace {

void require_of_reader(bool condition, const char* promise) {
  if (!condition) throw std::logic_error(std::string("broken promise: ") + promise);
}

bool is_utf8(const std::string& text) {
  Utf8Stream stream;
  std::string decoded;
  stream.push(text, decoded);
  stream.finish(decoded);
  return decoded == text;
}

struct JoinedDeltas {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;
  bool stopped = false;
  bool operator==(const JoinedDeltas&) const = default;
};

JoinedDeltas read_in_pieces(std::string_view output, const OutputReader::Options& options,
                            OutputEnd end, const ToolTypes& tools, std::size_t size) {
  OutputReader reader(options, &tools);
  JoinedDeltas joined;
  std::vector<OutputDelta> deltas;
  for (std::size_t at = 0; at < output.size(); at += size) {
    reader.push(output.substr(at, size), deltas);
  }
  reader.finish(end, deltas);
  for (const OutputDelta& delta : deltas) {
    require_of_reader(is_utf8(delta.text) && is_utf8(delta.name), "deltas are whole characters");
    switch (delta.kind) {
      case OutputDelta::Kind::kReasoning:
        joined.reasoning += delta.text;
        break;
      case OutputDelta::Kind::kContent:
        joined.content += delta.text;
        break;
      case OutputDelta::Kind::kCall:
        if (!delta.name.empty()) joined.calls.emplace_back(delta.name, "");
        require_of_reader(delta.call + 1 == joined.calls.size(), "calls come in order");
        joined.calls.back().second += delta.text;
    }
  }
  joined.stopped = reader.stopped();
  return joined;
}

}  // namespace

bool try_reader(std::string_view bytes) {
  if (bytes.empty()) return false;
  static const ToolTypes kTools(
      nlohmann::json::parse(R"([{"name": "run", "parameters": {"properties":
    {"code": {"type": "string"}, "n": {"type": ["integer", "null", "boolean", "number"]},
     "list": {"type": ["array", "object"]}}}}])"));
  const auto choice = static_cast<unsigned char>(bytes.front());
  const OutputReader::Options options{static_cast<ReasoningMode>(choice % 3),
                                      static_cast<ToolDialect>(choice / 3 % 4),
                                      choice / 12 % 2 == 0};
  const OutputEnd end = choice / 24 % 2 == 0 ? OutputEnd::kStop : OutputEnd::kLength;
  const std::string_view output = bytes.substr(1);
  const JoinedDeltas whole =
      read_in_pieces(output, options, end, kTools, std::max<std::size_t>(output.size(), 1));
  for (const std::size_t size : {1, 2, 7}) {
    require_of_reader(read_in_pieces(output, options, end, kTools, size) == whole,
                      "pieces make no difference");
  }
  require_of_reader(options.parallel || whole.calls.size() <= 1, "one call without parallel ones");
  require_of_reader(options.dialect != ToolDialect::kNone || whole.calls.empty(),
                    "no call without a dialect");
  return !whole.calls.empty();
}

std::vector<std::string> reader_seeds() {
  const auto seed = [](ReasoningMode mode, ToolDialect dialect, const char* output) {
    return static_cast<char>(static_cast<int>(mode) + 3 * static_cast<int>(dialect)) +
           std::string(output);
  };
  return {
      seed(ReasoningMode::kTags, ToolDialect::kHermes,
           "<think>\nWell.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"run\", \"arguments\": "
           "{\"code\": \"a\\n\xC3\xA9\", \"n\": [1, {}]}}\n</tool_call>\nDone."),
      seed(ReasoningMode::kOpened, ToolDialect::kHermes,
           "So\n<tool_call>{\"arguments\": \"{\\\"n\\\": 1}\", \"id\": 7, \"name\": \"run\"}"
           "<tool_call>{\"name\": \"run\"}</tool_call>"),
      seed(ReasoningMode::kOpened, ToolDialect::kXml,
           "So.\n</think>\n\n<tool_call>\n<function=run>\n<parameter=code>\na\n</parameter> b\n"
           "</parameter>\n<parameter=n>\n1\n</parameter>\n<parameter=list>\n['a', (1,)]\n"
           "</parameter>\n</function>\n</tool_call>\nDone."),
      seed(ReasoningMode::kNone, ToolDialect::kXml,
           "I do.\n<function=run>\n<parameter=code>\na\n<parameter=n>\nnull\n</function>\n"
           "</tool_call>\n<function=f>\n</function>"),
      seed(ReasoningMode::kNone, ToolDialect::kPythonic,
           "Both:<|tool_call_start|>[run(n=-1.5e3, code='a\\u00e9\\'', list={'k': [True, "
           "None,]}), f()]<|tool_call_end|>Done."),
      seed(ReasoningMode::kNone, ToolDialect::kPythonic,
           "<|tool_call_start|>[{\"name\": \"run\", \"arguments\": {\"n\": 1}}, {\"name\": "
           "\"f\", \"arguments\": {}}]<|tool_call_end|>ok"),
  };
}

}  // namespace lintel::fuzz
