// SPDX-License-Identifier: Apache-2.0
// Identity: the caller's name and roles.
#pragma once

#include <cstdint>
#include <string>

namespace lintel {

enum class Role : std::uint8_t { kGenerate = 1, kScore = 2, kAdmin = 4 };

// A set of roles.
class Roles {
 public:
  constexpr Roles() = default;
  constexpr Roles(std::initializer_list<Role> roles) {
    for (const Role role : roles) add(role);
  }
  constexpr void add(Role role) { bits_ |= static_cast<std::uint8_t>(role); }
  constexpr bool has(Role role) const { return (bits_ & static_cast<std::uint8_t>(role)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }

 private:
  std::uint8_t bits_ = 0;
};

constexpr const char* to_string(Role role) {
  switch (role) {
    case Role::kGenerate:
      return "generate";
    case Role::kScore:
      return "score";
    case Role::kAdmin:
      return "admin";
  }
  return "";
}

struct Identity {
  std::string name;  // empty: anonymous, where the server asks for no credentials
  Roles roles;
};

}  // namespace lintel
