#include "bench/stored_session.h"

#include <chrono>
#include <future>
#include <stdexcept>
#include <utility>

namespace lintel::bench {

using Kind = SessionVault::Write::Kind;

void VaultWrites::add(SessionVault::Write write, VaultBytes body) {
  bodies_.push_back(std::move(body));  // moved along, its bytes stay where they are
  write.body = bodies_.back();
  writes_.push_back(write);
}

void VaultWrites::commit_to(SessionVault& vault) const {
  std::promise<VaultOutcome> written;
  vault.commit(writes_, [&](std::span<const VaultOutcome> outcomes) {
    VaultOutcome worst = VaultOutcome::kDone;
    for (const VaultOutcome outcome : outcomes) {
      if (outcome != VaultOutcome::kDone) worst = outcome;
    }
    written.set_value(worst);
  });
  const VaultOutcome outcome = written.get_future().get();
  if (outcome != VaultOutcome::kDone) {
    throw std::runtime_error(std::string("the session store refuses a write: ") +
                             to_string(outcome));
  }
}

StoredSession::StoredSession(std::string id, std::vector<std::int32_t> of) : values(std::move(of)) {
  row.id = std::move(id);
  row.owner = "bench";
  row.model = "model";
  row.model_print = row.numerics = std::string(64, '0');
  row.durability = Durability::kInput;
  row.position = static_cast<std::int64_t>(values.size());
  row.created = row.used = std::chrono::system_clock::now();
  row.expires = row.used + std::chrono::hours(24 * 365);
  row.digest = digest_of(std::as_bytes(std::span(row.id)));
}

SessionVault::Write StoredSession::write(Kind kind, const Digest& after) {
  SessionVault::Write write{.kind = kind,
                            .id = row.id,
                            .claim = claim,
                            .before = row.digest,
                            .after = after,
                            .position = row.position};
  row.digest = after;
  return write;
}

void StoredSession::create(VaultWrites& to) {
  to.add(write(Kind::kCreate, row.digest), encode_new_session({row, values}));
}

void StoredSession::begin(VaultWrites& to) {
  RowChange change;
  change.call = row.call = "call";
  to.add(write(Kind::kBegin, extend(row.digest, DigestKind::kBegin, {})), encode_change(change));
}

void StoredSession::append(VaultWrites& to, std::span<const std::int32_t> more) {
  row.position += static_cast<std::int64_t>(more.size());
  to.add(write(Kind::kValues, extend(row.digest, DigestKind::kValues, std::as_bytes(more))),
         encode_values(more));
}

void StoredSession::name_state(VaultWrites& to, const SessionVault::StateRef& state) {
  RowChange change;
  change.states = row.states = {state};
  to.add(write(Kind::kState, row.digest), encode_change(change));
}

void StoredSession::open(SessionVault& vault) {
  const SessionVault::Opened opened = vault.open(row.id, row.owner, nullptr);
  if (opened.outcome != VaultOutcome::kDone) {
    throw std::runtime_error(std::string("a stored session cannot be opened: ") +
                             to_string(opened.outcome));
  }
  claim = opened.claim;
}

}  // namespace lintel::bench
