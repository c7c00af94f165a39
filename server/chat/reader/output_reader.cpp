// SPDX-License-Identifier: Apache-2.0
#include "server/chat/reader/output_reader.h"

#include <utility>

namespace lintel {
namespace {

// Bytes that may be read again before held text is no longer searched for calls: so many for each
// byte of the output, and at least so many.
constexpr std::uint64_t kRewoundForEachByte = 16;
constexpr std::uint64_t kRewoundBytes = std::uint64_t{1} << 20;

}  // namespace

// Writes calls as deltas.
class OutputReader::Sink final : public CallSink {
 public:
  explicit Sink(OutputReader& reader) : reader_(reader) {}

  void announce(std::string_view name) override {
    reader_.announce();
    add().name = name;
  }
  void arguments(std::string_view text) override {
    if (text.empty()) return;
    const std::vector<OutputDelta>& deltas = *reader_.deltas_;
    const bool continues =
        deltas.size() > reader_.first_delta_ && deltas.back().kind == OutputDelta::Kind::kCall;
    (continues ? reader_.deltas_->back() : add()).text += text;
  }
  void complete() override { reader_.last_is_whole_ = true; }

 private:
  OutputDelta& add() {
    OutputDelta& delta = reader_.deltas_->emplace_back();
    delta.kind = OutputDelta::Kind::kCall;
    delta.call = reader_.num_calls_ - 1;
    return delta;
  }

