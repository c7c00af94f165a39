// SPDX-License-Identifier: Apache-2.0
// CallReader: the contract of a dialect, and the dialects.
#pragma once

#include <memory>
#include <string_view>

#include "server/chat/reader/lookahead.h"
#include "server/chat/reader/tool_types.h"

namespace lintel {

// Takes the calls that a dialect's reader finds.
class CallSink {
 public:
  // The next call, and its name.
  virtual void announce(std::string_view name) = 0;
  // The next piece of the arguments of the call announced last, JSON.
  virtual void arguments(std::string_view text) = 0;
  // The arguments of the call announced last are whole.
  virtual void complete() = 0;

 protected:
  ~CallSink() = default;
};

// Reads what follows the start tag of a call, a byte at a time. Until the first call is announced
// the caller has a mark at the tag; afterwards the reader may set the mark of `input` and rewind.
class CallReader {
 public:
  enum class Progress {
    kMore,
    kNotACall,     // before the first call was announced: the tag is text
    kCallEnd,      // a call is complete; others may follow before the closing tag
    kDropRest,     // no call follows before the closing tag; what comes before it is dropped
    kSectionEnd,   // the closing tag was read
    kFunctionEnd,  // </function> was read; a closing tag may follow
  };

  virtual ~CallReader() = default;
  virtual Progress step(char byte, Lookahead& input, CallSink& sink) = 0;
  // The output ends by itself within an announced call: writes what is known of it now.
  virtual void finish(Lookahead& /*input*/, CallSink& /*sink*/) {}
};

// Reads after <tool_call>.
std::unique_ptr<CallReader> make_hermes_reader();
// Reads after <tool_call>, or after <function= if `bare`. `tools`: null if unknown.
std::unique_ptr<CallReader> make_xml_reader(const ToolTypes* tools, bool bare);
// Reads after <|tool_call_start|>.
std::unique_ptr<CallReader> make_pythonic_reader();

}  // namespace lintel
