// SPDX-License-Identifier: Apache-2.0
// The parsers of HTTP's requests over mutated ones, under a memory limit: parsed or refused.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/counted_memory.h"
#include "tests/fuzz/mutations.h"
#include "tests/fuzz/web_inputs.h"
#include "tests/fuzz/web_seeds.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"

namespace lintel::fuzz {
namespace {

constexpr std::size_t kSmallRequestLimit = 4 << 20;

struct Kind {
  const char* room;
  bool (*parse)(std::string_view);
  std::vector<std::string> (*seeds)();
};
constexpr Kind kKinds[] = {{"web_frame", try_web_frame, web_frame_seeds},
                           {"web_json", try_web_json, web_json_seeds},
                           {"web_head", try_web_head, web_head_seeds},
                           {"web_socket", try_web_socket, web_socket_seeds}};

bool parse_limited(const Kind& kind, const std::string& bytes, std::size_t limit_bytes) {
  const MemoryLimit limit(limit_bytes);
  return within_time(kind.parse, bytes);
}

// Creates objects that are made once a process, descriptors for one, before memory is counted.
void warm_up(const Kind& kind) {
  for (const std::string& seed : kind.seeds()) kind.parse(seed);
}

}  // namespace

TEST_CASE("the corpus of mutated HTTP requests is parsed or refused, within its memory") {
  for (const Kind& kind : kKinds) {
    warm_up(kind);
    int requests = 0, taken = 0;
    const std::filesystem::path directory = LINTEL_TEST_DATA "/fuzz/corpus";
    for (const auto& entry : std::filesystem::directory_iterator(directory / kind.room)) {
      INFO(entry.path().string());
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(in), {}};
      CHECK_NOTHROW(taken += parse_limited(kind, bytes, kSmallRequestLimit) ? 1 : 0);
      ++requests;
    }
    // Both outcomes occur, or the corpus says nothing.
    INFO(kind.room << ": " << taken << " of " << requests);
    CHECK(requests >= 50);
    CHECK(taken >= 3);
    CHECK(taken < requests);
  }
}

TEST_CASE("every seed of an HTTP request is taken") {
  for (const Kind& kind : kKinds) {
    for (const std::string& seed : kind.seeds()) {
      INFO(seed);
      CHECK(kind.parse(seed));
    }
  }
}

TEST_CASE("thousands of fresh mutations of HTTP requests are parsed or refused") {
  for (const Kind& kind : kKinds) {
    warm_up(kind);
    const std::vector<std::string> seeds = kind.seeds();
    for (std::uint64_t number = 0; number < 5000; ++number) {
      INFO(kind.room << ", mutation " << number);
      const std::string bytes = mutate_text(seeds[number % seeds.size()], number);
      REQUIRE_NOTHROW(parse_limited(kind, bytes, kSmallRequestLimit));
    }
  }
}

TEST_CASE("WebSocket: messages sent during turns are held within a bound", "[threat-84]") {
  try_web_turns("");
  int taken = 0;
  for (std::uint64_t number = 0; number < 2000; ++number) {
    INFO("script " << number);
    std::mt19937 random(static_cast<unsigned>(number));
    std::string script(64, '\0');
    for (char& byte : script) byte = static_cast<char>(random());
    const MemoryLimit limit(kSmallRequestLimit);
    REQUIRE_NOTHROW(taken += try_web_turns(script) ? 1 : 0);
  }
  CHECK(taken > 300);  // or the scripts say nothing
}

TEST_CASE("no JSON body of 1 MB takes more than 64 MB to refuse") {
  const Kind& json = kKinds[1];
  warm_up(json);
  for (const char* piece : {"[", "{\"a\":", "[],", "{},", "1,", "\"\",", "a", " "}) {
    for (const char* open : {"", "{\"a\":", "{\"inputs\":[", "{\"prompt\":[", "{\"prompt\":\""}) {
      std::string text = open;
      while (text.size() < (1 << 20) - 8) text += piece;
      INFO(open << piece);
      bool taken = true;
      CHECK_NOTHROW(taken = parse_limited(json, text, 64 << 20));
      CHECK_FALSE(taken);
    }
  }
}

TEST_CASE("no JSON body of 4 MB takes more than 96 MB, or more time than its length allows",
          "[threat-31]") {
  const Kind& json = kKinds[1];
  warm_up(json);
  const auto refused = [&](const std::string& text) {
    INFO(text.substr(0, 40) << "...");
    bool taken = true;
    CHECK_NOTHROW(taken = parse_limited(json, text, 96 << 20));
    CHECK_FALSE(taken);
  };
  std::uint64_t number = 0;
  for (const char* piece : {"[", "{\"a\":", "[],", "{},", "\"\",", "1,", "'[',"}) {
    for (const char* open : {"", "{\"given\":[", "{\"prompt\":[", "{\"data\":[0,0,0,"}) {
      if (!testing::is_drawn(number++, 3)) continue;
      std::string text = open;
      while (text.size() < (4 << 20) - 8) text += piece;
      refused(text);
    }
  }
  for (const std::string open :
       {"{", "{\"logit_bias\":{", "{\"sampling\":{\"logitBias\":{", "{\"parameters\":{"}) {
    std::string text = open;
    for (int i = 0; text.size() < (4 << 20) - 32; ++i) text += "\"" + std::to_string(i) + "\":0,";
    refused(text);
  }
}

}  // namespace lintel::fuzz
