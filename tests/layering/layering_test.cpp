// The rooms of tests/layering/rooms.txt, held against every #include line.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/layering/rooms.h"

namespace fs = std::filesystem;

namespace {

using Catch::Matchers::Contains;

const fs::path kRoot = LINTEL_SOURCE_DIR;
const fs::path kRooms = kRoot / "tests/layering/rooms.txt";

// The houses of C++ beside tests/, which may include anything.
constexpr const char* kHouses[] = {"model", "server", "client", "convert", "bench", "describe"};
constexpr std::size_t kMostFiles = 20;  // of a room

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

namespace lintel::testing {

TEST_CASE("no file includes what its room may not see") {
  const std::vector<Room> rooms = read_rooms(kRooms);
  std::size_t includes = 0;
  for (const char* const house : kHouses) {
    for (const Include& include : includes_of(kRoot, house)) {
      ++includes;
      const std::string fault = fault_of(include, rooms);
      INFO(fault);
      CHECK(fault.empty());
    }
  }
  CHECK(includes > 1000);  // the walk found the sources
}

TEST_CASE("a room sees only rooms above it, so that there are no circles") {
  const std::vector<Room> rooms = read_rooms(kRooms);
  CHECK(rooms.size() > 30);
  for (const std::string& fault : faults_of(rooms)) {
    INFO(fault);
    CHECK(fault.empty());
  }
}

TEST_CASE("the rule finds what it is there for") {
  const std::vector<Room> rooms = {
      {"low", {}}, {"house/cellar", {"low"}}, {"house/attic", {"house", "<json>", "proto"}}};
  const auto fault = [&](const char* file, const char* header, bool quoted = true) {
    return fault_of({file, header, quoted}, rooms);
  };
  CHECK(fault("house/attic/a.cpp", "house/cellar/b.h").empty());
  CHECK(fault("house/attic/a.cpp", "vector", false).empty());
  CHECK(fault("house/attic/a.cpp", "nlohmann/json.hpp", false).empty());
  CHECK(fault("house/attic/a.cpp", "lintel/v1/model.pb.h").empty());
  CHECK_THAT(fault("house/cellar/a.cpp", "lintel/v1/model.pb.h"), Contains("does not see proto"));
  CHECK_THAT(fault("house/cellar/a.cpp", "nlohmann/json.hpp", false), Contains("<json>"));
  CHECK_THAT(fault("house/cellar/a.cpp", "house/attic/b.h"), Contains("does not see house/attic"));
  CHECK_THAT(fault("house/attic/a.cpp", "low/b.h"), Contains("does not see low"));
  CHECK_THAT(fault("house/attic/a.cpp", "tests/b.h"), Contains("in no room"));
  CHECK_THAT(fault("house/a.cpp", "low/b.h"), Contains("the file is in no room"));
  CHECK(faults_of(rooms).size() == 1);  // no room proto
  CHECK(faults_of({{"a", {"b"}}, {"b", {"a"}}}).size() == 1);
}

TEST_CASE("every source is in a room, and no room holds more than 20 files") {
  const std::vector<Room> rooms = read_rooms(kRooms);
  std::map<std::string, std::size_t> files;
  for (const fs::path house :
       {"model", "server", "client", "convert", "bench", "describe", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / house)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp") continue;
      ++files[fs::relative(entry.path().parent_path(), kRoot).generic_string()];
    }
  }
  for (const auto& [folder, count] : files) {
    INFO(folder << " has " << count << " files");
    CHECK(count <= kMostFiles);
    if (folder.rfind("tests", 0) == 0) continue;
    CHECK(std::ranges::find(rooms, folder, &Room::folder) != rooms.end());
  }
  for (const Room& room : rooms) {
    INFO("no file is in " << room.folder);
    CHECK((files.contains(room.folder) || room.folder == "proto"));
  }
}

TEST_CASE("CONTRIBUTING shows the table of rooms as it is") {
  const std::string page = text_of(kRoot / "CONTRIBUTING.md");
  const std::string begin = "<!-- tests/layering/rooms.txt -->\n```\n";
  const std::size_t from = page.find(begin);
  REQUIRE(from != std::string::npos);
  const std::size_t to = page.find("```\n<!-- end -->", from);
  REQUIRE(to != std::string::npos);
  CHECK(page.substr(from + begin.size(), to - from - begin.size()) == text_of(kRooms));
}

TEST_CASE("threat model: each threat has as many tests as its row says") {
  const std::regex tag("\\[(threat-[0-9]+)\\]");
  std::map<std::string, int> tests;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
    const bool is_test = entry.path().extension() == ".cpp" ||
                         entry.path().filename().string().ends_with(".test.mjs");
    if (!is_test || entry.path().string().find("node_modules") != std::string::npos) continue;
    const std::string text = text_of(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), tag), last; it != last; ++it) {
      ++tests[(*it)[1]];
    }
  }
  // The last column of a row: the tag and a number.
  const std::regex row("\\| `\\[(threat-[0-9]+)\\]` ([0-9]+) \\|\n");
  const std::string page = text_of(kRoot / "docs" / "threat_model.md");
  std::map<std::string, int> rows;
  for (std::sregex_iterator it(page.begin(), page.end(), row), last; it != last; ++it) {
    CHECK(rows.emplace((*it)[1], std::stoi((*it)[2])).second);
  }
  CHECK(rows.size() >= 79);
  for (const auto& [name, number] : rows) {
    INFO(name);
    CHECK(tests[name] == number);
  }
  CHECK(tests.size() == rows.size());  // no tag without a row
}

TEST_CASE("an attention backend has no header that others could include") {
  std::set<std::string> headers;
  for (const auto& entry : fs::directory_iterator(kRoot / "model" / "attention")) {
    if (entry.path().extension() == ".h") headers.insert(entry.path().filename());
  }
  CHECK(headers == std::set<std::string>{"attention.h", "declaration.h", "pattern_attention.h",
                                         "linformer_blocks.h", "linformer_slots.h",
                                         "pattern_state.h", "position_pattern.h", "sum_attention.h",
                                         "sum_state.h"});
}

TEST_CASE("a kind of attention is a file and a line of kinds.inc") {
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(kRoot / "model" / "attention")) {
    if (entry.path().extension() == ".cpp") files.insert(entry.path().stem());
  }
  files.erase("attention");
  files.erase("declaration");
  std::set<std::string> lines;
  const std::string text = text_of(kRoot / "model" / "attention" / "kinds.inc");
  const std::regex line("(^|\\n)LINTEL_KIND\\((\\w+)\\)");
  for (std::sregex_iterator it(text.begin(), text.end(), line), last; it != last; ++it) {
    lines.insert((*it)[2]);
  }
  CHECK(files == lines);
}

}  // namespace lintel::testing
