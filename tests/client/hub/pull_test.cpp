// SPDX-License-Identifier: Apache-2.0
// Models of a hub in the cache, from a hub of our own with faults on purpose.
#include "client/hub/pull.h"

#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "tests/client/support/fake_hub.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::Equals;
using Catch::Matchers::Message;
using Catch::Matchers::StartsWith;

constexpr const char* kRepo = "models--org--name";

std::string content_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A hub with a small model, and an empty cache.
struct PullFixture {
  PullFixture() {
    hub.add_file("config.json", "{}", false);
    hub.add_file("model.safetensors", weights);
    options.hub.endpoint = hub.url();
    options.hub.cache = directory.path() / "hub";
    options.first_delay = std::chrono::milliseconds(1);
    options.on_note = [this](const std::string& note) { notes += note + "\n"; };
  }
  fs::path pull(const std::string& source = "org/name") const {
    return hub::pull(hub::parse_pull_source(source), options);
  }
  std::string error(const std::string& source = "org/name") const {
    try {
      return "no error but " + pull(source).string();
    } catch (const hub::HubError& why) {
      return why.what();
    }
  }
  fs::path repo() const { return options.hub.cache / kRepo; }
  fs::path incomplete() const {
    return repo() / "blobs" / (hub.etag("model.safetensors") + ".incomplete");
  }

  const std::string weights = std::string(300'000, 'w') + "end";
  FakeHub hub;
  TemporaryDirectory directory;
  hub::PullOptions options;
  std::string notes;
};

}  // namespace

TEST_CASE_METHOD(PullFixture, "pull: the cache has huggingface_hub's layout") {
  hub.add_file("sub/dir/vocab.txt", "a", false);
  hub.add_file("empty.txt", "", false);
  hub.add_file("pytorch_model.bin", "pickle");
  hub.add_file("modeling.py", "code", false);
  const fs::path snapshot = pull("org/name@refs/pr/1");
  CHECK(snapshot == repo() / "snapshots" / FakeHub::kCommit);
  CHECK(content_of(repo() / "refs" / "refs" / "pr" / "1") == FakeHub::kCommit);
  CHECK(content_of(snapshot / "model.safetensors") == weights);
  CHECK(fs::read_symlink(snapshot / "config.json") ==
        fs::path("../../blobs") / hub.etag("config.json"));
  CHECK(fs::read_symlink(snapshot / "sub/dir/vocab.txt") ==
        fs::path("../../../../blobs") / hub.etag("sub/dir/vocab.txt"));
  CHECK(content_of(snapshot / "sub/dir/vocab.txt") == "a");
  CHECK(fs::exists(snapshot / "empty.txt"));
  CHECK_FALSE(fs::exists(snapshot / "pytorch_model.bin"));
  CHECK_FALSE(fs::exists(snapshot / "modeling.py"));
  CHECK(hub.count("GET", "/api/models/org/name/revision/refs%2Fpr%2F1") == 1);

  // The second time only the list is read.
  const std::size_t before = hub.requests().size();
  CHECK(pull("org/name@refs/pr/1") == snapshot);
  CHECK(hub.requests().size() == before + 1);
  // Another revision of the same files downloads none.
  CHECK(pull() == snapshot);
  CHECK(hub.count("GET", "/resolve/") == 3);  // an empty file needs none
}

