// SPDX-License-Identifier: Apache-2.0
#include "client/hub/pull.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "model/core/json_reader.h"
#include "model/core/pytorch_file.h"

namespace lintel::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxListBytes = std::size_t{32} << 20;
constexpr std::size_t kMaxFiles = 10'000;
constexpr std::size_t kMaxPathBytes = 1'024;
constexpr std::size_t kMaxNameBytes = 255;
constexpr std::size_t kCommitDigits = 40;
constexpr std::size_t kSha256Digits = 64;
constexpr int kMaxTries = 5;  // without a byte in between
constexpr auto kMaxDelay = std::chrono::minutes(5);
constexpr auto kPollInterval = std::chrono::milliseconds(100);
constexpr std::string_view kKinds[] = {".safetensors", ".gguf", ".json",
                                       ".jinja",       ".txt",  ".model"};
constexpr const char* kKindsText = "*.safetensors *.gguf *.json *.jinja *.txt *.model";

std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

bool is_alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_hex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_commit(std::string_view text) { return text.size() == kCommitDigits && is_hex(text); }

// Letters, digits and -._ , beginning with a letter, digit or '_'.
bool is_plain_name(std::string_view name, std::size_t max_bytes) {
  return !name.empty() && name.size() <= max_bytes &&
         (is_alphanumeric(name.front()) || name.front() == '_') &&
         std::ranges::all_of(
             name, [](char c) { return is_alphanumeric(c) || c == '-' || c == '.' || c == '_'; });
}

// True if a path stays below the directory that it is appended to.
bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes) return false;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F || c == '\\') return false;
  }
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxNameBytes) return false;
    at = end + 1;
  }
  return true;
}

bool is_allowed_kind(std::string_view path) {
  return std::ranges::any_of(kKinds, [&](std::string_view kind) { return path.ends_with(kind); });
}

// "ORG/NAME", with "@REVISION" where that is not main.
std::string shown_source(const PullSource& source) {
  return source.revision == "main" ? source.repo : source.repo + "@" + source.revision;
}

[[noreturn]] void fail_at(const fs::path& path, const char* what) {
  throw HubError(path.string() + ": " + what + ": " + std::strerror(errno));
}

// Paths of a repository in the cache.
struct RepoCache {
  RepoCache(const HubSettings& hub, const std::string& repo) {
    std::string folder = "models--" + repo;
    if (const std::size_t slash = folder.find('/'); slash != std::string::npos) {
      folder.replace(slash, 1, "--");
    }
    root = hub.cache / folder;
    locks = hub.cache / ".locks" / folder;
  }
  fs::path blob(const std::string& etag) const { return root / "blobs" / etag; }
  fs::path ref(const std::string& revision) const { return root / "refs" / revision; }
  fs::path snapshot(const std::string& commit) const { return root / "snapshots" / commit; }

  fs::path root, locks;
};

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw HubError(path.string() + ": cannot be made: " + error.message());
}

