// SPDX-License-Identifier: Apache-2.0
#include "tests/layering/modules.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace lintel::testing {
namespace fs = std::filesystem;
namespace {

// Packages by the beginnings of their headers. Headers in no line (the standard library, the
// system) all may include.
const std::map<std::string, std::regex> kPackages = {
    {"<boost>", std::regex("^boost/")},
    {"<cli>", std::regex("^CLI/")},
    {"<curl>", std::regex("^curl/")},
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
    {"<prometheus>", std::regex("^prometheus")},
    {"<spdlog>", std::regex("^spdlog/")},
};
const std::regex kWire("^(lintel/v1|inference|google/rpc)/");  // protoc's output for proto/

std::string top_of(const std::string& folder) { return folder.substr(0, folder.find('/')); }

const Module* module_of(const std::string& file, const std::vector<Module>& modules) {
  const std::string folder = fs::path(file).parent_path().generic_string();
  const auto found = std::ranges::find(modules, folder, &Module::folder);
  return found == modules.end() ? nullptr : &*found;
}

}  // namespace

std::vector<Module> read_modules(const fs::path& file) {
  std::vector<Module> modules;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line.front() == '#') continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) throw std::runtime_error("no line of modules: " + line);
    Module module{line.substr(0, colon), {}};
    std::istringstream words(line.substr(colon + 1));
    for (std::string word; words >> word;) module.sees.insert(word);
    modules.push_back(std::move(module));
  }
  return modules;
}

std::vector<std::string> faults_of(const std::vector<Module>& modules) {
  std::vector<std::string> faults;
  std::set<std::string> above, tops;
  for (const Module& module : modules) {
    for (const std::string& seen : module.sees) {
      const bool known = seen.front() == '<' ? kPackages.contains(seen)
                                             : above.contains(seen) || tops.contains(seen);
      if (!known) faults.push_back(module.folder + " names " + seen + ", which is not above it");
    }
    if (!above.insert(module.folder).second) faults.push_back(module.folder + " has two lines");
    tops.insert(top_of(module.folder));
  }
  return faults;
}

std::vector<Include> includes_of(const fs::path& root, const std::string& top) {
  static const std::regex kLine(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::vector<Include> found;
  for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
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

std::string fault_of(const Include& include, const std::vector<Module>& modules) {
  const auto says = [&](const std::string& why) {
    return include.file + " includes " + include.header + ": " + why;
  };
  const Module* const module = module_of(include.file, modules);
  if (module == nullptr) return says("the file is in no module of tests/layering/modules.txt");
  if (std::regex_search(include.header, kWire)) {
    return module->sees.contains("proto") ? "" : says(module->folder + " does not see proto");
  }
  for (const auto& [package, headers] : kPackages) {
    if (!std::regex_search(include.header, headers)) continue;
    return module->sees.contains(package) ? "" : says(module->folder + " does not see " + package);
  }
  if (!include.quoted) return "";
  const Module* const seen = module_of(include.header, modules);
  if (seen == nullptr) return says("the header is in no module");
  if (seen == module || module->sees.contains(seen->folder)) return "";
  // A top stands for its modules above.
  if (module->sees.contains(top_of(seen->folder)) && seen < module) return "";
  return says(module->folder + " does not see " + seen->folder);
}

}  // namespace lintel::testing
