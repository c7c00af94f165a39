#include "server/requests/session_checks.h"

namespace lintel {

CheckedList check_list(const v1::ListSessionsRequest& wire, Violations& violations) {
  CheckedList out;
  constexpr int kMaxPage = 1000;
  if (wire.page_size() < 0 || wire.page_size() > kMaxPage) {
    violations.add("page_size", std::to_string(wire.page_size()) + " is not from 0 to " +
                                    std::to_string(kMaxPage));
  } else if (wire.page_size() > 0) {
    out.page_size = static_cast<std::size_t>(wire.page_size());
  }
  const std::string& token = wire.page_token();
  const bool is_id =
      token.size() == 32 && token.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!token.empty() && !is_id) {
    violations.add("page_token", "'" + clip(token) + "' is not a next_page_token of this server");
  }
  out.after_id = token;
  return out;
}

void check_session_id(const std::string& id, Violations& violations) {
  if (id.empty()) violations.add("id", "is empty");
}

void check_session_length(std::int64_t max_tokens, const std::string& field, std::int64_t most,
                          Violations& violations) {
  constexpr std::int64_t kFarthest = std::int64_t{1} << 53;
  if (max_tokens >= 0 && max_tokens <= (most == 0 ? kFarthest : most)) return;
  violations.add(field, std::to_string(max_tokens) + " is not from 0 to " +
                            (most == 0 ? std::string("2^53") : std::to_string(most)));
}

}  // namespace lintel