// A descriptor, closed at the end.
class OpenFile {
 public:
  OpenFile(const fs::path& path, int flags)
      : path_(path), file_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (file_ < 0) fail_at(path_, "cannot be opened");
  }
  ~OpenFile() { close(file_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int get() const { return file_; }
  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail_at(path_, "cannot be written");
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  // The file is empty again.
  void clear() {
    if (ftruncate(file_, 0) != 0 || lseek(file_, 0, SEEK_SET) != 0)
      fail_at(path_, "cannot be written");
  }
  void sync() {
    if (fsync(file_) != 0) fail_at(path_, "cannot be written");
  }

 private:
  const fs::path path_;
  const int file_;
};

// The hash that an entity tag is of: SHA-256 of the content, or git's SHA-1 of a blob.
std::string content_hash(const fs::path& path, std::uint64_t size, bool sha256,
                         const std::function<bool()>& cancelled) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  const auto check = [](int result) {
    if (result != 1) throw HubError("a hash cannot be computed");
  };
  check(EVP_DigestInit_ex(context.get(), sha256 ? EVP_sha256() : EVP_sha1(), nullptr));
  if (!sha256) {
    const std::string head = "blob " + std::to_string(size);
    check(EVP_DigestUpdate(context.get(), head.c_str(), head.size() + 1));
  }
  const OpenFile file(path, O_RDONLY);
  std::vector<char> buffer(std::size_t{1} << 20);
  while (true) {
    if (cancelled && cancelled()) throw HubError("cancelled");
    const ssize_t count = read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_at(path, "cannot be read");
    if (count == 0) break;
    check(EVP_DigestUpdate(context.get(), buffer.data(), static_cast<std::size_t>(count)));
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned length = 0;
  check(EVP_DigestFinal_ex(context.get(), digest.data(), &length));
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned i = 0; i < length; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

std::uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

// Sets a text or a link at `path` in one step.
void replace_file(const fs::path& path, const std::function<void(const fs::path&)>& make) {
  const fs::path temporary = path.parent_path() / ("." + path.filename().string().substr(0, 200) +
                                                   "." + std::to_string(getpid()) + ".tmp");
  ::unlink(temporary.c_str());
  make(temporary);
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    errno = error;
    fail_at(path, "cannot be made");
  }
}

// "a-00001-of-00003.gguf" is part 1 of 3 of "a.gguf".
struct FilePart {
  std::string whole;
  int part = 1, parts = 1;
};

// `ending`: ".gguf" or ".safetensors", which the path has.
FilePart part_of(const std::string& path, const std::string& ending) {
  const std::string form = "-00000-of-00000" + ending;
  FilePart whole{path};
  if (path.size() <= form.size()) return whole;
  const std::string tail = path.substr(path.size() - form.size());
  for (std::size_t i = 0; i < form.size(); ++i) {
    const bool digit = tail[i] >= '0' && tail[i] <= '9';
    if (form[i] == '0' ? !digit : tail[i] != form[i]) return whole;
  }
  const int part = std::stoi(tail.substr(1, 5)), parts = std::stoi(tail.substr(10, 5));
  if (part < 1 || part > parts) return whole;
  return {path.substr(0, path.size() - form.size()) + ending, part, parts};
}

// The files of one ending, by what they are parts of.
class PartedFiles {
 public:
  PartedFiles(const std::vector<std::string>& files, const std::string& ending) {
    for (const std::string& file : files) {
      // Projectors, which turn pictures into vectors for a model, are no models.
      if (!file.ends_with(ending) || fs::path(file).filename().string().starts_with("mmproj")) {
        continue;
      }
      const FilePart part = part_of(file, ending);
      Whole& whole = wholes_[part.whole];
      whole.files[part.part] = file;
      whole.parts = part.parts;
    }
  }

  bool empty() const { return wholes_.empty(); }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, whole] : wholes_) names.push_back(name);
    return names;
  }
  // The parts of one of names(), in order. Throws HubError where one is missing.
  std::vector<std::string> parts_of(const std::string& name) const {
    const Whole& whole = wholes_.at(name);
    std::vector<std::string> files;
    for (const auto& [part, file] : whole.files) files.push_back(file);
    if (files.size() != static_cast<std::size_t>(whole.parts)) {
      throw HubError(printable(name) + " has " + std::to_string(files.size()) + " of its " +
                     std::to_string(whole.parts) + " parts");
    }
    return files;
  }

 private:
  struct Whole {
    std::map<int, std::string> files;  // by their numbers
    int parts = 1;
  };
  std::map<std::string, Whole> wholes_;
};

bool is_of_word(char c) { return is_alphanumeric(c) || c == '_'; }

// True if `word` is in `text` with no letter, digit or '_' before or after it.
bool has_word(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_of_word(text[at - 1])) && (end == text.size() || !is_of_word(text[end]))) {
      return true;
    }
  }
  return false;
}

bool ends_with_word(std::string_view text, std::string_view word) {
  if (!text.ends_with(word)) return false;
  text.remove_suffix(word.size());
  return text.empty() || !is_of_word(text.back());
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += ' ' + printable(name);
  return text;
}

// The .gguf file that a quant means.
struct QuantChoice {
  std::string model;
  bool is_one_of_several = false;  // others end with the same quant
};

// The file that has `quant` in its name: as a whole word, where one has it so, since F16 is not
// BF16. Of several that end with it the one with the fewest words: "m-Q4_K_M", not
// "m-UD-Q4_K_M", which UD-Q4_K_M names. Nothing: no file has it. Throws HubError where the choice
// is not clear.
std::optional<QuantChoice> model_of_quant(const PartedFiles& gguf, const std::string& quant) {
  const std::string wanted = lower_case(quant);
  std::vector<std::string> matches, whole_words, ends;
  for (const std::string& model : gguf.names()) {
    const std::string name = lower_case(fs::path(model).filename().string());
    if (name.find(wanted) == std::string::npos) continue;
    matches.push_back(model);
    if (has_word(name, wanted)) whole_words.push_back(model);
    if (ends_with_word(fs::path(name).stem().string(), wanted)) ends.push_back(model);
  }
  if (matches.empty()) return std::nullopt;
  if (whole_words.size() == 1) return QuantChoice{whole_words.front()};
  if (!ends.empty()) {
    const auto words = [](const std::string& model) {
      return std::ranges::count_if(fs::path(model).filename().string(),
                                   [](char c) { return c == '-' || c == '.'; });
    };
    return QuantChoice{*std::ranges::min_element(ends, {}, words), ends.size() > 1};
  }
  if (matches.size() == 1) return QuantChoice{matches.front()};
  throw HubError("several .gguf files have '" + quant + "' in their names:" + listed(matches));
}

