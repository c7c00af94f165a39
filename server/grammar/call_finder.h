// SPDX-License-Identifier: Apache-2.0
// CallFinder: where a call begins in a text that may also speak of calls, as reasoning does.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/grammar/tool_dialect.h"

namespace lintel::grammar {

// A start tag begins a call if, after white space, what a call has first follows it: `{` in
// kHermes, `<function=` in kXml, `[`, `{` or a name and `(` in kPythonic. In kXml `<function=`
// begins one at the beginning of a line, too. A tag that other text follows is text. The same as
// readers of calls take for one. Time is linear in the text; at most some 350 bytes are kept.
class CallFinder {
 public:
  explicit CallFinder(ToolDialect dialect) : dialect_(dialect) {}

  // Takes the next byte. True: with it a call begins; no byte may follow.
  bool step(char byte);
  // The text from the tag on that is, or may become, the beginning of a call, as a grammar of calls
  // takes it: with a start tag, and after it no more white space than each takes. Empty: there is
  // none.
  std::string text() const;

  // True if some text before `token` makes it the one with which a call begins; or, if `whole`, the
  // empty text, or that of a line before it. May be true of a few others.
  static bool may_begin_in(ToolDialect dialect, std::string_view token, bool whole);

 private:
  enum class Match { kNone, kPart, kWhole };
  Match match() const;

  ToolDialect dialect_;
  std::string pending_;               // from the `<` on
  bool begins_line_ = true;           // the next byte begins a line
  bool pending_begins_line_ = false;  // `pending_` does
};

}  // namespace lintel::grammar
