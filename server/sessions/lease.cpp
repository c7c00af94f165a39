#include "server/sessions/lease.h"

#include <utility>

#include "server/sessions/session_record.h"
#include "server/sessions/session_store.h"

namespace lintel {

SessionLease::SessionLease(SessionStore* store, std::shared_ptr<SessionRecord> record)
    : store_(store), record_(std::move(record)) {}

SessionLease::SessionLease(SessionLease&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), record_(std::move(other.record_)) {}

SessionLease& SessionLease::operator=(SessionLease&& other) noexcept {
  if (this != &other) {
    give_back();
    store_ = std::exchange(other.store_, nullptr);
    record_ = std::move(other.record_);
  }
  return *this;
}

SessionLease::~SessionLease() { give_back(); }

void SessionLease::give_back() noexcept {
  if (record_ != nullptr) store_->give_back(std::move(record_));
  record_ = nullptr;
}

const std::string& SessionLease::session_id() const { return record_->id; }
const std::string& SessionLease::model() const { return record_->model_name; }
const Transformer& SessionLease::transformer() const { return *record_->model; }
const SharedAdapter& SessionLease::adapter() const { return record_->adapter; }
bool SessionLease::adapter_ended() const {
  return record_ != nullptr && record_->adapter != nullptr && record_->adapter->ended.load();
}
SequenceState& SessionLease::sequence() { return *record_->sequence; }
ValueLog* SessionLease::log() const { return record_->log; }
void SessionLease::log_to(ValueLog* log) { record_->log = log; }
std::int64_t SessionLease::max_values() const { return record_->max_values; }

void SessionLease::hold(std::size_t call_bytes) {
  record_->of_call.emplace(store_->memory_.take(record_->reservation.owner(), call_bytes));
}

void SessionLease::discard() { record_->discarded = true; }  // read by the store at the give-back

}  // namespace lintel
