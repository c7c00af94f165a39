// SnapshotError: why bytes are no snapshot of a session.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace lintel {

class SnapshotError : public std::runtime_error {
 public:
  enum class Kind {
    kDamaged,  // fewer or more bytes than it says, or others: it was one once
    kInvalid,  // whole, but one of its fields cannot be
  };

  // what() begins with "snapshot: " and names the field.
  SnapshotError(Kind kind, const std::string& message)
      : std::runtime_error("snapshot: " + message), kind_(kind) {}

  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

}  // namespace lintel
