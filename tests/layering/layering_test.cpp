// The dependency rule of CONTRIBUTING.md, held against every #include line.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

const fs::path kRoot = LINTEL_SOURCE_DIR;

struct Include {
  std::string file;    // relative to the root, e.g. "model/transformer.cpp"
  std::string header;  // as written between quotes or angle brackets
};

std::vector<Include> includes_of(const fs::path& file) {
  static const std::regex kLine(R"(^\s*#\s*include\s*[<"]([^>"]+)[>"])");
  std::vector<Include> found;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::smatch match;
    if (std::regex_search(line, match, kLine)) {
      found.push_back({fs::relative(file, kRoot).generic_string(), match[1]});
    }
  }
  return found;
}

std::vector<Include> all_includes() {
  std::vector<Include> all;
  for (const char* room :
       {"model", "server", "client", "convert", "bench", "describe", "tests", "proto"}) {
    if (!fs::exists(kRoot / room)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / room)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp") continue;
      const auto found = includes_of(entry.path());
      all.insert(all.end(), found.begin(), found.end());
    }
  }
  return all;
}

// One line of the table: files matching `from` must not include headers matching `header`.
struct Rule {
  const char* from;
  const char* header;
};

const Rule kForbidden[] = {
    {"^model/",
     "^(server/|client/|convert/|bench/|describe/|CLI/|lintel/v1/|grpc|google/protobuf|spdlog/)"},
    {"^model/attention/", "^model/(transformer|weights|head/|sequence)"},
    {"^model/(?!dense)", "^(dnnl|oneapi/dnnl)"},
    {"^(server/|client/|convert/|bench/(?!product_bound)|tests/)", "^(dnnl|oneapi/dnnl)"},
    {"^server/", "^(client/|convert/|bench/)"},
    {"^convert/", "^(server/|client/|bench/|grpc|google/|lintel/v1/)"},
    {"^server/(scheduler|session_store|session_memory|generation|clock|stop_matcher|worker|"
     "running_request|sample_run|request_queue|request_control|quotas|scheduler_metrics|"
     "metric_types|drafter|batch_rows|self_check)\\.",
     "^(grpc|google/|lintel/v1/|prometheus/|server/"
     "(request_checks|resolve_model|outcome_status|status|metrics|.*_service))"},
    {"^server/session_(store|memory)", "^server/scheduler"},
    {"^describe/", "^(model/|server/|client/|convert/|bench/|grpc|google/|lintel/v1/)"},
    {"^client/", "^(server/|model/|convert/|bench/)"},
    {"^(model|server|client|convert|bench|describe)/", "^tests/"},
};

}  // namespace

TEST_CASE("no file includes what its room may not see") {
  const auto includes = all_includes();
  REQUIRE(includes.size() > 100);  // the walk found the sources
  for (const Rule& rule : kForbidden) {
    const std::regex from(rule.from);
    const std::regex header(rule.header);
    for (const Include& include : includes) {
      if (!std::regex_search(include.file, from)) continue;
      INFO(include.file << " includes " << include.header);
      CHECK_FALSE(std::regex_search(include.header, header));
    }
  }
}

TEST_CASE("every test that the threat model names is there") {
  std::string tests;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
    if (entry.path().extension() != ".cpp") continue;
    std::ifstream in(entry.path());
    tests.append(std::istreambuf_iterator<char>(in), {});
  }
  std::ifstream page(kRoot / "docs" / "threat_model.md");
  const std::regex name("`([^`]+)`");
  int named = 0;
  for (std::string line; std::getline(page, line);) {
    // The last of three columns.
    if (std::count(line.begin(), line.end(), '|') != 4) continue;
    const std::size_t end = line.rfind('|');
    const std::size_t begin = line.rfind('|', end - 1);
    const std::string column = line.substr(begin, end - begin);
    for (std::sregex_iterator it(column.begin(), column.end(), name), last; it != last; ++it) {
      INFO((*it)[1]);
      ++named;
      CHECK(tests.find("\"" + (*it)[1].str()) != std::string::npos);
    }
  }
  CHECK(named >= 30);
}

// CMake takes such a name for a list of two, of which Catch2 then finds no test, and says "passed".
TEST_CASE("no test's name has a semicolon") {
  const std::regex title("TEST_CASE(_METHOD)?\\([^\"]*\"([^\"]*)\"");
  int named = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
    if (entry.path().extension() != ".cpp") continue;
    std::ifstream in(entry.path());
    const std::string text(std::istreambuf_iterator<char>(in), {});
    for (std::sregex_iterator it(text.begin(), text.end(), title), last; it != last; ++it) {
      INFO((*it)[2]);
      ++named;
      CHECK((*it)[2].str().find(';') == std::string::npos);
    }
  }
  CHECK(named > 500);
}

TEST_CASE("an attention backend has no header that others could include") {
  std::set<std::string> headers;
  for (const auto& entry : fs::directory_iterator(kRoot / "model" / "attention")) {
    if (entry.path().extension() == ".h") headers.insert(entry.path().filename());
  }
  CHECK(headers == std::set<std::string>{"attention.h"});
}
