// SPDX-License-Identifier: Apache-2.0
// IgnoredMembers: members of a request that its reader does not know and goes without.
#pragma once

#include <grpcpp/support/status.h>

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace lintel {

// The header of an answer that lists the names, separated by commas.
inline constexpr const char* kIgnoredHeader = "lintel-ignored";

// Names of one request, each once. Of names that a header has no room for as many are kept as are
// logged: the names of a hostile body take little memory. Used by one thread at a time.
class IgnoredMembers {
 public:
  // `name`: a member as a client finds it in its request, "logit_scale" or "stream_options.chunks",
  // or a member and a value that is left out of it, "tools=web_search".
  void add(std::string_view name);
  bool empty() const { return text_.empty(); }

  // Not OK: there are some and `refuses` is true (--unknown-members refuse); names the first.
  // Otherwise fills `header` with them, in at most 2 KiB, and logs those that were not logged since
  // the process began. Empty header: there are none.
  grpc::Status report(bool refuses, std::string& header) const;

 private:
  std::set<std::string, std::less<>> names_;
  std::string first_;
  std::string text_;
  bool is_cut_ = false;
};

// The one of `served` that `name` misspells: a name of at least six letters that differs from it by
// one letter, or by two that are exchanged. Empty: there is none.
std::string_view find_near_name(std::string_view name, std::span<const std::string_view> served);

}  // namespace lintel
