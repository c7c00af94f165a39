// SPDX-License-Identifier: Apache-2.0
#include "server/openai/response_store.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string_view>

#include "model/core/sha256.h"
#include "server/chat/template/request_json.h"
#include "server/core/random_bytes.h"
#include "server/openai/response_items.h"
#include "server/openai/response_output.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kDigits = 32;
constexpr std::string_view kPrefix = "resp_";
constexpr std::size_t kSweptAtOnce = 256;
// The time without a sign of life after which a process is gone.
constexpr std::chrono::seconds kSilence{5};
constexpr std::chrono::seconds kInterruptedInterval{2};
constexpr std::size_t kInterruptedAtOnce = 64;
constexpr std::chrono::seconds kRefusedInterval{30};

// The body of a document: two lines of JSON, the items, needed to read a chain, and the rest.
std::string body_of(const ResponseRecord& record) {
  static const Json kNone = Json::array();
  const auto found = record.response.find("output");
  const bool has_output = found != record.response.end();
  std::string body = "{\"status\":" + json_text(record.status()) +
                     ",\"input\":" + json_text(record.input) +
                     ",\"output\":" + json_text(has_output ? *found : kNone) + "}\n";
  Json rest = {{"response", Json::object()},           {"seed", record.seed},
               {"request", record.request_digest},     {"process", record.process},
               {"interrupted", record.is_interrupted}, {"body", record.request}};
  for (const auto& [name, value] : record.response.items()) {
    rest["response"][name] = name == "output" ? Json() : value;
  }
  std::string text = json_text(rest);
  text.pop_back();
  return body + text + ",\"pieces\":" + json_text(record.pieces) + "}";
}

// The items of a document, without the rest of it.
struct StoredItems {
  std::string status;
  Json input, output;
  std::size_t json_bytes = 0;
};

// The bytes of the line of items; 0: the document has no such line, as it is older than that.
std::size_t items_line(const Document& document) {
  const std::size_t end = document.body.find('\n');
  return end == std::string::npos ? 0 : end;
}

SessionError error_of(JsonFailure::Kind kind) {
  if (kind == JsonFailure::Kind::kNone) return SessionError::kNone;
  return kind == JsonFailure::Kind::kNoSpace ? SessionError::kTooLarge : SessionError::kDamaged;
}

// Charges the text of a document, which is in memory while its trees are made.
SessionError charge_text(const Document& document, JsonBudget& budget) {
  return budget.charge(static_cast<std::int64_t>(document.body.size())) ? SessionError::kNone
                                                                        : SessionError::kTooLarge;
}

// kDamaged: the document is not valid.
SessionError read_stored_items(const Document& document, JsonBudget& budget, StoredItems& items) {
  const std::size_t line = items_line(document);
  Json read;
  const SessionError error = error_of(read_written_json(
      std::string_view(document.body).substr(0, line == 0 ? std::string::npos : line), &budget,
      read));
  if (error != SessionError::kNone) return error;
  try {
    Json& response = line == 0 ? read.at("response") : read;
    items.status = response.at("status");
    items.output = std::move(response.at("output"));
    items.input = std::move(read.at("input"));
    items.json_bytes =
        line > 0 ? line : json_text(items.input).size() + json_text(items.output).size();
    const bool is_right = items.input.is_array() && items.output.is_array();
    return is_right ? SessionError::kNone : SessionError::kDamaged;
  } catch (const Json::exception&) {
    return SessionError::kDamaged;
  }
}

// kDamaged: the document is not valid.
SessionError read_body(const Document& document, JsonBudget& budget, ResponseRecord& record) {
  const std::size_t line = items_line(document);
  Json body;
  SessionError error = error_of(read_written_json(
      std::string_view(document.body).substr(line == 0 ? 0 : line + 1), &budget, body));
  if (error != SessionError::kNone) return error;
  try {
    record.digits = document.id;
    record.owner = document.owner;
    record.parent = document.parent;
    record.version = document.version;
    record.response = std::move(body.at("response"));
    if (line > 0) {
      StoredItems items;
      error = read_stored_items(document, budget, items);
      if (error != SessionError::kNone) return error;
      record.input = std::move(items.input);
      record.response["output"] = std::move(items.output);
    } else {
      record.input = std::move(body.at("input"));
    }
    record.pieces = std::move(body.at("pieces"));
    record.seed = body.at("seed");
    record.request_digest = body.at("request");
    record.process = body.at("process");
    record.is_interrupted = body.at("interrupted");
    record.request = body.value("body", "");
    const bool is_right =
        record.response.is_object() && record.input.is_array() && record.pieces.is_array();
    return is_right ? SessionError::kNone : SessionError::kDamaged;
  } catch (const Json::exception&) {
    return SessionError::kDamaged;
  }
}

}  // namespace

