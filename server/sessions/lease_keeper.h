// LeaseKeeper: who holds a session on when its call has ended.
#pragma once

namespace lintel {

class SessionLease;

class LeaseKeeper {
 public:
  virtual ~LeaseKeeper() = default;
  // The lease, in place of the session's going back: it stays busy for as long as the keeper has
  // it. By whoever let go of it last; must not block.
  virtual void keep(SessionLease lease) noexcept = 0;
};

}  // namespace lintel
