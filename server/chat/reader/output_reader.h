// SPDX-License-Identifier: Apache-2.0
// OutputReader: a model's output as it streams, as reasoning, content and calls of tools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/utf8.h"
#include "server/chat/reader/call_reader.h"
#include "server/chat/reader/lookahead.h"
#include "server/chat/reader/tool_dialect.h"
#include "server/chat/reader/tool_types.h"

namespace lintel {

enum class ReasoningMode {
  kNone,    // the output is content
  kTags,    // reasoning, if the output begins with <think>
  kOpened,  // the prompt ended with <think>
};

enum class OutputEnd {
  kStop,    // the model ended: what waits is text
  kLength,  // a limit ended it: what waits is dropped, as it may be a part of a tag
};

// A change that a piece of output makes.
struct OutputDelta {
  enum class Kind { kReasoning, kContent, kCall };

  Kind kind = Kind::kContent;
  // Whole characters of reasoning or content; of a call, the next piece of its arguments.
  std::string text;
  // Bytes of output before `text`, which is there byte for byte; of reasoning and content.
  std::uint64_t offset = 0;
  std::size_t call = 0;  // of a call: its index, from 0
  std::string name;      // of the first delta of a call; empty in others
};

// Reads one output. The joined deltas do not depend on how the bytes were cut, a delta comes as
// soon as nothing that follows can change it, and nothing is taken back. A call that breaks off, or
// whose arguments cannot be read, stays without its closing brace. Bytes that are no UTF-8 are read
// as U+FFFD, and offsets count its bytes.
//
// Time is linear in the output. Held text is at most kMaxWaitingBytes for white space and for the
// white space in tags, and kMaxHeldBytes for a call whose name has not come and for an argument
// that comes whole; longer ones are text. Used by one thread at a time.
class OutputReader {
 public:
  struct Options {
    ReasoningMode reasoning = ReasoningMode::kNone;
    ToolDialect dialect = ToolDialect::kNone;
    bool parallel = true;  // false: the reader stops at the end of the first call
    // False: after its first content an answer has no calls.
    bool calls_after_text = true;
  };

  // `tools`: types of parameters for kXml, null if unknown; it outlives the reader.
  explicit OutputReader(const Options& options, const ToolTypes* tools = nullptr);
  ~OutputReader();
  OutputReader(OutputReader&&) noexcept;
  OutputReader& operator=(OutputReader&&) noexcept;

  // Appends to `deltas` what `bytes` add. Nothing once the reader has stopped.
  void push(std::string_view bytes, std::vector<OutputDelta>& deltas);
  // The output ends. REQUIRES: called once, and no push after it.
  void finish(OutputEnd end, std::vector<OutputDelta>& deltas);

  // The server ended the reasoning, not the model: the first </think> in what follows is dropped.
  void expect_end_of_thought() { end_think_may_come_ = true; }

  // True if the first call is complete and `parallel` is false: generation can end.
  bool stopped() const { return mode_ == Mode::kStopped; }
  std::size_t num_calls() const { return num_calls_; }
  // Returns whether the arguments of each call are complete so far.
  bool calls_are_whole() const { return calls_are_whole_ && (num_calls_ == 0 || last_is_whole_); }
  // True if the next byte belongs to the reasoning, as far as the output is decided.
  bool in_reasoning() const { return mode_ == Mode::kReasoning; }

  // The place of the reasoning in the output, in bytes: after <think>, and before </think> or the
  // tag of the call that ends it. Tokens between are tokens of reasoning.
  struct ReasoningSpan {
    std::uint64_t begin = 0;
    std::optional<std::uint64_t> end;  // nothing while it is open
  };
  // The span of the reasoning; nothing: there is none so far.
  const std::optional<ReasoningSpan>& reasoning() const { return reasoning_; }
  // The bytes of output that were read: whole characters, U+FFFD included.
  std::uint64_t read_bytes() const { return input_.read_bytes(); }
  // The bytes of output before a tag, or a call without a name, that may be coming.
  std::uint64_t decided() const {
    const bool waits = in_tag_ || (call_ != nullptr && !announced_);
    return waits ? input_.mark_offset() : input_.read_bytes();
  }

 private:
  enum class Mode {
    kStart,  // only white space so far, where <think> may come
    kReasoning,
    kContent,
    kDropping,  // after a call, up to its closing tag
    kStopped,
  };
  class Sink;

  void run();
  void step(char byte);
  void step_text(char byte);
  void step_tag(char byte);
  void step_call(char byte);
  void take_tag(Tag tag);
  void begin_call(Tag tag);
  void announce();
  void end_section();
  void end_reasoning();
  void not_a_tag();
  void not_a_call();
  void add_text(char byte, std::uint64_t offset);
  void flush_white_space(std::uint64_t end);
  void append(std::string_view text, std::uint64_t offset);
  bool keeps_white_space() const;
  Tags tags_here() const;

  Options options_;
  const ToolTypes* tools_;
  Mode mode_;
  Utf8Stream characters_;
  Lookahead input_;
  std::vector<OutputDelta>* deltas_ = nullptr;  // of the call of push or finish,
  std::size_t first_delta_ = 0;                 // its own from this one

  // The marked part of the input: a tag that may be coming, or a call without a name.
  bool in_tag_ = false;
  TagMatcher tag_;
  std::unique_ptr<CallReader> call_;  // after the start tag, until the call or its list ends
  bool announced_ = false;            // `call_` has announced a call
  bool bare_ = false;                 // `call_` began with <function=
  std::uint64_t plain_until_ = 0;     // no call is looked for before this offset

  bool line_start_ = true;    // the next byte of text begins a line
  bool takes_think_ = false;  // a <think> at the start of opened reasoning is dropped
  std::string white_space_;   // waits for what follows
  bool has_reasoning_text_ = false;
  bool has_content_ = false;
  bool trims_content_ = false;       // white space before the first content is dropped
  bool end_think_may_come_ = false;  // a call has ended the reasoning: its </think> is dropped
  bool stops_after_tag_ = false;     // the first call is complete, but for a closing tag
  std::size_t num_calls_ = 0;
  bool calls_are_whole_ = true;  // but for the last
  bool last_is_whole_ = false;
  std::optional<ReasoningSpan> reasoning_;
};

}  // namespace lintel
