#include "tests/layering/rooms.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace lintel::testing {
namespace fs = std::filesystem;
namespace {

// Whose headers begin how. What stands in no line (the standard library, the system) all may
// include.
const std::map<std::string, std::regex> kPackages = {
    {"<boost>", std::regex("^boost/")},
    {"<cli>", std::regex("^CLI/")},
    {"<dnnl>", std::regex("^(dnnl|oneapi/dnnl)")},
    {"<edit>", std::regex("^histedit\\.h")},
    {"<grpc>", std::regex("^(grpc|grpcpp|absl|google/protobuf)/")},
    {"<hiredis>", std::regex("^hiredis/")},
    {"<hwy>", std::regex("^hwy/")},
    {"<json>", std::regex("^nlohmann/")},
    {"<openssl>", std::regex("^openssl/")},
    {"<sqlite>", std::regex("^sqlite3\\.h")},
    {"<xxhash>", std::regex("^xxhash\\.h")},
    {"<png>", std::regex("^(png|zlib)\\.h")},
    {"<prometheus>", std::regex("^(prometheus|civetweb|Civet)")},
    {"<spdlog>", std::regex("^spdlog/")},
};
const std::regex kWire("^(lintel/v1|inference|google/rpc)/");  // what protoc makes of proto/

std::string house_of(const std::string& folder) { return folder.substr(0, folder.find('/')); }

const Room* room_of(const std::string& file, const std::vector<Room>& rooms) {
  const std::string folder = fs::path(file).parent_path().generic_string();
  const auto found = std::ranges::find(rooms, folder, &Room::folder);
  return found == rooms.end() ? nullptr : &*found;
}

}  // namespace

std::vector<Room> read_rooms(const fs::path& file) {
  std::vector<Room> rooms;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line.front() == '#') continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) throw std::runtime_error("no line of rooms: " + line);
    Room room{line.substr(0, colon), {}};
    std::istringstream words(line.substr(colon + 1));
    for (std::string word; words >> word;) room.sees.insert(word);
    rooms.push_back(std::move(room));
  }
  return rooms;
}

std::vector<std::string> faults_of(const std::vector<Room>& rooms) {
  std::vector<std::string> faults;
  std::set<std::string> above, houses;
  for (const Room& room : rooms) {
    for (const std::string& seen : room.sees) {
      const bool known = seen.front() == '<' ? kPackages.contains(seen)
                                             : above.contains(seen) || houses.contains(seen);
      if (!known) faults.push_back(room.folder + " names " + seen + ", which is not above it");
    }
    if (!above.insert(room.folder).second) faults.push_back(room.folder + " has two lines");
    houses.insert(house_of(room.folder));
  }
  return faults;
}

std::vector<Include> includes_of(const fs::path& root, const std::string& house) {
  static const std::regex kLine(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::vector<Include> found;
  for (const auto& entry : fs::recursive_directory_iterator(root / house)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cpp") continue;
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      std::smatch match;
      if (!std::regex_search(line, match, kLine)) continue;
      found.push_back(
          {fs::relative(entry.path(), root).generic_string(), match[2], match[1] == "\""});
    }
  }
  return found;
}

std::string fault_of(const Include& include, const std::vector<Room>& rooms) {
  const auto says = [&](const std::string& why) {
    return include.file + " includes " + include.header + ": " + why;
  };
  const Room* const room = room_of(include.file, rooms);
  if (room == nullptr) return says("the file is in no room of tests/layering/rooms.txt");
  if (std::regex_search(include.header, kWire)) {
    return room->sees.contains("proto") ? "" : says(room->folder + " does not see proto");
  }
  for (const auto& [package, headers] : kPackages) {
    if (!std::regex_search(include.header, headers)) continue;
    return room->sees.contains(package) ? "" : says(room->folder + " does not see " + package);
  }
  if (!include.quoted) return "";
  const Room* const seen = room_of(include.header, rooms);
  if (seen == nullptr) return says("the header is in no room");
  if (seen == room || room->sees.contains(seen->folder)) return "";
  // A house stands for its rooms above.
  if (room->sees.contains(house_of(seen->folder)) && seen < room) return "";
  return says(room->folder + " does not see " + seen->folder);
}

}  // namespace lintel::testing