std::string random_digits() {
  constexpr std::string_view kHexadecimal = "0123456789abcdef";
  std::array<std::byte, kDigits / 2> bytes{};
  fill_with_random(bytes);
  std::string digits;
  for (const std::byte byte : bytes) {
    digits += kHexadecimal[std::to_integer<std::size_t>(byte) >> 4];
    digits += kHexadecimal[std::to_integer<std::size_t>(byte) & 15];
  }
  return digits;
}

std::string digits_of_response(const std::string& id) {
  const bool is_id = id.size() == kPrefix.size() + kDigits && id.starts_with(kPrefix) &&
                     std::all_of(id.begin() + kPrefix.size(), id.end(), [](char c) {
                       return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
                     });
  return is_id ? id.substr(kPrefix.size()) : "";
}

ResponseStore::ResponseStore(DocumentStorage& documents, const Clock& clock, Options options)
    : documents_(documents),
      clock_(clock),
      options_(options),
      process_(random_digits()),
      threads_(documents.waits() ? 1 : 0, std::numeric_limits<std::size_t>::max()) {
  documents_.note_alive(process_);
}

ResponseStore::~ResponseStore() = default;

SessionError ResponseStore::digits_of_key(const std::string& owner, const std::string& key,
                                          std::string& digits) {
  DocumentStorage::Secret secret{};
  const SessionError error = documents_.secret(secret);
  if (error != SessionError::kNone) return error;
  Sha256 hash;
  hash.add({reinterpret_cast<const char*>(secret.data()), secret.size()});
  hash.add_length(owner.size());
  hash.add(owner);
  hash.add(key);
  digits = hash.hex().substr(0, kDigits);
  return error;
}

SessionError ResponseStore::sealer(const std::string& owner, std::optional<Sealer>& sealer) {
  DocumentStorage::Secret secret{};
  const SessionError error = documents_.secret(secret);
  if (error == SessionError::kNone) sealer.emplace(secret, owner);
  return error;
}

Document ResponseStore::document_of(const ResponseRecord& record) const {
  return {.id = record.digits,
          .owner = record.owner,
          .parent = record.parent,
          .body = body_of(record),
          .version = record.version,
          .expires = clock_.wall_time() + options_.expire,
          .runner = record.request.empty() ? "" : process_};
}

SessionError ResponseStore::begin(ResponseRecord& record, bool has_log,
                                  std::shared_ptr<RunningResponse>& running,
                                  std::size_t repeated_bytes) {
  record.process = process_;
  auto started = std::make_shared<RunningResponse>();
  started->repeated_bytes_ = repeated_bytes;
  if (has_log) started->log_ = std::make_shared<EventLog>();
  {
    const MutexLock lock(mutex_);
    if (!running_.try_emplace(record.digits, Running{record.owner, started, {}}).second) {
      return SessionError::kFenced;
    }
  }
  Document document = document_of(record);
  const SessionError error = documents_.put(document);
  if (error != SessionError::kNone) {
    forget(record.digits);
    return error;
  }
  record.version = document.version;
  running = std::move(started);
  return error;
}

void ResponseStore::forget(const std::string& digits) {
  std::vector<std::function<void()>> waiting;
  {
    const MutexLock lock(mutex_);
    const auto found = running_.find(digits);
    if (found == running_.end()) return;
    waiting = std::move(found->second.waiting);
    running_.erase(found);
  }
  for (auto& then : waiting) threads_.run(std::move(then));
}