// The files of a repository that are pulled.
struct Selection {
  std::vector<std::string> files;  // in their order
  bool is_gguf = false;            // they are one .gguf model, which the first of them stands for
  std::string note;                // files left out, and the way to pull them; empty: none
};

// "Q4_K_M" of "Qwen3.5-4B-Q4_K_M.gguf", as such files are called; the name itself of a file that
// shares this with another one.
std::string quant_of(const std::string& model, const std::vector<std::string>& models) {
  const auto end_of = [](const std::string& name) {
    const std::string stem = fs::path(name).stem().string();
    return stem.substr(stem.find_last_of("-.") + 1);
  };
  const std::string quant = end_of(model);
  const auto same = std::ranges::count_if(
      models, [&](const std::string& other) { return end_of(other) == quant; });
  return same == 1 ? quant : fs::path(model).stem().string();
}

// "QUANT, QUANT": the models but for `taken`.
std::string other_quants(const std::vector<std::string>& models, const std::string& taken) {
  std::string others;
  for (const std::string& model : models) {
    if (model == taken) continue;
    others += (others.empty() ? "" : ", ") + printable(quant_of(model, models));
  }
  return others;
}

// Selects the .gguf file of a quant, or its parts in order.
Selection named_quant(const PartedFiles& gguf, const std::string& quant) {
  if (gguf.empty()) throw HubError("there are no .gguf files");
  const std::vector<std::string> models = gguf.names();
  const std::optional<QuantChoice> choice = model_of_quant(gguf, quant);
  if (!choice) {
    throw HubError("no .gguf file has '" + quant + "' in its name; there are:" + listed(models));
  }
  Selection selected{gguf.parts_of(choice->model), true, ""};
  if (choice->is_one_of_several) {
    selected.note = "of its .gguf files " + printable(quant_of(choice->model, models)) +
                    " is taken; :QUANT names another: " + other_quants(models, choice->model);
  }
  return selected;
}

// Selects from a repository of .gguf files without a named quant.
Selection default_quant(const PartedFiles& gguf) {
  const std::vector<std::string> models = gguf.names();
  if (models.size() == 1) return {gguf.parts_of(models.front()), true, ""};
  for (const std::string_view name : kDefaultQuants) {
    const std::string quant(name);
    const std::optional<QuantChoice> choice = model_of_quant(gguf, quant);
    if (!choice) continue;
    const std::string taken =
        choice->is_one_of_several ? printable(quant_of(choice->model, models)) : quant;
    return {gguf.parts_of(choice->model), true,
            "of its .gguf files " + taken +
                " is taken; :QUANT names another: " + other_quants(models, choice->model)};
  }
  throw HubError(
      "none of its .gguf files is Q4_K_M, Q4_K_S, Q4_0, Q5_K_M or Q8_0, which are taken "
      "without a name; name one as ORG/NAME:QUANT: " +
      other_quants(models, ""));
}

// Selects the files to pull from those that there are, in their order.
Selection selected_files(const std::vector<std::string>& files, const std::string& quant,
                         const std::vector<std::string>& globs) {
  const PartedFiles gguf(files, ".gguf");
  if (!quant.empty()) return named_quant(gguf, quant);
  const bool has_safetensors = std::ranges::any_of(
      files, [](const std::string& file) { return file.ends_with(".safetensors"); });
  if (globs.empty() && !gguf.empty() && !has_safetensors) return default_quant(gguf);
  Selection selected;
  for (const std::string& file : files) {
    if (!is_allowed_kind(file)) continue;
    // The same weights once more, often in twenty sizes.
    if (globs.empty() && file.ends_with(".gguf")) continue;
    const bool wanted = globs.empty() || std::ranges::any_of(globs, [&](const std::string& glob) {
                          return fnmatch(glob.c_str(), file.c_str(), 0) == 0;
                        });
    if (wanted) selected.files.push_back(file);
  }
  if (globs.empty() && !gguf.empty()) {
    selected.note = "its .gguf files are left out; :QUANT names one:" + listed(gguf.names());
  }
  for (const std::string& glob : globs) {
    if (std::ranges::none_of(selected.files, [&](const std::string& file) {
          return fnmatch(glob.c_str(), file.c_str(), 0) == 0;
        })) {
      throw HubError("--file " + printable(glob) + ": no file of " + kKindsText + " matches");
    }
  }
  if (selected.files.empty()) throw HubError(std::string("there is no file of ") + kKindsText);
  return selected;
}

