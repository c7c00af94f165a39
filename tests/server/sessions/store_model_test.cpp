// SPDX-License-Identifier: Apache-2.0
// The store of sessions beside a model of it.
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/sessions/store_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Error = SessionError;
using std::chrono::seconds;

// The store's specification, as simply as it can be said, beside a store that follows it: each
// operation does the same to both and compares the results.
class StoreModel {
 public:
  explicit StoreModel(unsigned seed) : random_(seed) {}

  void create() {
    const bool fits = make_room(1, /*for_session=*/true);
    const auto created = store_.create("tiny", f_.model, 0);
    REQUIRE((created.refusal.error == Error::kNone) == fits);
    if (!fits) return;
    sessions_[created.info.id] = {f_.clock.now()};
    known_.push_back(created.info.id);
    if (known_.size() > 20) known_.erase(known_.begin() + 1);
  }

  void lease(const std::string& id) {
    auto leased = store_.lease(id);
    REQUIRE(leased.refusal.error == refusal_of(id));
    if (leased.lease) leases_[id] = std::move(leased.lease);
  }

  // The results of its call are read or not, and the session may be found broken.
  void give_back() {
    if (leases_.empty()) return;
    const auto lease = leases_.begin();
    SequenceState& sequence = lease->second.sequence();
    const int count = below(2);
    if (sequence.position() + count <= 29) feed(*f_.model, sequence, count);
    Session& session = sessions_.at(lease->first);
    session.num_tokens = sequence.num_tokens();
    session.last_used = f_.clock.now();
    if (below(8) == 0) {
      lease->second.discard();
      sessions_.erase(lease->first);
    }
    leases_.erase(lease);
  }

  void remove(const std::string& id) {
    const Error expected = refusal_of(id);
    REQUIRE(store_.remove(id).error == expected);
    if (expected == Error::kNone) sessions_.erase(id);
  }

  void begin_one_shot() {
    const int samples = 1 + below(3);
    const bool fits = make_room(static_cast<std::size_t>(samples), /*for_session=*/false);
    auto leased = store_.lease_one_shot("tiny", f_.model, 30, samples);
    REQUIRE((leased.refusal.error == Error::kNone) == fits);
    if (!fits) return;
    REQUIRE(leased.lease.sequence().num_tokens() == 0);
    one_shots_.emplace_back(samples, std::move(leased.lease));
  }

  void end_one_shot() {
    if (!one_shots_.empty()) one_shots_.erase(one_shots_.begin());
  }

  void wait() {
    f_.clock.advance(seconds(below(5)));
    if (below(4) == 0) REQUIRE(store_.evict_idle() == evict());
  }

  void agrees(const std::string& id) const {
    REQUIRE(store_.num_sessions() == sessions_.size());
    REQUIRE(store_.bytes_in_use() == bytes());
    const auto info = store_.get(id);
    REQUIRE(info.has_value() == sessions_.contains(id));
    if (!info) return;
    REQUIRE(info->busy == leases_.contains(id));
    REQUIRE(info->num_tokens == sessions_.at(id).num_tokens);
  }

  int below(unsigned bound) { return static_cast<int>(random_() % bound); }
  // The id of a session that was made of late, or of none.
  std::string some_id() { return known_[random_() % known_.size()]; }

 private:
  static constexpr std::size_t kSessions = 6;
  static constexpr std::size_t kStates = 8;
  static constexpr auto kTimeout = seconds(20);
  struct Session {
    TimePoint last_used;
    std::int64_t num_tokens = 0;
  };

  Error refusal_of(const std::string& id) const {
    if (!sessions_.contains(id)) return Error::kNotFound;
    return leases_.contains(id) ? Error::kBusy : Error::kNone;
  }
  std::size_t bytes() const {
    std::size_t bytes = sessions_.size() * f_.session_bytes;
    for (const auto& [samples, lease] : one_shots_) {
      bytes += static_cast<std::size_t>(samples) * f_.bytes_each;
    }
    return bytes;
  }
  std::size_t evict() {
    return std::erase_if(sessions_, [&](const auto& session) {
      return !leases_.contains(session.first) &&
             f_.clock.now() - session.second.last_used >= kTimeout;
    });
  }
  // Returns whether so many states fit, once those idle for too long are removed for them.
  bool make_room(std::size_t count, bool for_session) {
    const auto fits = [&] {
      const std::size_t more = count * (for_session ? f_.session_bytes : f_.bytes_each);
      return bytes() + more <= kStates * f_.session_bytes &&
             (!for_session || sessions_.size() < kSessions);
    };
    if (!fits()) evict();
    return fits();
  }

  std::mt19937 random_;
  StoreFixture f_{{}};
  SessionManager store_{{.max_sessions = kSessions,
                         .session_memory_bytes = kStates * f_.session_bytes,
                         .idle_timeout = kTimeout},
                        f_.clock};
  std::map<std::string, Session> sessions_;
  std::map<std::string, SessionLease> leases_;           // by session
  std::vector<std::pair<int, SessionLease>> one_shots_;  // with their samples
  std::vector<std::string> known_ = {"no such session"};
};

TEST_CASE("the store agrees with its model over random operations") {
  const unsigned seed = 4711;
  INFO("seed " << seed);
  StoreModel model(seed);
  for (int i = 0; i < 20000; ++i) {
    const std::string id = model.some_id();
    switch (model.below(9)) {
      case 0:
        model.create();
        break;
      case 1:
      case 2:
        model.lease(id);
        break;
      case 3:
      case 4:
        model.give_back();
        break;
      case 5:
        model.remove(id);
        break;
      case 6:
        model.begin_one_shot();
        break;
      case 7:
        model.end_one_shot();
        break;
      case 8:
        model.wait();
        break;
    }
    model.agrees(id);
  }
}

}  // namespace
}  // namespace lintel::testing