void ResponseStore::end(ResponseRecord record, bool is_refused_when_full,
                        std::function<void(SessionError)> then) {
  threads_.run([this, record = std::move(record), is_refused_when_full, then = std::move(then)] {
    SessionError error = SessionError::kStoreAway;
    catch_exceptions(
        [&] {
          Document document = document_of(record);
          error = documents_.put(document);
          const bool is_full =
              error == SessionError::kStoreFull || error == SessionError::kOwnerOutOfMemory;
          if (is_full && is_refused_when_full) documents_.remove(record.digits, record.owner);
        },
        [] {});
    forget(record.digits);
    then(error);
  });
}

void ResponseStore::abandon(const std::string& digits) noexcept {
  catch_exceptions([&] { forget(digits); }, [] {});
}

SessionError ResponseStore::find_stored(const std::string& digits, const std::string& owner,
                                        ResponseRecord& record, bool& is_hidden,
                                        JsonBudget* budget) {
  Document document;
  SessionError error = documents_.find(digits, owner, std::nullopt, document);
  if (error != SessionError::kNone) return error;
  is_hidden = document.is_hidden;
  CountedBudget counted(budget);
  error = charge_text(document, counted);
  return error == SessionError::kNone ? read_body(document, counted, record) : error;
}

bool ResponseStore::may_run_elsewhere(const ResponseRecord& record) {
  if (record.process == process_ || !documents_.is_shared()) return false;
  const auto seen = documents_.last_seen(record.process);
  return seen && clock_.wall_time() - *seen < kSilence;
}

SessionError ResponseStore::find(const std::string& digits, const std::string& owner,
                                 ResponseRecord& record, JsonBudget* budget) {
  bool is_hidden = false;
  // Checked before and after the read: it may end, or begin again, meanwhile.
  auto runs = running(digits, owner);
  const SessionError error = find_stored(digits, owner, record, is_hidden, budget);
  if (error != SessionError::kNone) return error;
  if (is_hidden) return SessionError::kNotFound;
  if (record.status() != "in_progress") return error;
  if (runs == nullptr) runs = running(digits, owner);
  if (runs != nullptr) {
    if (runs->is_cancelled()) record.response["status"] = "cancelled";
    return error;
  }
  if (!record.request.empty()) return error;  // it will be run again
  const auto seen = documents_.last_seen(record.process);
  const bool is_of_here = record.process == process_;  // its end could not be stored
  if (is_of_here || !seen || clock_.wall_time() - *seen >= options_.resume) {
    record.response["status"] = "failed";
    record.response["error"] = {{"code", "interrupted"},
                                {"message", "the server ended before the response did"}};
    record.is_interrupted = true;
  }
  return error;
}

SessionError ResponseStore::read_chain(const std::string& digits, const std::string& owner,
                                       const ChainBounds& bounds, Json& items,
                                       std::size_t& json_bytes) {
  const auto keep_until = clock_.wall_time() + options_.expire;
  std::vector<Json> lists;  // the last one first
  std::size_t memory = 0;
  json_bytes = 0;
  std::size_t length = 0;
  for (std::string at = digits; !at.empty(); ++length) {
    if (length == kMostChain) return SessionError::kOutOfRange;
    if (bounds.is_cancelled && bounds.is_cancelled()) return SessionError::kUnloaded;
    Document document;
    SessionError error = documents_.find(at, owner, keep_until, document);
    if (error != SessionError::kNone) {
      return length == 0 || error != SessionError::kNotFound ? error : SessionError::kDamaged;
    }
    if (length == 0 && document.is_hidden) return SessionError::kNotFound;
    if (items_line(document) > bounds.json_bytes - json_bytes) return SessionError::kTooLarge;
    StoredItems read;
    CountedBudget counted(bounds.budget);
    error = charge_text(document, counted);
    if (error == SessionError::kNone) error = read_stored_items(document, counted, read);
    if (error != SessionError::kNone) return error;
    const bool has_ended = read.status != "in_progress" && read.status != "failed";
    if (length == 0 && !has_ended) return SessionError::kBusy;
    if (read.json_bytes > bounds.json_bytes - json_bytes) return SessionError::kTooLarge;
    json_bytes += read.json_bytes;
    std::size_t kept = 0;
    for (Json* const list : {&read.output, &read.input}) {
      join_reasoning(*list);
      const std::size_t bytes = tree_memory(*list);
      memory += bytes;
      kept += bytes;
      lists.push_back(std::move(*list));
    }
    if (memory > bounds.memory_bytes) return SessionError::kTooLarge;
    counted.shrink_to(kept);
    at = std::move(document.parent);
  }
  items = Json::array();
  for (auto list = lists.rbegin(); list != lists.rend(); ++list) {
    for (Json& item : *list) items.push_back(std::move(item));
    *list = nullptr;
  }
  return SessionError::kNone;
}