// The hub's answer about a repository: "sha", and "rfilename" of each of "siblings". All else is
// passed over, so that a list takes little more memory than its text.
class RepoList final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string commit;              // empty: none is named
  bool has_files = false;          // there is a list of files
  std::vector<std::string> paths;  // an empty one for a file without a name

  bool has_too_many() const { return paths.size() > kMaxFiles; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool string(string_t& text) override {
    if (is_at({"sha"})) commit = text;
    if (is_at({"siblings", "", "rfilename"})) paths.back() = text;
    return true;
  }
  bool key(string_t& name) override {
    keys_.back() = name.size() <= kMaxKeyBytes ? name : "";
    return true;
  }
  bool start_object(std::size_t) override {
    if (is_at({"siblings", ""})) paths.emplace_back();
    keys_.emplace_back();
    return !has_too_many();
  }
  bool start_array(std::size_t) override {
    has_files = has_files || is_at({"siblings"});
    keys_.emplace_back();
    return true;
  }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  static constexpr std::size_t kMaxKeyBytes = 16;

  bool end() {
    keys_.pop_back();
    return true;
  }
  bool is_at(std::initializer_list<std::string_view> keys) const {
    return std::ranges::equal(keys_, keys);
  }

  std::vector<std::string> keys_;  // of what is open; empty in lists
};

// One pull over the network.
class Download {
 public:
  Download(const PullSource& source, const PullOptions& options)
      : source_(source),
        options_(options),
        cache_(options.hub, source.repo),
        fetch_(options.hub.endpoint, options.hub.token, options.cancelled) {}

  fs::path run();

 private:
  struct File {
    std::string path, etag;
    std::uint64_t size = 0;
  };
  // The tries of one thing, and how long to wait between them.
  struct Tries {
    int failed = 0;
  };

  std::string url(const std::string& path) const { return options_.hub.endpoint + path; }
  HttpReply try_often(const std::function<HttpReply()>& ask);
  void wait_for_next_try(Tries& tries, const std::string& why,
                         std::optional<std::chrono::seconds> retry_after);
  void wait(std::chrono::milliseconds duration);
  void check_cancelled() const;
  [[noreturn]] void refuse(const HttpReply& reply, const std::string& what) const;
  // Throws HubError for a reply in place of the list of files.
  [[noreturn]] void refuse_repository(const HttpReply& reply) const;
  // Throws HubError where all weights of the repository are of a format that is not read.
  void check_weights() const;
  void read_list();
  File look_up(const std::string& path);
  void check_space(const std::vector<File>& files);
  void get_blob(const File& file);
  void transfer(const File& file, const fs::path& incomplete);
  void link(const File& file);

  const PullSource& source_;
  const PullOptions& options_;
  const RepoCache cache_;
  HttpFetch fetch_;
  std::string commit_;
  std::vector<std::string> files_;          // of the repository, those that may be pulled
  std::vector<std::string> pytorch_files_;  // others
};

void Download::check_cancelled() const {
  if (options_.cancelled && options_.cancelled()) throw HubError("cancelled");
}

void Download::wait(std::chrono::milliseconds duration) {
  const auto end = std::chrono::steady_clock::now() + duration;
  for (auto now = std::chrono::steady_clock::now(); now < end;
       now = std::chrono::steady_clock::now()) {
    check_cancelled();
    std::this_thread::sleep_for(
        std::min<std::chrono::steady_clock::duration>(kPollInterval, end - now));
  }
}

void Download::wait_for_next_try(Tries& tries, const std::string& why,
                                 std::optional<std::chrono::seconds> retry_after) {
  std::chrono::milliseconds delay = options_.first_delay * (1 << tries.failed);
  if (retry_after) delay = *retry_after;
  ++tries.failed;
  if (tries.failed >= kMaxTries) throw HubError(why + "; gave up after 5 tries");
  if (delay > kMaxDelay) {
    throw HubError(why + "; it asks to come back in " + std::to_string(delay.count() / 1000) +
                   " s");
  }
  if (options_.on_note) {
    options_.on_note(why + "; next try in " + std::to_string(delay.count()) + " ms");
  }
  wait(delay);
}

bool may_pass(int status) { return status == 429 || status >= 500; }

HttpReply Download::try_often(const std::function<HttpReply()>& ask) {
  for (Tries tries;;) {
    try {
      HttpReply reply = ask();
      if (!may_pass(reply.status)) return reply;
      wait_for_next_try(tries, "status " + std::to_string(reply.status), reply.retry_after);
    } catch (const ConnectionError& error) {
      wait_for_next_try(tries, error.what(), {});
    }
  }
}