  OutputReader& reader_;
};

OutputReader::OutputReader(const Options& options, const ToolTypes* tools)
    : options_(options), tools_(tools), mode_(Mode::kContent) {
  if (options.reasoning == ReasoningMode::kTags) mode_ = Mode::kStart;
  if (options.reasoning == ReasoningMode::kOpened) {
    mode_ = Mode::kReasoning;
    takes_think_ = true;
    reasoning_ = ReasoningSpan{};
  }
}

OutputReader::~OutputReader() = default;
OutputReader::OutputReader(OutputReader&&) noexcept = default;
OutputReader& OutputReader::operator=(OutputReader&&) noexcept = default;

void OutputReader::push(std::string_view bytes, std::vector<OutputDelta>& deltas) {
  if (stopped()) return;
  deltas_ = &deltas;
  first_delta_ = deltas.size();
  std::string text;
  characters_.push(bytes, text);
  input_.append(text);
  run();
}

void OutputReader::finish(OutputEnd end, std::vector<OutputDelta>& deltas) {
  if (stopped() || end == OutputEnd::kLength) return;
  deltas_ = &deltas;
  first_delta_ = deltas.size();
  std::string text;
  characters_.finish(text);
  input_.append(text);
  run();
  // Held bytes are text, in which tags and calls may begin.
  while (in_tag_ || (call_ != nullptr && !announced_)) {
    if (in_tag_) {
      not_a_tag();
    } else {
      not_a_call();
    }
    run();
  }
  if (call_ != nullptr) {
    Sink sink(*this);
    call_->finish(input_, sink);
  } else if (num_calls_ == 0 && (mode_ == Mode::kStart || mode_ == Mode::kContent)) {
    flush_white_space(input_.read_bytes());
  }
}

void OutputReader::run() {
  while (!input_.empty() && !stopped()) step(input_.next());
  input_.trim();
}

void OutputReader::step(char byte) {
  if (in_tag_) {
    step_tag(byte);
  } else if (call_ != nullptr) {
    step_call(byte);
  } else {
    step_text(byte);
  }
}

void OutputReader::step_text(char byte) {
  if (byte == '<') {
    if (const Tags tags = tags_here(); tags != 0) {
      input_.mark();
      tag_.begin(tags);
      in_tag_ = true;
      return;
    }
  }
  if (mode_ == Mode::kDropping) return;
  if (!is_white_space(byte)) return add_text(byte, input_.offset());
  line_start_ = byte == '\n';
  if (!keeps_white_space()) return;
  white_space_ += byte;
  if (white_space_.size() > kMaxWaitingBytes) flush_white_space(input_.offset() + 1);
}

Tags OutputReader::tags_here() const {
  const bool reasoning = mode_ == Mode::kReasoning;
  Tags tags = 0;
  if (mode_ == Mode::kStart || takes_think_) tags |= tag_bit(Tag::kThink);
  if (reasoning || end_think_may_come_) tags |= tag_bit(Tag::kEndThink);
  if (options_.dialect == ToolDialect::kNone) return tags;
  const bool is_pythonic = options_.dialect == ToolDialect::kPythonic;
  // A closing tag after a call is none of the content, even if it is repeated.
  if (num_calls_ > 0) tags |= tag_bit(is_pythonic ? Tag::kCallEnd : Tag::kEndToolCall);
  if (input_.offset() < plain_until_) return tags;
  if (has_content_ && !options_.calls_after_text) return tags;
  if (options_.dialect == ToolDialect::kXml && line_start_) tags |= tag_bit(Tag::kFunction);
  return tags | tag_bit(is_pythonic ? Tag::kCallStart : Tag::kToolCall);
}

void OutputReader::step_tag(char byte) {
  switch (tag_.step(byte)) {
    case TagMatcher::Result::kMore:
      return;
    case TagMatcher::Result::kNone:
      return not_a_tag();
    case TagMatcher::Result::kMatched:
      break;
  }
  in_tag_ = false;
  take_tag(tag_.matched());
}

void OutputReader::take_tag(Tag tag) {
  switch (tag) {
    case Tag::kThink:
      input_.release();
      mode_ = Mode::kReasoning;
      takes_think_ = false;
      line_start_ = false;
      white_space_.clear();
      reasoning_ = ReasoningSpan{input_.read_bytes(), {}};
      return;
    case Tag::kEndThink:
      end_think_may_come_ = false;
      if (mode_ == Mode::kReasoning) return end_reasoning();
      if (num_calls_ > 0) return end_section();
      input_.release();
      line_start_ = true;
      return white_space_.clear();
    case Tag::kEndToolCall:
    case Tag::kCallEnd:
      return end_section();
    default:
      return begin_call(tag);
  }
}

void OutputReader::begin_call(Tag tag) {
  // The next call ends one whose closing tag is missing.
  if (stops_after_tag_ || (mode_ == Mode::kDropping && !options_.parallel)) {
    mode_ = Mode::kStopped;
    return;
  }
  if (mode_ == Mode::kDropping) mode_ = Mode::kContent;
  announced_ = false;
  bare_ = tag == Tag::kFunction;
  if (tag == Tag::kCallStart) {
    call_ = make_pythonic_reader();
  } else if (options_.dialect == ToolDialect::kHermes) {
    call_ = make_hermes_reader();
  } else {
    call_ = make_xml_reader(tools_, bare_);
  }
}

void OutputReader::step_call(char byte) {
  if (!announced_ && input_.marked_bytes() > kMaxHeldBytes) return not_a_call();
  Sink sink(*this);
  switch (call_->step(byte, input_, sink)) {
    case CallReader::Progress::kMore:
      return;
    case CallReader::Progress::kNotACall:
      return not_a_call();
    case CallReader::Progress::kCallEnd:
      if (!options_.parallel) mode_ = Mode::kStopped;
      return;
    case CallReader::Progress::kDropRest:
      call_.reset();
      mode_ = Mode::kDropping;
      return step_text(byte);  // it may begin the closing tag
    case CallReader::Progress::kSectionEnd:
      return end_section();
    case CallReader::Progress::kFunctionEnd:
      end_section();
      if (options_.parallel || !bare_) {
        mode_ = Mode::kContent;
        stops_after_tag_ = !options_.parallel;
      }
      return;
  }
}

void OutputReader::announce() {
  calls_are_whole_ = calls_are_whole();
  last_is_whole_ = false;
  ++num_calls_;
  if (announced_) return;
  announced_ = true;
  if (mode_ == Mode::kReasoning) {
    end_reasoning();
    end_think_may_come_ = true;
  }
  input_.release();
  mode_ = Mode::kContent;
  white_space_.clear();
  trims_content_ = true;
}

void OutputReader::end_section() {
  input_.release();
  call_.reset();
  mode_ = options_.parallel ? Mode::kContent : Mode::kStopped;
  line_start_ = true;
  white_space_.clear();
}

void OutputReader::end_reasoning() {
  reasoning_->end = input_.mark_offset();
  input_.release();
  mode_ = Mode::kContent;
  takes_think_ = false;
  line_start_ = true;
  white_space_.clear();
  trims_content_ = true;
}

void OutputReader::not_a_tag() {
  in_tag_ = false;
  const std::uint64_t offset = input_.mark_offset();
  input_.rewind();
  if (mode_ != Mode::kDropping) add_text('<', offset);
}

void OutputReader::not_a_call() {
  call_.reset();
  const std::uint64_t read = input_.read_bytes();
  if (input_.rewound_bytes() > kRewoundBytes + kRewoundForEachByte * read) plain_until_ = read;
  not_a_tag();
}

void OutputReader::add_text(char byte, std::uint64_t offset) {
  if (stops_after_tag_) {
    mode_ = Mode::kStopped;
    return;
  }
  flush_white_space(offset);
  line_start_ = false;
  append(std::string_view(&byte, 1), offset);
}

// White space that ends at `end` is text.
void OutputReader::flush_white_space(std::uint64_t end) {
  if (white_space_.empty()) return;
  const std::string text = std::exchange(white_space_, {});
  append(text, end - text.size());
}

void OutputReader::append(std::string_view text, std::uint64_t offset) {
  const bool reasoning = mode_ == Mode::kReasoning;
  (reasoning ? has_reasoning_text_ : has_content_) = true;
  takes_think_ = false;
  if (!reasoning) mode_ = Mode::kContent;
  const auto kind = reasoning ? OutputDelta::Kind::kReasoning : OutputDelta::Kind::kContent;
  if (deltas_->size() > first_delta_) {
    OutputDelta& last = deltas_->back();
    if (last.kind == kind && last.offset + last.text.size() == offset) {
      last.text += text;
      return;
    }
  }
  OutputDelta& delta = deltas_->emplace_back();
  delta.kind = kind;
  delta.text = text;
  delta.offset = offset;
}

bool OutputReader::keeps_white_space() const {
  if (mode_ == Mode::kReasoning) return has_reasoning_text_;
  return has_content_ || !trims_content_;
}

}  // namespace lintel
