// SPDX-License-Identifier: Apache-2.0
#include "bench/event_stream.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

namespace lintel::bench {
namespace {

using NamedEvents = std::vector<std::pair<std::string, std::string>>;

// Events of pieces that arrive one after the other.
NamedEvents events_of(const std::vector<std::string>& pieces) {
  EventReader reader;
  NamedEvents events;
  for (const std::string& piece : pieces) {
    reader.add(piece,
               [&](const ServerEvent& event) { events.emplace_back(event.name, event.data); });
  }
  return events;
}

}  // namespace

TEST_CASE(
    "an event stream has names, data of several lines, comments and fields that are dropped") {
  CHECK(events_of({"data: one\n\n"}) == NamedEvents{{"", "one"}});
  CHECK(events_of({"event: message_start\ndata: {}\n\n"}) == NamedEvents{{"message_start", "{}"}});
  CHECK(events_of({"data: a\ndata: b\ndata:  c\n\n"}) == NamedEvents{{"", "a\nb\n c"}});
  CHECK(events_of({": waiting\n\n: again\ndata: x\nid: 7\nretry: 5\nother\n\n"}) ==
        NamedEvents{{"", "x"}});
  CHECK(events_of({"data\n\n"}) == NamedEvents{{"", ""}});
  CHECK(events_of({"data:no blank\n\n"}) == NamedEvents{{"", "no blank"}});
}

TEST_CASE("an event without data is dropped with its name, and so is one that is cut off") {
  CHECK(events_of({"event: ping\n\ndata: x\n\n"}) == NamedEvents{{"", "x"}});
  CHECK(events_of({"data: x\n\ndata: cut\n"}) == NamedEvents{{"", "x"}});
  CHECK(events_of({"\n\n\n"}).empty());
}

TEST_CASE("an event stream gives the same events wherever its bytes and lines are cut") {
  const NamedEvents expected = {{"start", "{\"a\":1}"}, {"", "first\nsecond"}, {"", "[DONE]"}};
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    const std::string text = "\xEF\xBB\xBF: hello" + end + "event: start" + end +
                             "data: {\"a\":1}" + end + end + "data: first" + end + "data: second" +
                             end + end + "data: [DONE]" + end + end;
    bool same = events_of({text}) == expected;
    for (std::size_t i = 0; i <= text.size(); ++i) {
      for (std::size_t j = i; j <= text.size(); ++j) {
        same = same &&
               events_of({text.substr(0, i), text.substr(i, j - i), text.substr(j)}) == expected;
      }
    }
    CAPTURE(end.size());
    CHECK(same);
  }
}

TEST_CASE("an event without an end is refused when it is too long", "[threat-140]") {
  EventReader reader;
  const auto ignore = [](const ServerEvent&) {};
  const std::string piece = "data: " + std::string(1 << 20, 'x');
  for (std::size_t bytes = piece.size(); bytes <= EventReader::kMaxBytes; bytes += piece.size()) {
    reader.add(piece, ignore);
  }
  CHECK_THROWS_AS(reader.add(piece, ignore), std::length_error);
}

TEST_CASE(
    "an exception of an event's receiver leaves the reader, which continues after the event") {
  EventReader reader;
  const auto refuse_it = [](const ServerEvent&) { throw std::runtime_error("no"); };
  CHECK_THROWS_WITH(reader.add("data: one\n\n", refuse_it), "no");
  std::string data;
  reader.add("data: two\n\n", [&](const ServerEvent& event) { data = event.data; });
  CHECK(data == "two");
}

TEST_CASE("a base of URLs is a URL or HOST:PORT, with or without /v1") {
  for (const char* text : {"http://127.0.0.1:8080", "127.0.0.1:8080", "http://127.0.0.1:8080/",
                           "http://127.0.0.1:8080/v1", "http://127.0.0.1:8080/v1/"}) {
    CAPTURE(text);
    const HttpBase base = HttpBase::parse(text);
    CHECK(base.url == "http://127.0.0.1:8080");
    CHECK(base.address == "127.0.0.1:8080");
    CHECK_FALSE(base.encrypted);
  }
  const HttpBase proxied = HttpBase::parse("https://example.org/openai/v1");
  CHECK(proxied.url == "https://example.org:443/openai");
  CHECK(proxied.encrypted);
  CHECK(HttpBase::parse("http://[::1]:8080").address == "[::1]:8080");
  for (const char* text : {"", "ftp://host:1", "http://", "http://host:port", "http://host:1?a=b",
                           "http://alice@host:1", "http://host:1/#a"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(HttpBase::parse(text), std::invalid_argument);
  }
}

}  // namespace lintel::bench