void Download::refuse(const HttpReply& reply, const std::string& what) const {
  std::string text = what + ": status " + std::to_string(reply.status);
  if (!reply.header("x-error-message").empty()) {
    text += ", " + printable(reply.header("x-error-message"));
  }
  if (reply.status == 401 || reply.status == 403) {
    text += options_.hub.token.empty() ? "; HF_TOKEN is not set" : "; is HF_TOKEN right?";
  }
  throw HubError(text);
}

void Download::refuse_repository(const HttpReply& reply) const {
  const bool is_gated = reply.header("x-error-code") == "GatedRepo";
  // Hubs say 401 to callers without a token, so that private repositories are not seen.
  if ((reply.status != 404 && reply.status != 401) || is_gated) {
    refuse(reply, shown_source(source_));
  }
  throw HubError(shown_source(source_) + ": " + printable(options_.hub.endpoint) +
                 " has no such repository" + (source_.revision == "main" ? "" : " or revision") +
                 ", or it is private: " +
                 (options_.hub.token.empty() ? "HF_TOKEN is not set" : "is HF_TOKEN right?") +
                 " (status " + std::to_string(reply.status) + ")");
}

void Download::read_list() {
  const std::string what = shown_source(source_);
  const HttpReply reply = try_often([&] {
    return fetch_.get_text(url("/api/models/" + escape_path(source_.repo) + "/revision/" +
                               escape_path(source_.revision, true)),
                           kMaxListBytes);
  });
  if (reply.status != 200) refuse_repository(reply);
  JsonFailure failure;
  RepoList list;
  if (!read_json_events(reply.body, JsonBounds(), list, failure) && !list.has_too_many()) {
    throw HubError(what + ": its list " + failure.what);
  }
  if (list.has_too_many()) throw HubError(what + ": it has more than 10,000 files");
  commit_ = list.commit;
  if (!is_commit(commit_)) throw HubError(what + ": its list names no commit");
  if (!list.has_files) throw HubError(what + ": its list has no files");
  std::set<std::string> names;
  for (const std::string& path : list.paths) {
    if (is_pytorch_file(path)) pytorch_files_.push_back(path);
    if (!is_allowed_kind(path)) continue;
    if (!is_safe_path(path)) throw HubError(what + ": a file has the name " + printable(path));
    if (names.insert(path).second) files_.push_back(path);
  }
}

void Download::check_weights() const {
  const bool has_weights = std::ranges::any_of(files_, [](const std::string& file) {
    return file.ends_with(".safetensors") || file.ends_with(".gguf");
  });
  if (has_weights || pytorch_files_.empty()) return;
  const std::size_t others = pytorch_files_.size() - 1;
  throw HubError(shown_source(source_) + ": there are neither *.safetensors nor *.gguf files but " +
                 printable(pytorch_files_.front()) +
                 (others == 0 ? "" : " and " + std::to_string(others) + " more") + "; " +
                 kPytorchHint);
}

Download::File Download::look_up(const std::string& path) {
  const HttpReply reply = try_often([&] {
    return fetch_.head(
        url("/" + escape_path(source_.repo) + "/resolve/" + commit_ + "/" + escape_path(path)));
  });
  const bool elsewhere = reply.status >= 300 && reply.status < 400;
  if (reply.status != 200 && !elsewhere) refuse(reply, printable(path));
  const std::string& commit = reply.header("x-repo-commit");
  if (!commit.empty() && commit != commit_) {
    throw HubError(printable(path) + ": it is of commit " + printable(commit));
  }
  const bool linked = !reply.header("x-linked-etag").empty();
  std::string etag = reply.header(linked ? "x-linked-etag" : "etag");
  if (etag.starts_with("W/")) etag.erase(0, 2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  if ((etag.size() != kSha256Digits && etag.size() != kCommitDigits) || !is_hex(etag)) {
    throw HubError(printable(path) + ": its entity tag is no hash: " + printable(etag));
  }
  std::string size = reply.header("x-linked-size");
  if (size.empty() && !elsewhere) size = reply.header("content-length");
  if (size.empty() || size.size() > 15 ||
      !std::ranges::all_of(size, [](char c) { return c >= '0' && c <= '9'; })) {
    throw HubError(printable(path) + ": its size is not known");
  }
  return {path, etag, std::stoull(size)};
}

void Download::check_space(const std::vector<File>& files) {
  std::map<std::string, std::uint64_t> missing;  // by tag: several paths may be one file
  for (const File& file : files) {
    if (fs::exists(cache_.blob(file.etag))) continue;
    const std::uint64_t have = size_of(cache_.blob(file.etag + ".incomplete"));
    missing[file.etag] = file.size - std::min(file.size, have);
  }
  std::uint64_t needed = 0;
  for (const auto& [etag, bytes] : missing) needed += bytes;
  struct statvfs space {};
  if (statvfs(cache_.root.c_str(), &space) != 0)
    fail_at(cache_.root, "its free space is not known");
  const std::uint64_t available = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  if (needed > available) {
    throw HubError(cache_.root.string() + ": " + std::to_string(needed) + " bytes are needed, " +
                   std::to_string(available) + " are free");
  }
  if (options_.on_size) options_.on_size(needed);
}

// One download at a time of each file, by all processes: the lock is that of huggingface_hub.
class FileLock {
 public:
  FileLock(const fs::path& path, const std::function<void()>& wait)
      : file_(path, O_RDWR | O_CREAT) {
    while (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) fail_at(path, "cannot be locked");
      wait();
    }
  }

 private:
  OpenFile file_;
};

