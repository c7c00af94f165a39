// LeaseKeeper: who holds a session on when its call has ended.
#pragma once

namespace lintel {

class SequenceState;
class SessionLease;

class LeaseKeeper {
 public:
  virtual ~LeaseKeeper() = default;
  // The lease, in place of the session's going back: it stays busy for as long as the keeper has
  // it. Called by the thread that releases the last reference; must not block.
  virtual void keep(SessionLease lease) noexcept = 0;
  // Between two steps of the call, by its worker: the session's sequence, at rest for as long as
  // this takes; must not block.
  virtual void at_rest(const SequenceState& sequence) noexcept = 0;
};

}  // namespace lintel
