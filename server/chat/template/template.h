// SPDX-License-Identifier: Apache-2.0
// ChatTemplate: the template of a model, which turns messages into the text of a prompt.
//
// The language is the part of Jinja that templates of models use, with the results of jinja2 3.1.6
// as transformers sets it: trim_blocks, lstrip_blocks, loop controls, no escaping, nothing that
// changes a value. A template comes with a model and is not trusted: parsing and rendering are
// bounded in time and memory, and a template sees no file, no environment and no clock but the time
// that it is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/json_reader.h"

namespace lintel {

// The origin of bytes of a rendered text. An added token may be cut out of a text only if all its
// bytes are the template's.
enum class TextOrigin : std::uint8_t {
  kTemplate,   // the template itself, texts of special tokens, roles
  kContent,    // a message, a tool, a document, an argument of the request
  kAssistant,  // a message of the assistant, which the model may have written
};

struct TextSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  TextOrigin origin = TextOrigin::kTemplate;
};

struct RenderedText {
  std::string text;             // UTF-8
  std::vector<TextSpan> spans;  // of all of `text`, ascending; neighbours differ in origin
};

// Limits of a template. A template beyond one fails with TemplateError::Kind::kBound.
struct TemplateLimits {
  // Limits of parsing.
  std::size_t source_bytes = std::size_t{1} << 20;
  int nesting = 64;             // of statements and expressions within each other
  std::size_t nodes = 100'000;  // of statements, expressions, filters, tests, arguments
  // Limits of a render. A step is a node evaluated, an item passed or 64 bytes made or read.
  std::uint64_t steps = 5'000'000;
  int macro_depth = 32;
  std::size_t text_bytes = std::size_t{16} << 20;    // of one text
  std::size_t output_bytes = std::size_t{16} << 20;  // of the whole output
  std::size_t memory_bytes = std::size_t{256} << 20;
  double cpu_seconds = 10;  // of the rendering thread
};

// A template that cannot be parsed or rendered.
class TemplateError : public std::runtime_error {
 public:
  enum class Kind : std::uint8_t {
    kSyntax,  // the source is no template of the supported language
    kFailed,  // a render failed
    kBound,   // a limit of TemplateLimits was reached; bound() is its name
  };
  TemplateError(Kind kind, std::size_t line, const std::string& what, std::string bound = {})
      : std::runtime_error(what), kind_(kind), line_(line), bound_(std::move(bound)) {}

  Kind kind() const { return kind_; }
  std::size_t line() const { return line_; }  // from 1; 0: of no line
  const std::string& bound() const { return bound_; }

 private:
  Kind kind_;
  std::size_t line_;
  std::string bound_;
};

// raise_exception of a template: the request is not one that it serves. what() has the template's
// words alone.
class TemplateRefusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// RenderInput::budget ended the render: the text has no reader, or there is no memory for it.
class RenderCancelled : public std::runtime_error {
 public:
  RenderCancelled() : std::runtime_error("the render was cancelled") {}
};

// The local time that strftime_now prints.
struct LocalTime {
  int year = 1970;
  int month = 1;
  int day = 1;
  int hour = 0;
  int minute = 0;
  int second = 0;
  std::string zone;  // "CET"
};
// The time in the time zone of the process.
LocalTime local_time(std::time_t time);

// The input of one render. REQUIRES: the objects that the pointers refer to outlive the call.
struct RenderInput {
  // A list of objects.
  const nlohmann::ordered_json* messages = nullptr;
  // Null: the template sees none.
  const nlohmann::ordered_json* tools = nullptr;
  const nlohmann::ordered_json* documents = nullptr;
  // An object whose members become variables. Members that are given otherwise have no effect.
  const nlohmann::ordered_json* kwargs = nullptr;
  bool add_generation_prompt = true;
  // The text ends with the content of the last message. REQUIRES: no add_generation_prompt.
  bool continue_final_message = false;
  LocalTime now;
  // Charged with the memory that the render holds, until its end, and asked every few milliseconds
  // whether it is cancelled; on the rendering thread. Null: TemplateLimits are all.
  JsonBudget* budget = nullptr;
};

// True if a member of `kwargs` of this name would take the place of a variable that is given
// otherwise: messages, tools, documents, add_generation_prompt, texts of special tokens.
bool is_given_variable(std::string_view name);

// Special tokens that templates name, by variable: bos_token, eos_token, pad_token, unk_token. One
// that a model does not have is not there.
using SpecialTokenTexts = std::map<std::string, std::string, std::less<>>;

// Parsed once; immutable and shared by threads. A render takes memory of its own, which is freed
// when it returns.
class ChatTemplate {
 public:
  // Throws TemplateError of kind kSyntax or kBound.
  explicit ChatTemplate(std::string source, SpecialTokenTexts special_tokens = {},
                        const TemplateLimits& limits = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  const std::string& source() const { return source_; }
  const SpecialTokenTexts& special_tokens() const { return special_tokens_; }
  const TemplateLimits& limits() const { return limits_; }

  // True if the template has a variable or a function of this name.
  bool has_variable(std::string_view name) const;

  // Renders on the caller's thread. Integers that a JSON number cannot hold are as
  // parse_request_json (request_json.h) keeps them. Throws TemplateError of kind kFailed or kBound,
  // TemplateRefusal, and RenderCancelled.
  RenderedText render(const RenderInput& input) const;

 private:
  struct Program;

  std::string source_;
  SpecialTokenTexts special_tokens_;
  TemplateLimits limits_;
  std::unique_ptr<const Program> program_;
};

// The template that GGUF files of RWKV's World models name in place of a text, and that text.
inline constexpr std::string_view kRwkvWorldTemplateName = "rwkv-world";
extern const std::string_view kRwkvWorldTemplate;

}  // namespace lintel
