// SPDX-License-Identifier: Apache-2.0
// The tokens that clients received of one session, which must be one line without gaps.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace lintel::testing {

// Thread-safe. A token counts as soon as a client has it.
class TokenLine {
 public:
  // Call `call` delivered this token. Nothing, or what is wrong: another call delivered one at the
  // position, or the same call another one.
  std::optional<std::string> received(const std::string& call, std::int64_t position,
                                      std::int32_t token);
  // The call has ended there.
  std::optional<std::string> ended(const std::string& call, std::int64_t position);
  // The error in a session that has these tokens from position `first` on: one is missing, another,
  // or was never delivered though every call has ended. Empty: none.
  std::string difference(const std::vector<std::int32_t>& stored, std::int64_t first = 0) const;
  std::size_t size() const;

 private:
  struct Received {
    std::string call;
    std::int32_t token = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::int64_t, Received> tokens_;
};

}  // namespace lintel::testing