void Download::get_blob(const File& file) {
  const fs::path blob = cache_.blob(file.etag), incomplete = cache_.blob(file.etag + ".incomplete");
  bool noted = false;
  const FileLock lock(cache_.locks / (file.etag + ".lock"), [&] {
    if (!noted && options_.on_note) {
      options_.on_note(printable(file.path) + ": another process downloads it");
    }
    noted = true;
    wait(kPollInterval);
  });
  if (fs::exists(blob)) return;
  for (int tries = 0; tries < 2; ++tries) {
    transfer(file, incomplete);
    const bool sha256 = file.etag.size() == kSha256Digits;
    if (content_hash(incomplete, file.size, sha256, options_.cancelled) == file.etag) {
      OpenFile(incomplete, O_RDWR).sync();
      if (rename(incomplete.c_str(), blob.c_str()) != 0) fail_at(blob, "cannot be made");
      return;
    }
    if (::unlink(incomplete.c_str()) != 0) fail_at(incomplete, "cannot be removed");
  }
  throw HubError(printable(file.path) + ": its content does not have the hash " + file.etag +
                 ", twice; it was deleted");
}

// Appends what is missing of the file.
void Download::transfer(const File& file, const fs::path& incomplete) {
  OpenFile out(incomplete, O_WRONLY | O_CREAT | O_APPEND);
  std::uint64_t have = size_of(incomplete);
  if (have > file.size) {
    out.clear();
    have = 0;
  }
  for (Tries tries; have < file.size;) {
    const std::uint64_t from = have;
    std::string why;
    std::optional<std::chrono::seconds> retry_after;
    try {
      const HttpReply reply = fetch_.get(
          url("/" + escape_path(source_.repo) + "/resolve/" + commit_ + "/" +
              escape_path(file.path)),
          from,
          [&](const HttpReply& head) {
            const std::string range = "bytes " + std::to_string(from) + "-";
            if (from == 0 ||
                (head.status == 206 && head.header("content-range").starts_with(range))) {
              return;
            }
            out.clear();  // the whole file comes
            have = 0;
            if (head.status == 206) throw HubError(printable(file.path) + ": another range came");
          },
          [&](std::string_view bytes) {
            if (bytes.size() > file.size - have) {
              throw HubError(printable(file.path) + ": it is longer than " +
                             std::to_string(file.size) + " bytes");
            }
            out.write(bytes);
            have += bytes.size();
            if (options_.on_bytes) options_.on_bytes(bytes.size());
          });
      if (reply.status == 200 || reply.status == 206) {
        if (have == file.size) return;
        why = printable(file.path) + ": it is shorter than " + std::to_string(file.size) + " bytes";
      } else if (reply.status == 416) {
        out.clear();
        have = 0;
        why = printable(file.path) + ": status 416";
      } else if (may_pass(reply.status)) {
        why = printable(file.path) + ": status " + std::to_string(reply.status);
        retry_after = reply.retry_after;
      } else {
        refuse(reply, printable(file.path));
      }
    } catch (const ConnectionError& error) {
      why = error.what();
    }
    if (have > from) tries = {};
    wait_for_next_try(tries, why, retry_after);
  }
}

void Download::link(const File& file) {
  const fs::path path = cache_.snapshot(commit_) / file.path;
  make_directories(path.parent_path());
  fs::path target = fs::path("..") / "..";
  for (auto depth = std::ranges::count(file.path, '/'); depth > 0; --depth) target /= "..";
  target = target / "blobs" / file.etag;
  replace_file(path, [&](const fs::path& temporary) {
    if (symlink(target.c_str(), temporary.c_str()) != 0) fail_at(path, "cannot be made");
  });
}

