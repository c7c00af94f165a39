// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/ignored_members.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "server/core/mutex.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

constexpr std::size_t kMostHeaderBytes = 2048;
constexpr std::string_view kCut = ", ...";
constexpr std::size_t kMostNameBytes = 64;
constexpr std::size_t kMostLogged = 256;

// A name in a form for a header and a line of the log.
std::string shown(std::string_view name) {
  std::string text(name.substr(0, kMostNameBytes));
  std::ranges::replace_if(
      text, [](char c) { return c <= ' ' || c > '~' || c == ','; }, '?');
  return text.empty() ? "?" : text;
}

// Names that were logged. Clients may send any number of names, so it is bounded.
class LoggedNames {
 public:
  void log(const std::string& name) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (names_.size() > kMostLogged || !names_.insert(name).second) return;
    if (names_.size() > kMostLogged) {
      spdlog::info("further members of requests that are ignored are not named here");
    } else {
      spdlog::info("requests have the member {}, which is ignored", name);
    }
  }

 private:
  Mutex mutex_;
  std::set<std::string, std::less<>> names_ GUARDED_BY(mutex_);
};

}  // namespace

void IgnoredMembers::add(std::string_view name) {
  // One more than are logged: then the log says that there are more.
  if (is_cut_ && names_.size() > kMostLogged) return;
  const auto [added, is_new] = names_.insert(shown(name));
  if (!is_new) return;
  if (first_.empty()) first_ = *added;
  if (is_cut_) return;
  const std::string_view separator = text_.empty() ? "" : ", ";
  is_cut_ = text_.size() + separator.size() + added->size() + kCut.size() > kMostHeaderBytes;
  if (is_cut_) {
    text_ += kCut;
  } else {
    text_.append(separator).append(*added);
  }
}

grpc::Status IgnoredMembers::report(bool refuses, std::string& header) const {
  if (empty()) return grpc::Status::OK;
  if (refuses) return invalid_argument({{first_, "is not a parameter of this server"}});
  static LoggedNames logged;
  for (const std::string& name : names_) logged.log(name);
  header = text_;
  return grpc::Status::OK;
}

namespace {

// True if one insertion, deletion, substitution or exchange of neighbours makes `a` of `b`.
bool is_one_edit(std::string_view a, std::string_view b) {
  if (a.size() < b.size()) std::swap(a, b);
  if (a.size() > b.size() + 1) return false;
  const auto at = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  if (a.size() > b.size()) return a.substr(at + 1) == b.substr(at);
  if (at == a.size()) return false;  // they are equal
  if (a.substr(at + 1) == b.substr(at + 1)) return true;
  return at + 1 < a.size() && a[at] == b[at + 1] && a[at + 1] == b[at] &&
         a.substr(at + 2) == b.substr(at + 2);
}

}  // namespace

std::string_view find_near_name(std::string_view name, std::span<const std::string_view> served) {
  constexpr std::size_t kLeastLetters = 6;
  const auto found = std::ranges::find_if(served, [&](std::string_view each) {
    return each.size() >= kLeastLetters && is_one_edit(name, each);
  });
  return found == served.end() ? std::string_view() : *found;
}

}  // namespace lintel
