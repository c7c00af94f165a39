// SPDX-License-Identifier: Apache-2.0
// JsonCall: a call as a JSON object, {"name": NAME, "arguments": OBJECT}.
#pragma once

#include <string>

#include "server/chat/reader/call_reader.h"
#include "server/chat/reader/literals.h"

namespace lintel {

// `parameters` stands for `arguments`; the members come in either order, other members are ignored,
// and of each the first counts. Arguments may be a JSON text of an object; none are {}. They are
// the model's own bytes, from the brace to its partner.
class JsonCall {
 public:
  enum class Progress {
    kMore,
    kFailed,   // before the announcement: not a call; after it: the rest cannot be read
    kWritten,  // the arguments are complete and written; members may follow
    kEnd,      // the object ended with this byte
  };

  // Reads a byte after the opening brace. Holds at most kMaxHeldBytes until the name has come.
  Progress step(char byte, CallSink& sink);
  bool announced() const { return announced_; }

 private:
  enum class State { kKeyOrEnd, kKey, kColon, kValue, kName, kText, kScalar, kSpan, kAfterValue };
  enum class Member { kOther, kName, kArguments };

  Progress begin_value(char byte, CallSink& sink);
  Progress end_key();
  Progress end_object(CallSink& sink);
  Progress end_arguments();
  Progress add_arguments(char byte, CallSink& sink);
  Progress step_text(char byte, CallSink& sink);
  void announce(CallSink& sink);

  State state_ = State::kKeyOrEnd;
  Member member_ = Member::kOther;
  bool announced_ = false;
  bool has_arguments_ = false;  // or a part of them
  bool complete_ = false;       // to their partner
  QuotedText quoted_;
  JsonSpan span_;
  NameText name_;
  std::string piece_;
  std::string key_;
  std::string held_;  // arguments that wait for the name, or a text for its end
};

}  // namespace lintel