fs::path Download::run() {
  read_list();
  if (options_.globs.empty()) check_weights();
  const Selection selected = selected_files(files_, source_.quant, options_.globs);
  if (!selected.note.empty() && options_.on_note) {
    options_.on_note(source_.repo + ": " + selected.note);
  }
  const fs::path snapshot = cache_.snapshot(commit_);
  for (const fs::path& path : {cache_.root / "blobs", snapshot, cache_.locks})
    make_directories(path);
  std::vector<File> missing;
  for (const std::string& path : selected.files) {
    check_cancelled();
    if (!fs::exists(snapshot / path)) missing.push_back(look_up(path));
  }
  check_space(missing);
  for (const File& file : missing) {
    if (options_.on_file) options_.on_file(printable(file.path));
    get_blob(file);
    link(file);
  }
  if (source_.revision != commit_) {
    const fs::path ref = cache_.ref(source_.revision);
    make_directories(ref.parent_path());
    replace_file(ref, [&](const fs::path& temporary) {
      OpenFile(temporary, O_WRONLY | O_CREAT | O_EXCL).write(commit_);
    });
  }
  return selected.is_gguf ? snapshot / selected.files.front() : snapshot;
}

// The files of a source in the cache.
struct CachedFiles {
  fs::path snapshot;
  std::vector<std::string> files;  // by their names
};

CachedFiles cached_files(const PullSource& source, const PullOptions& options) {
  const RepoCache cache(options.hub, source.repo);
  const std::string what = shown_source(source);
  std::string commit = source.revision;
  if (!is_commit(commit)) {
    std::ifstream in(cache.ref(source.revision));
    commit.clear();
    in >> commit;
  }
  const fs::path snapshot = cache.snapshot(commit);
  std::error_code error;
  if (!is_commit(commit) || !fs::is_directory(snapshot, error)) {
    throw HubError(what + " is not in the cache " + options.hub.cache.string());
  }
  std::vector<std::string> files;
  for (auto at = fs::recursive_directory_iterator(snapshot, error);
       !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    // Links to files that are there.
    if (at->is_regular_file(error))
      files.push_back(at->path().lexically_relative(snapshot).string());
    error.clear();
  }
  std::ranges::sort(files);
  return {snapshot, std::move(files)};
}

fs::path pull_offline(const PullSource& source, const PullOptions& options) {
  const CachedFiles cached = cached_files(source, options);
  try {
    const Selection selected = selected_files(cached.files, source.quant, options.globs);
    if (!selected.note.empty() && options.on_note) {
      options.on_note(source.repo + " in the cache: " + selected.note);
    }
    return selected.is_gguf ? cached.snapshot / selected.files.front() : cached.snapshot;
  } catch (const HubError& why) {
    throw HubError("offline, in the cache of " + shown_source(source) + ": " + why.what());
  }
}