SessionError ResponseStore::find_items(const std::string& digits, const std::string& owner,
                                       Json& items, JsonBudget* budget) {
  Document document;
  SessionError error = documents_.find(digits, owner, std::nullopt, document);
  if (error != SessionError::kNone) return error;
  if (document.is_hidden) return SessionError::kNotFound;
  StoredItems read;
  CountedBudget counted(budget);
  error = charge_text(document, counted);
  if (error == SessionError::kNone) error = read_stored_items(document, counted, read);
  if (error != SessionError::kNone) return error;
  items = std::move(read.input);
  for (Json& item : read.output) items.push_back(std::move(item));
  return error;
}

SessionError ResponseStore::remove(const std::string& digits, const std::string& owner) {
  const SessionError error = documents_.remove(digits, owner);
  if (error == SessionError::kNone) {
    if (const auto response = running(digits, owner)) response->cancel();
  }
  return error;
}

std::shared_ptr<RunningResponse> ResponseStore::running(const std::string& digits,
                                                        const std::string& owner) {
  const MutexLock lock(mutex_);
  const auto found = running_.find(digits);
  if (found == running_.end() || found->second.owner != owner) return nullptr;
  return found->second.response;
}

void ResponseStore::when_over(const std::string& digits, const std::string& owner,
                              std::function<void()> then) {
  {
    const MutexLock lock(mutex_);
    const auto found = running_.find(digits);
    if (found != running_.end() && found->second.owner == owner) {
      found->second.waiting.push_back(std::move(then));
      return;
    }
  }
  threads_.run(std::move(then));
}

void ResponseStore::look() {
  documents_.note_alive(process_);
  documents_.sweep(kSweptAtOnce);
  if (clock_.now() < next_interrupted_ || runs_interrupted_.exchange(true)) return;
  next_interrupted_ = clock_.now() + kInterruptedInterval;
  threads_.run([this] {
    catch_exceptions([&] { run_interrupted(); }, [] {});
    runs_interrupted_ = false;
  });
}

void ResponseStore::run_interrupted_by(std::function<void(ResponseRecord)> run) {
  const MutexLock lock(run_mutex_);
  run_ = std::move(run);
}

void ResponseStore::note_refused(const std::string& digits) {
  const MutexLock lock(mutex_);
  refused_[digits] = clock_.now() + kRefusedInterval;
}

void ResponseStore::run_interrupted() {
  const MutexLock run_lock(run_mutex_);
  if (run_ == nullptr) return;
  std::map<std::string, bool> gone;  // by process
  const auto is_gone = [&](const std::string& process) {
    if (process == process_ || !documents_.is_shared()) return true;
    const auto [at, is_new] = gone.try_emplace(process, false);
    if (is_new) {
      const auto seen = documents_.last_seen(process);
      at->second = !seen || clock_.wall_time() - *seen >= std::max(options_.resume, kSilence);
    }
    return at->second;
  };
  for (const auto& [digits, owner, runner] : documents_.unfinished(kInterruptedAtOnce)) {
    {
      const MutexLock lock(mutex_);
      std::erase_if(refused_, [&](const auto& each) { return each.second <= clock_.now(); });
      if (running_.contains(digits) || refused_.contains(digits)) continue;
    }
    if (!is_gone(runner)) continue;
    ResponseRecord record;
    bool is_hidden = false;
    const SessionError error = find_stored(digits, owner, record, is_hidden);
    const bool is_over = error == SessionError::kNone &&
                         (is_hidden || record.status() != "in_progress" || record.request.empty());
    if (is_over || error == SessionError::kNotFound) documents_.settle(digits);
    if (is_over || error != SessionError::kNone || !is_gone(record.process)) continue;
    run_(std::move(record));
  }
}

}  // namespace lintel