TEST_CASE_METHOD(PullFixture, "pull: a cut download continues where it ended") {
  hub.add_fault({});
  hub.add_fault({.cut_after = 100'000});
  hub.add_fault({.cut_after = 50'000});
  CHECK(content_of(pull() / "model.safetensors") == weights);
  std::vector<std::string> ranges;
  for (const HubRequest& request : hub.requests()) {
    if (request.headers.contains("range")) ranges.push_back(request.headers.at("range"));
  }
  CHECK_THAT(ranges, Equals(std::vector<std::string>{"bytes=100000-", "bytes=150000-"}));
}

TEST_CASE_METHOD(PullFixture, "pull: what an earlier run left is continued") {
  fs::create_directories(incomplete().parent_path());
  std::ofstream(incomplete()) << weights.substr(0, 1'000);
  std::uint64_t size = 0, bytes = 0;
  options.on_size = [&](std::uint64_t needed) { size = needed; };
  options.on_bytes = [&](std::uint64_t count) { bytes += count; };
  CHECK(content_of(pull() / "model.safetensors") == weights);
  CHECK(size == weights.size() - 1'000 + 2);
  CHECK(bytes == size);
  CHECK_FALSE(fs::exists(incomplete()));
}

TEST_CASE_METHOD(PullFixture, "pull: a hub without ranges sends the whole file again") {
  hub.add_fault({});
  hub.add_fault({.cut_after = 100'000});
  hub.add_fault({.ignores_range = true});
  CHECK(content_of(pull() / "model.safetensors") == weights);
}

TEST_CASE_METHOD(PullFixture, "pull: an unfinished file longer than the file starts again") {
  fs::create_directories(incomplete().parent_path());
  std::ofstream(incomplete()) << weights << "more";
  CHECK(content_of(pull() / "model.safetensors") == weights);
}

TEST_CASE_METHOD(PullFixture, "pull: a file of another hash is deleted and tried once more") {
  hub.add_fault({});
  hub.add_fault({.wrong_content = true});
  CHECK(content_of(pull() / "model.safetensors") == weights);
  CHECK(hub.count("GET", "/resolve/") == 3);
}

TEST_CASE_METHOD(PullFixture, "pull: a file of another hash twice is an error and leaves nothing") {
  hub.add_fault({});
  hub.add_fault({.wrong_content = true});
  hub.add_fault({.wrong_content = true});
  CHECK_THAT(error(), Contains("model.safetensors") && Contains("does not have the hash"));
  CHECK_FALSE(fs::exists(incomplete()));
  CHECK_FALSE(fs::exists(repo() / "blobs" / hub.etag("model.safetensors")));
  CHECK_FALSE(fs::exists(repo() / "snapshots" / FakeHub::kCommit / "model.safetensors"));
  CHECK_FALSE(fs::exists(repo() / "refs" / "main"));
  // Git's hashes are checked, too.
  TemporaryDirectory other;
  options.hub.cache = other.path();
  hub.add_fault({.wrong_content = true});
  hub.add_fault({.wrong_content = true});
  CHECK_THAT(error(), Contains("config.json"));
}

TEST_CASE_METHOD(PullFixture, "pull: status 429 waits as long as Retry-After says") {
  hub.add_fault({.status = 429, .header = "Retry-After: 1\r\n"});
  hub.add_fault({.status = 503});
  const auto begin = std::chrono::steady_clock::now();
  pull();
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::seconds(1));
  CHECK_THAT(notes, Contains("status 429; next try in 1000 ms"));
  CHECK_THAT(notes, Contains("status 503; next try in 2 ms"));
}

TEST_CASE_METHOD(PullFixture, "pull: a wait of more than five minutes and five failures end it") {
  hub.add_fault({.status = 429, .header = "Retry-After: 301\r\n"});
  CHECK_THAT(error(), Contains("status 429") && Contains("301 s"));
  for (int i = 0; i < 5; ++i) hub.add_fault({.cut_after = 0});
  CHECK_THAT(error(), Contains("gave up after 5 tries"));
  for (int i = 0; i < 9; ++i) hub.add_fault({.cut_after = 1});  // bytes came in between
  CHECK(content_of(pull() / "model.safetensors") == weights);
}

TEST_CASE_METHOD(PullFixture,
                 "pull: the token goes to the endpoint and not to where it redirects") {
  FakeHub elsewhere;
  elsewhere.add_file("config.json", "{}", false);
  elsewhere.add_file("model.safetensors", weights);
  hub.redirect_to(elsewhere);
  options.hub.token = "secret";
  CHECK(content_of(pull() / "model.safetensors") == weights);
  for (const HubRequest& request : hub.requests()) {
    CHECK(request.headers.at("authorization") == "Bearer secret");
  }
  REQUIRE(elsewhere.requests().size() == 1);
  CHECK_FALSE(elsewhere.requests()[0].headers.contains("authorization"));
  options.hub.token = "two\nlines";
  CHECK_THAT(error(), Contains("HF_TOKEN"));
}

TEST_CASE_METHOD(PullFixture, "pull: two at once download each file once") {
  hub.held = true;
  std::thread other([&] {
    hub::PullOptions own = options;
    own.on_note = nullptr;
    hub::pull({.repo = "org/name"}, own);
  });
  while (hub.count("GET", "/resolve/") == 0) std::this_thread::yield();
  bool noted = false;
  options.on_note = [&](const std::string& note) {
    noted = note.find("another process") != std::string::npos;
    hub.held = false;
  };
  const fs::path snapshot = pull();
  other.join();
  CHECK(noted);
  CHECK(content_of(snapshot / "model.safetensors") == weights);
  CHECK(hub.count("GET", "config.json") == 1);
  CHECK(hub.count("GET", "model.safetensors") <= 1);
}

TEST_CASE_METHOD(PullFixture, "pull: names that leave the cache are refused") {
  for (const char* name : {"../a.json", "a/../../b.json", "/a.json", "a//b.json", "a\\b.json",
                           "./a.json", "a\nb.json", ".json/../../c.json"}) {
    INFO(name);
    hub.list_name(name);
    CHECK_THAT(error(), Contains("a file has the name"));
  }
  CHECK(hub.count("HEAD", "/") == 0);
  hub.set_list(R"({"sha": "../../../../etc", "siblings": []})");
  CHECK_THAT(error(), Contains("names no commit"));
  hub.set_list("[1]");
  CHECK_THAT(error(), Contains("names no commit"));
  hub.set_list("{");
  CHECK_THAT(error(), Contains("org/name: its list"));
}

TEST_CASE_METHOD(PullFixture, "pull: a list takes little more memory than its text") {
  std::string list = R"({"lastModified": [)";
  for (int i = 0; i < 10'000'000; ++i) list += "[],";
  list += R"(0], "sha": ")" + std::string(FakeHub::kCommit) +
          R"(", "siblings": [{"rfilename": "config.json", "x": {"rfilename": "no.json"}}, {}]})";
  CHECK(list.size() > std::size_t{28} << 20);
  hub.set_list(list);
  setenv("HF_ENDPOINT", hub.url().c_str(), 1);
  setenv("HF_HUB_CACHE", options.hub.cache.c_str(), 1);
  Process limited({"/bin/sh", "-c", "ulimit -v 400000; exec \"$0\" pull org/name", LINTEL_CLI});
  CHECK(limited.wait() == 0);
  CHECK(limited.err().empty());
  CHECK(content_of(repo() / "snapshots" / FakeHub::kCommit / "config.json") == "{}");
  unsetenv("HF_ENDPOINT");
  unsetenv("HF_HUB_CACHE");
}

TEST_CASE_METHOD(PullFixture, "pull: free space is checked before a download") {
  hub.claim_size("900000000000000");
  CHECK_THAT(error(), Contains("bytes are needed"));
  CHECK(hub.count("GET", "/resolve/") == 0);
  hub.claim_size("a lot");
  CHECK_THAT(error(), Contains("its size is not known"));
}

TEST_CASE_METHOD(PullFixture, "pull: a file longer than its size is not kept") {
  hub.claim_size("10");
  CHECK_THAT(error(), Contains("longer than 10 bytes"));
  CHECK(fs::file_size(incomplete()) <= 10);
}

TEST_CASE_METHOD(PullFixture, "pull: globs choose among the kinds that may be pulled") {
  hub.add_file("b/model.txt", "b", false);
  hub.add_file("pytorch_model.bin", "pickle");
  options.globs = {"*.txt", "config.json"};
  const fs::path snapshot = pull();
  CHECK(fs::exists(snapshot / "b/model.txt"));
  CHECK(fs::exists(snapshot / "config.json"));
  CHECK_FALSE(fs::exists(snapshot / "model.safetensors"));
  options.globs = {"*.bin"};
  CHECK_THAT(error(), Contains("--file *.bin"));
  CHECK_THAT(error("org/name:q4"), Contains("--file does not go with :q4"));
}

TEST_CASE_METHOD(PullFixture, "pull: a quant is a .gguf file or all its parts") {
  for (const char* file :
       {"m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-F16.gguf", "m-BF16.gguf", "mmproj-F16.gguf",
        "m-Q4_0.gguf", "m-Q4_0_4_8.gguf", "q/m-Q8_0-00001-of-00002.gguf",
        "q/m-Q8_0-00002-of-00002.gguf", "m-Q2-00002-of-00002.gguf"}) {
    hub.add_file(file, file);
  }
  const fs::path snapshot = repo() / "snapshots" / FakeHub::kCommit;
  CHECK(pull("org/name:q4_k_m") == snapshot / "m-Q4_K_M.gguf");
  CHECK_FALSE(fs::exists(snapshot / "config.json"));
  CHECK(pull("org/name:F16") == snapshot / "m-F16.gguf");
  CHECK(pull("org/name:Q4_0") == snapshot / "m-Q4_0.gguf");
  CHECK(pull("org/name@main:Q8") == snapshot / "q/m-Q8_0-00001-of-00002.gguf");
  CHECK(fs::exists(snapshot / "q/m-Q8_0-00002-of-00002.gguf"));
  CHECK_THAT(error("org/name:Q4_K"),
             Contains("several") && Contains("m-Q4_K_M.gguf m-Q4_K_S.gguf"));
  CHECK_THAT(error("org/name:Q5"), Contains("no .gguf file has 'Q5'") && Contains("m-F16.gguf"));
  CHECK_THAT(error("org/name:Q2"), Contains("m-Q2.gguf has 1 of its 2 parts"));
  options.hub.offline = true;
  CHECK(pull("org/name:q4_k") == snapshot / "m-Q4_K_M.gguf");
  CHECK(notes.empty());
}

namespace {

// A hub with these .gguf files, and an empty cache.
struct GgufFixture : PullFixture {
  void add(const std::vector<std::string>& files) {
    for (const std::string& file : files) gguf.add_file(file, file);
    gguf.add_file("config.json", "{}", false);
    gguf.add_file("README.txt", "a", false);
    options.hub.endpoint = gguf.url();
  }
  // The file that is pulled without a quant, by its name.
  std::string taken() { return pull().filename().string(); }

  FakeHub gguf;
};

}  // namespace

TEST_CASE_METHOD(GgufFixture, "pull: of .gguf files Q4_K_M is taken, and the others are listed") {
  add({"m-F32.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "mmproj-F16.gguf"});
  const fs::path snapshot = repo() / "snapshots" / FakeHub::kCommit;
  CHECK(pull() == snapshot / "m-Q4_K_M.gguf");
  CHECK(notes ==
        "org/name: of its .gguf files Q4_K_M is taken; :QUANT names another: F32, Q4_K_S, "
        "Q8_0\n");
  // Only this file was downloaded.
  CHECK(gguf.count("GET", "/resolve/") == 1);
  CHECK(std::distance(fs::directory_iterator(snapshot), fs::directory_iterator()) == 1);
  options.hub.offline = true;
  CHECK(pull() == snapshot / "m-Q4_K_M.gguf");
}

TEST_CASE_METHOD(GgufFixture, "pull: without Q4_K_M the next of the default quants is taken") {
  const auto [files, wanted] = GENERATE(table<std::vector<std::string>, std::string>(
      {{{"m-Q8_0.gguf", "m-Q4_K_S.gguf", "m-Q4_0.gguf", "m-Q5_K_M.gguf"}, "m-Q4_K_S.gguf"},
       {{"m-Q8_0.gguf", "m-Q4_0.gguf", "m-Q4_0_4_8.gguf", "m-Q5_K_M.gguf"}, "m-Q4_0.gguf"},
       {{"m-Q8_0.gguf", "m-Q5_K_M.gguf", "m-Q4_1.gguf"}, "m-Q5_K_M.gguf"},
       {{"m-F32.gguf", "m-q8_0.gguf", "m-BF16.gguf"}, "m-q8_0.gguf"},
       // A repository of one quant needs no choice.
       {{"m-IQ2_XS.gguf", "mmproj-F16.gguf"}, "m-IQ2_XS.gguf"}}));
  add(files);
  CHECK(taken() == wanted);
}

TEST_CASE_METHOD(GgufFixture, "pull: all parts of the default quant are taken") {
  add({"q8/m-Q8_0-00001-of-00002.gguf", "q8/m-Q8_0-00002-of-00002.gguf", "f/m-F16.gguf"});
  CHECK(taken() == "m-Q8_0-00001-of-00002.gguf");
  CHECK(gguf.count("GET", "/resolve/") == 2);
  CHECK(notes == "org/name: of its .gguf files Q8_0 is taken; :QUANT names another: F16\n");
}

TEST_CASE_METHOD(GgufFixture, "pull: .gguf files of no default quant have to be named") {
  add({"m-F32.gguf", "m-IQ2_M.gguf"});
  CHECK_THAT(error(), Contains("none of its .gguf files is Q4_K_M") &&
                          Contains("ORG/NAME:QUANT: F32, IQ2_M"));
  CHECK(gguf.count("GET", "/resolve/") == 0);
}

TEST_CASE_METHOD(GgufFixture, "pull: of files with one quant that with the fewest words is taken") {
  add({"z-UD-Q4_K_M.gguf", "z-Q4_K_M.gguf", "z-Q4_K_S.gguf", "z-UD-Q8_0.gguf"});
  const std::string note =
      "org/name: of its .gguf files z-Q4_K_M is taken; :QUANT names another: Q4_K_S, "
      "z-UD-Q4_K_M, Q8_0\n";
  CHECK(taken() == "z-Q4_K_M.gguf");
  CHECK(notes == note);
  CHECK(pull("org/name:q4_k_m").filename() == "z-Q4_K_M.gguf");
  CHECK(notes == note + note);
  CHECK(pull("org/name:UD-Q4_K_M").filename() == "z-UD-Q4_K_M.gguf");
  CHECK(pull("org/name:z-UD-Q4_K_M").filename() == "z-UD-Q4_K_M.gguf");
  CHECK(notes == note + note);
  // A word that names no quant chooses none.
  CHECK_THAT(error("org/name:UD"), Contains("several .gguf files have 'UD' in their names: "
                                            "z-UD-Q4_K_M.gguf z-UD-Q8_0.gguf"));
}

TEST_CASE_METHOD(GgufFixture, "pull: of models with one quant the first is taken") {
  add({"small-Q4_K_M.gguf", "large-Q4_K_M.gguf", "large-Q8_0.gguf"});
  CHECK(taken() == "large-Q4_K_M.gguf");
  CHECK(notes ==
        "org/name: of its .gguf files large-Q4_K_M is taken; :QUANT names another: Q8_0, "
        "small-Q4_K_M\n");
}

TEST_CASE_METHOD(PullFixture, "pull: beside safetensors .gguf files are left out, and listed") {
  hub.add_file("m-Q4_K_M.gguf", "4");
  hub.add_file("m-F16.gguf", "16");
  const fs::path snapshot = pull();
  CHECK(snapshot == repo() / "snapshots" / FakeHub::kCommit);
  CHECK(fs::exists(snapshot / "model.safetensors"));
  CHECK_FALSE(fs::exists(snapshot / "m-Q4_K_M.gguf"));
  CHECK(notes ==
        "org/name: its .gguf files are left out; :QUANT names one: m-F16.gguf "
        "m-Q4_K_M.gguf\n");
  options.globs = {"*.gguf"};
  CHECK(pull() == snapshot);
  CHECK(fs::exists(snapshot / "m-F16.gguf"));
}

TEST_CASE_METHOD(PullFixture, "pull: the cache has a whole model, or it has none") {
  const auto cached = [&](const std::string& source = "org/name") {
    return hub::find_in_cache(hub::parse_pull_source(source), options);
  };
  CHECK_FALSE(cached());
  options.globs = {"config.json"};
  pull();
  options.globs.clear();
  CHECK_FALSE(cached());
  const fs::path snapshot = pull();
  const std::size_t before = hub.requests().size();
  CHECK(cached() == snapshot);
  CHECK_FALSE(cached("org/name:Q4"));
  CHECK_FALSE(cached("org/name@other"));
  CHECK_FALSE(cached("org/other"));
  // A part of several files is missing, as where a download was ended.
  fs::rename(snapshot / "model.safetensors", snapshot / "model-00001-of-00002.safetensors");
  CHECK_FALSE(cached());
  fs::copy(snapshot / "config.json", snapshot / "model-00002-of-00002.safetensors");
  CHECK(cached() == snapshot);
  fs::remove(snapshot / "config.json");
  CHECK_FALSE(cached());
  std::ofstream(snapshot / "m-Q8_0-00001-of-00002.gguf") << "1";
  CHECK_FALSE(cached("org/name:Q8_0"));
  std::ofstream(snapshot / "m-Q8_0-00002-of-00002.gguf") << "2";
  CHECK(cached("org/name:Q8_0") == snapshot / "m-Q8_0-00001-of-00002.gguf");
  CHECK(hub.requests().size() == before);
}

TEST_CASE_METHOD(PullFixture, "pull: offline the cache alone is looked at") {
  options.hub.offline = true;
  CHECK_THAT(error(), StartsWith("org/name is not in the cache"));
  options.hub.offline = false;
  const fs::path snapshot = pull();
  const std::size_t before = hub.requests().size();
  options.hub.offline = true;
  CHECK(pull() == snapshot);
  CHECK(pull(std::string("org/name@") + FakeHub::kCommit) == snapshot);
  CHECK_THAT(error("org/name@v2"), Contains("not in the cache"));
  CHECK_THAT(error("org/name:q4"), Contains("no .gguf files"));
  options.globs = {"*.txt"};
  CHECK_THAT(error(), Contains("offline") && Contains("--file *.txt"));
  CHECK(hub.requests().size() == before);
}

TEST_CASE_METHOD(PullFixture, "pull: refusals of the hub name file, status and token") {
  hub.list_name("gone.json");
  CHECK_THAT(error(), Contains("gone.json: status 404, no?thing"));
  hub.list_name("");
  hub.add_fault({.status = 403});
  CHECK_THAT(error(), Contains("status 403; HF_TOKEN is not set"));
  options.hub.endpoint = hub.url() + "/nowhere";
  CHECK(error() == "org/name: " + options.hub.endpoint +
                       " has no such repository, or it is private: HF_TOKEN is not set (status "
                       "404)");
  options.hub.token = "t";
  CHECK(error("org/name@v2") == "org/name@v2: " + options.hub.endpoint +
                                    " has no such repository or revision, or it is private: is "
                                    "HF_TOKEN right? (status 404)");
  options.hub.endpoint = "ftp://127.0.0.1";
  CHECK_THAT(error(), Contains("neither http nor https"));
}

TEST_CASE_METHOD(PullFixture, "pull: a repository of PyTorch's files alone is refused by name") {
  FakeHub pickles;
  for (const char* file : {"config.json", "pytorch_model-1.bin", "pytorch_model-2.bin"}) {
    pickles.add_file(file, file);
  }
  options.hub.endpoint = pickles.url();
  CHECK_THAT(error(), StartsWith("org/name: there are neither *.safetensors nor *.gguf files but "
                                 "pytorch_model-1.bin and 1 more; PyTorch's files"));
  CHECK(pickles.count("HEAD", "/resolve/") == 0);
  // Files that are named are pulled all the same.
  options.globs = {"config.json"};
  CHECK(fs::exists(pull() / "config.json"));
}

TEST_CASE_METHOD(PullFixture, "pull: cancelling ends a download and keeps its beginning") {
  hub.add_fault({});
  hub.add_fault({.cut_after = 100'000});
  hub.add_fault({.status = 429, .header = "Retry-After: 60\r\n"});
  bool cancelled = false;
  options.on_note = [&](const std::string& note) {
    cancelled = note.find("429") != std::string::npos;
  };
  options.cancelled = [&] { return cancelled; };
  CHECK(error() == "cancelled");
  CHECK(fs::file_size(incomplete()) == 100'000);
}

TEST_CASE("pull: sources are parsed and checked") {
  const hub::PullSource all = hub::parse_pull_source("org/name.x@refs/pr/1:Q4_K_M");
  CHECK(all.repo == "org/name.x");
  CHECK(all.revision == "refs/pr/1");
  CHECK(all.quant == "Q4_K_M");
  CHECK(hub::parse_pull_source("gpt2").revision == "main");
  for (const char* text : {"", "/", "org/", "/name", "a/b/c", "../name", "org/..", "org/a--b",
                           "org/name@", "org/name:", "org/name@../x", "org/name@a b", "org/na me",
                           "org/name:a/b", "org/name@/x", "-org/name", "org/.name", "o\nrg/name"}) {
    INFO(text);
    CHECK_THROWS_AS(hub::parse_pull_source(text), hub::HubError);
  }
}

TEST_CASE("pull: the address of a page of the hub names its repository") {
  const auto source = [](const std::string& text, std::string_view endpoint) {
    const hub::PullSource parsed = hub::parse_pull_source(text, endpoint);
    return hub::name_of(parsed) + " " + parsed.revision;
  };
  const std::string hub = hub::kDefaultEndpoint, own = "http://127.0.0.1:7/mirror";
  for (const std::string& endpoint : {hub, own}) {
    for (const char* const page :
         {"https://huggingface.co/org/name", "https://huggingface.co/org/name/",
          "http://huggingface.co/org/name?library=x", "huggingface.co/org/name",
          "https://hf.co/org/name", "hf.co/org/name", "https://huggingface.co/org/name/tree/main",
          "https://huggingface.co/org/name/discussions", "hf.co/org/name/discussions/5",
          "https://www.huggingface.co/org/name#top", "https://huggingface.co/org/name/blob/main",
          "org/name"}) {
      INFO(page);
      CHECK(source(page, endpoint) == "org/name main");
    }
    CHECK(source("https://huggingface.co/org/name:Q8_0", endpoint) == "org/name:Q8_0 main");
    CHECK(source("https://huggingface.co/org/name/tree/v2", endpoint) == "org/name v2");
    CHECK(source("https://huggingface.co/o/n/blob/main/m-Q4_K_M.gguf", endpoint) ==
          "o/n:m-Q4_K_M main");
    CHECK(source("https://huggingface.co/o/n/resolve/v1/q/m-Q8_0-00001-of-00003.gguf?download=true",
                 endpoint) == "o/n:m-Q8_0 v1");
    CHECK_THROWS_WITH(
        hub::parse_pull_source("https://huggingface.co/o/n/blob/main/config.json", endpoint),
        Contains("'config.json'") && Contains("--file"));
    CHECK_THROWS_WITH(hub::parse_pull_source("https://example.org/org/name", endpoint),
                      Contains("is no address of the hub " + endpoint) && Contains("HF_ENDPOINT"));
  }
  CHECK(source(own + "/org/name", own) == "org/name main");
  CHECK(source("127.0.0.1:7/mirror/org/name", own) == "org/name main");
  for (const char* const wrong :
       {"https://huggingface.co/datasets/org/name", "https://huggingface.co/",
        "https://huggingface.co/../x", "https://huggingface.co/org/name/blob/../x.gguf"}) {
    INFO(wrong);
    CHECK_THROWS_AS(hub::parse_pull_source(wrong), hub::HubError);
  }
}

}  // namespace lintel::testing