// True if the directory of a snapshot is a whole model. Throws HubError where a part is missing.
bool has_whole_checkpoint(const std::vector<std::string>& files) {
  const PartedFiles weights(files, ".safetensors");
  for (const std::string& name : weights.names()) (void)weights.parts_of(name);
  return !weights.empty() && std::ranges::find(files, "config.json") != files.end();
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

namespace {

// The part after "https://HOST/" of the address of a page of the hub; `text` itself where it is no
// address. Throws HubError for the address of another place.
std::string_view without_hub(std::string_view text, std::string_view endpoint) {
  for (std::string_view hub :
       {endpoint, std::string_view(kDefaultEndpoint), std::string_view("https://hf.co"),
        std::string_view("https://www.huggingface.co")}) {
    // Sources may begin with "https://", "http://" or nothing, as people copy them.
    const std::string_view host = hub.substr(hub.find("://") + 3);
    for (const std::string_view scheme : {"https://", "http://", ""}) {
      if (!text.starts_with(scheme)) continue;
      const std::string_view rest = text.substr(scheme.size());
      if (rest.starts_with(host) && rest.substr(host.size()).starts_with('/')) {
        return rest.substr(host.size() + 1);
      }
    }
  }
  if (text.find("://") != std::string_view::npos) {
    throw HubError("'" + printable(text) + "' is no address of the hub " + printable(endpoint) +
                   ", which HF_ENDPOINT names");
  }
  return text;
}

// Turns the path ORG/NAME/tree/REVISION, ORG/NAME/blob/REVISION/FILE.gguf or the like into
// ORG/NAME@REVISION:QUANT.
std::string as_source(std::string_view page) {
  page = page.substr(0, page.find_first_of("?#"));
  while (page.ends_with('/')) page.remove_suffix(1);
  const std::size_t org = page.find('/');
  const std::size_t name = org == std::string_view::npos ? org : page.find('/', org + 1);
  if (name == std::string_view::npos) return std::string(page);
  const std::string repo(page.substr(0, name));
  const std::string_view rest = page.substr(name + 1);
  const std::string_view kind = rest.substr(0, rest.find('/'));
  const std::string_view path = kind.size() < rest.size() ? rest.substr(kind.size() + 1) : "";
  for (const std::string_view other : {"datasets", "spaces", "collections", "papers", "docs"}) {
    if (page.substr(0, org) == other)
      throw HubError("the address is of no model but of " + std::string(other));
  }
  const bool is_file = kind == "blob" || kind == "resolve" || kind == "raw";
  // Else a tab of the repository's page.
  if (path.empty() || (!is_file && kind != "tree")) return repo;
  const std::string_view revision = path.substr(0, path.find('/'));
  if (!is_file || revision.size() == path.size()) return repo + "@" + std::string(revision);
  const std::string file(path.substr(revision.size() + 1));
  if (!file.ends_with(".gguf")) {
    throw HubError("the address is of the file '" + printable(file) + "': name " + repo +
                   " with --file");
  }
  const std::string quant = fs::path(part_of(file, ".gguf").whole).stem().string();
  return repo + "@" + std::string(revision) + ":" + quant;
}

}  // namespace

PullSource parse_pull_source(std::string_view text, std::string_view endpoint) {
  PullSource source;
  const std::string_view page = without_hub(text, endpoint);
  const std::string named = page.size() == text.size() ? std::string(text) : as_source(page);
  text = named;
  const std::size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    source.quant = text.substr(colon + 1);
    if (!is_plain_name(source.quant, kMaxNameBytes)) {
      throw HubError("QUANT '" + printable(source.quant) + "' is not of letters, digits and -._");
    }
    text = text.substr(0, colon);
  }
  const std::size_t at = text.find('@');
  if (at != std::string_view::npos) {
    source.revision = text.substr(at + 1);
    const bool plain = std::ranges::all_of(source.revision, [](char c) {
      return is_alphanumeric(c) || c == '-' || c == '.' || c == '_' || c == '/';
    });
    if (!plain || !is_safe_path(source.revision) || source.revision.size() > kMaxNameBytes) {
      throw HubError("REVISION '" + printable(source.revision) +
                     "' is no branch, tag or commit of letters, digits and -._/");
    }
    text = text.substr(0, at);
  }
  source.repo = text;
  const std::size_t slash = text.find('/');
  const std::string_view name = slash == std::string_view::npos ? text : text.substr(slash + 1);
  constexpr std::size_t kMaxRepoBytes = 96;
  if ((slash != std::string_view::npos && !is_plain_name(text.substr(0, slash), kMaxRepoBytes)) ||
      !is_plain_name(name, kMaxRepoBytes) || text.find("--") != std::string_view::npos ||
      text.find("..") != std::string_view::npos) {
    throw HubError("REPO '" + printable(text) + "' is not ORG/NAME of letters, digits and -._");
  }
  return source;
}

std::string name_of(const PullSource& source) {
  return source.quant.empty() ? source.repo : source.repo + ":" + source.quant;
}

std::string endpoint_from_environment() {
  std::string endpoint = environment("HF_ENDPOINT");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  return endpoint.empty() ? kDefaultEndpoint : endpoint;
}

HubSettings hub_settings_from_environment() {
  HubSettings settings;
  settings.endpoint = endpoint_from_environment();
  settings.token = environment("HF_TOKEN");
  const std::string offline = lower_case(environment("HF_HUB_OFFLINE"));
  settings.offline = offline == "1" || offline == "true" || offline == "yes" || offline == "on";
  const std::string home = environment("HOME");
  const auto expanded = [&](const std::string& path) -> fs::path {
    return path.starts_with("~/") && !home.empty() ? fs::path(home) / path.substr(2)
                                                   : fs::path(path);
  };
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) {
    settings.cache = expanded(cache);
  } else if (const std::string hf_home = environment("HF_HOME"); !hf_home.empty()) {
    settings.cache = expanded(hf_home) / "hub";
  } else if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty()) {
    settings.cache = expanded(xdg) / "huggingface" / "hub";
  } else if (!home.empty()) {
    settings.cache = fs::path(home) / ".cache" / "huggingface" / "hub";
  } else {
    throw HubError("there is no cache: set HF_HUB_CACHE, HF_HOME or HOME");
  }
  settings.cache = fs::absolute(settings.cache);
  return settings;
}

fs::path pull(const PullSource& source, const PullOptions& options) {
  if (!source.quant.empty() && !options.globs.empty()) {
    throw HubError("--file does not go with :" + source.quant);
  }
  if (options.hub.offline) return pull_offline(source, options);
  return Download(source, options).run();
}

std::optional<fs::path> find_in_cache(const PullSource& source, const PullOptions& options) {
  try {
    const fs::path path = pull_offline(source, options);
    if (path.extension() == ".gguf") return path;
    if (has_whole_checkpoint(cached_files(source, options).files)) return path;
  } catch (const HubError&) {  // a part of it, or nothing
  }
  return std::nullopt;
}

}  // namespace lintel::hub
