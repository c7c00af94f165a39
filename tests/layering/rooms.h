// The table of rooms, tests/layering/rooms.txt, and the includes that are held against it.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace lintel::testing {

// A line of the table.
struct Room {
  std::string folder;
  // As written: rooms, houses and <packages>.
  std::set<std::string> sees;
};

// In its order. Throws std::runtime_error for a line that is none.
std::vector<Room> read_rooms(const std::filesystem::path& file);

// What the room may not do, as messages: it names itself, a room that is not above it, or an
// unknown package.
std::vector<std::string> faults_of(const std::vector<Room>& rooms);

struct Include {
  std::string file;    // relative to the root, e.g. "model/network/transformer.cpp"
  std::string header;  // as written between quotes or angle brackets
  bool quoted = false;
};

// Every #include of C++ files under root/house.
std::vector<Include> includes_of(const std::filesystem::path& root, const std::string& house);

// Empty, or why `include` is not allowed. `rooms` is the whole table.
std::string fault_of(const Include& include, const std::vector<Room>& rooms);

}  // namespace lintel::testing
