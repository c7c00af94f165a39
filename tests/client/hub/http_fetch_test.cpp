// SPDX-License-Identifier: Apache-2.0
#include "client/hub/http_fetch.h"

#include "tests/client/support/fake_hub.h"
#include "tests/support/catch.h"

namespace lintel::testing {

TEST_CASE("http fetch: paths are escaped, texts of others are printable") {
  CHECK(hub::escape_path("a-b._~/c d+\xC3\xA9") == "a-b._~/c%20d%2B%C3%A9");
  CHECK(hub::escape_path("refs/pr/1", true) == "refs%2Fpr%2F1");
  CHECK(hub::printable("a\nb\x7F\xC3") == "a?b??");
  CHECK(hub::printable(std::string(300, 'x')) == std::string(200, 'x') + "...");
}

TEST_CASE("http fetch: answers are bounded, redirects in a circle end") {
  FakeHub hub;
  hub.add_file("large.txt", std::string(10'000, 'x'));
  const std::string url = hub.url() + "/a/b/resolve/" + FakeHub::kCommit + "/large.txt";
  hub::HttpFetch fetch(hub.url(), "", {});
  CHECK(fetch.get_text(url, 10'000).body.size() == 10'000);
  CHECK_THROWS_WITH(fetch.get_text(url, 9'999), "an answer of more than 9999 bytes");
  CHECK(fetch.head(url).header("x-linked-size") == "10000");
  hub.redirect_to(hub);
  CHECK_THROWS_WITH(fetch.get_text(url, 10'000), "more than 10 redirects");
}

TEST_CASE("http fetch: a refusal without an end is cut after 64 KiB") {
  FakeHub hub;
  hub.add_file("a.txt", "a", false);
  hub.add_fault({.status = 503, .endless = true});
  hub::HttpFetch fetch(hub.url(), "", {});
  const std::string url = hub.url() + "/a/b/resolve/" + FakeHub::kCommit + "/a.txt";
  CHECK(fetch.get_text(url, 10).status == 503);
  CHECK(hub.endless_bytes < std::size_t{32} << 20);  // with what sockets hold
  CHECK(fetch.get_text(url, 10).body == "a");
}

TEST_CASE("http fetch: a redirect to another protocol is refused by both names") {
  FakeHub hub;
  hub.add_file("a.txt", "a", false);
  const std::string url = hub.url() + "/a/b/resolve/" + FakeHub::kCommit + "/a.txt";
  hub::HttpFetch fetch(hub.url(), "", {});
  hub.add_fault({.status = 302, .header = "Location: file:///etc/passwd\r\n"});
  CHECK_THROWS_WITH(fetch.get_text(url, 10), "a redirect from http to file is not followed");
}

TEST_CASE("http fetch: a connection that is refused can be tried again, a cancelled one not") {
  std::string closed;
  {
    const FakeHub hub;
    closed = hub.url();
  }
  hub::HttpFetch fetch(closed, "", {});
  CHECK_THROWS_AS(fetch.head(closed + "/a"), hub::ConnectionError);
  FakeHub hub;
  hub::HttpFetch cancelled(hub.url(), "", [] { return true; });
  CHECK_THROWS_WITH(cancelled.get_text(hub.url() + "/a", 1), "cancelled");
}

}  // namespace lintel::testing
