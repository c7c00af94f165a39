// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/persistence/call_records.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "server/engine/request.h"
#include "server/sessions/storage/storage_records.h"

namespace lintel {
namespace {

constexpr std::uint8_t kVersion = 1;  // of each record
// The version of last calls of which one ended inside a token: older servers, which would repeat
// all of it, refuse this version.
constexpr std::uint8_t kVersionWithCuts = 2;

std::string text_of(RecordWriter& to) {
  const std::vector<std::byte> bytes = to.take();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

RecordReader reader_of(const std::string& bytes) {
  return RecordReader(std::as_bytes(std::span(bytes)));
}

// Writes marks as distances, with the source in the two lowest bits of each.
void put_marks(RecordWriter& to, const std::vector<HistoryMark>& marks) {
  to.varint(marks.size());
  std::int64_t last = 0;
  for (const HistoryMark& mark : marks) {
    to.varint(static_cast<std::uint64_t>(mark.position - std::exchange(last, mark.position)) << 2 |
              static_cast<std::uint64_t>(mark.source));
  }
}

std::vector<HistoryMark> get_marks(RecordReader& from) {
  std::vector<HistoryMark> marks;
  std::int64_t last = 0;
  for (std::uint64_t left = from.varint(); from.ok() && left > 0; --left) {
    const std::uint64_t coded = from.varint();
    last += static_cast<std::int64_t>(coded >> 2);
    marks.push_back({last, static_cast<TokenSource>(coded & 3)});
  }
  return marks;
}

void put_result(RecordWriter& to, const SampleResult& result) {
  to.number(static_cast<std::uint8_t>(result.reason));
  to.number(result.prompt_tokens + result.skipped_tokens);
  to.number(result.cached_tokens);
  to.number(result.reused_tokens);
  to.number(result.generated_tokens);
  to.number(result.given_tokens);
  to.number(result.drafted_tokens);
  to.number(result.accepted_tokens);
  to.number(result.seed);
  to.text(result.stop_string);
  to.number(result.position);
}

SampleResult get_result(RecordReader& from) {
  SampleResult result;
  result.reason = static_cast<FinishReason>(from.number<std::uint8_t>());
  result.prompt_tokens = from.number<std::int64_t>();
  result.cached_tokens = from.number<std::int64_t>();
  result.reused_tokens = from.number<std::int64_t>();
  result.generated_tokens = from.number<std::int64_t>();
  result.given_tokens = from.number<std::int64_t>();
  result.drafted_tokens = from.number<std::int64_t>();
  result.accepted_tokens = from.number<std::int64_t>();
  result.seed = from.number<std::uint64_t>();
  result.stop_string = from.text();
  result.position = from.number<std::int64_t>();
  return result;
}

}  // namespace

std::string encode_marks(const StoredMarks& marks) {
  RecordWriter to;
  to.number(kVersion);
  to.varint(static_cast<std::uint64_t>(marks.options.history_tokens));
  to.varint(static_cast<std::uint64_t>(marks.options.window));
  to.varint(marks.options.checkpoint_every);
  to.varint(marks.options.checkpoint_keep);
  to.varint(static_cast<std::uint64_t>(marks.options.expire_after.count()));
  to.text(marks.adapter);
  to.text(marks.adapter_fingerprint);
  to.raw(marks.base_digest.bytes);
  put_marks(to, marks.marks);
  to.text(marks.numerics);
  to.varint(static_cast<std::uint64_t>(marks.numerics_changed_at));
  if (!marks.bases.empty()) {
    to.varint(marks.bases.size());
    for (const HistoryBase& base : marks.bases) {
      to.number(base.position);
      to.raw(base.digest.bytes);
    }
  }
  return text_of(to);
}

std::string stored_model_print(const Transformer& model) {
  const KvType type = model.kv_type().value_or(KvType::kF32);
  return model.fingerprint() + (type == KvType::kF32 ? "" : std::string(" kv ") + to_string(type));
}

bool continues_on(const SessionStorage::Fingerprint& model_print, const Transformer& model) {
  return model_print.substr(0, model_print.find(' ')) == model.fingerprint();
}

bool other_numerics(const SessionStorage::Row& row, const StoredMarks& marks,
                    const std::string& numerics) {
  return row.position > 0 && (marks.numerics.empty() ? row.numerics : marks.numerics) != numerics;
}

std::optional<StoredMarks> decode_marks(const std::string& bytes) {
  RecordReader from = reader_of(bytes);
  StoredMarks marks;
  if (from.number<std::uint8_t>() != kVersion) return std::nullopt;
  marks.options.history_tokens = static_cast<std::int64_t>(from.varint());
  marks.options.window = static_cast<std::int64_t>(from.varint());
  marks.options.checkpoint_every = static_cast<std::uint32_t>(from.varint());
  marks.options.checkpoint_keep = static_cast<std::uint32_t>(from.varint());
  marks.options.expire_after = std::chrono::seconds(from.varint());
  marks.adapter = from.text();
  marks.adapter_fingerprint = from.text();
  marks.base_digest = from.digest();
  marks.marks = get_marks(from);
  if (!from.all_read()) {  // else the store is older than this field
    marks.numerics = from.text();
    marks.numerics_changed_at = static_cast<std::int64_t>(from.varint());
  }
  if (!from.all_read()) {
    for (std::uint64_t left = from.varint(); from.ok() && left > 0; --left) {
      HistoryBase base;
      base.position = from.number<std::int64_t>();
      base.digest = from.digest();
      marks.bases.push_back(base);
    }
  }
  if (!from.all_read()) return std::nullopt;
  return marks;
}

void note_numerics(const StoredCall& call, const SessionStorage::Row& row, StoredMarks& marks) {
  if (call.start > 0 && other_numerics(row, marks, call.numerics)) {
    marks.numerics_changed_at = call.start;
  }
  marks.numerics = call.numerics == row.numerics ? "" : call.numerics;
}

std::string encode_call(const StoredCall& call) {
  RecordWriter to;
  to.number(kVersion);
  to.text(call.id);
  to.raw(call.request.bytes);
  to.number(call.start);
  to.number(call.seed);
  to.text(call.numerics);
  put_marks(to, call.marks);
  return text_of(to);
}

std::optional<StoredCall> decode_call(const std::string& bytes) {
  RecordReader from = reader_of(bytes);
  StoredCall call;
  if (from.number<std::uint8_t>() != kVersion) return std::nullopt;
  call.id = from.text();
  call.request = from.digest();
  call.start = from.number<std::int64_t>();
  call.seed = from.number<std::uint64_t>();
  call.numerics = from.text();
  call.marks = get_marks(from);
  if (!from.all_read()) return std::nullopt;
  return call;
}

std::string encode_last_calls(const std::vector<LastCall>& calls) {
  RecordWriter to;
  const bool has_cuts =
      std::ranges::any_of(calls, [](const LastCall& call) { return call.result.cut_bytes != 0; });
  to.number(has_cuts ? kVersionWithCuts : kVersion);
  to.varint(calls.size());
  for (const LastCall& call : calls) {
    to.text(call.id);
    to.raw(call.request.bytes);
    to.number(call.start);
    to.number(call.end);
    to.number(call.shown_end);
    to.number(static_cast<std::uint8_t>(call.finished));
    put_result(to, call.result);
    if (has_cuts) to.number(call.result.cut_bytes);
  }
  return text_of(to);
}

std::optional<std::vector<LastCall>> decode_last_calls(const std::string& bytes) {
  std::vector<LastCall> calls;
  if (bytes.empty()) return calls;
  RecordReader from = reader_of(bytes);
  const auto version = from.number<std::uint8_t>();
  if (version != kVersion && version != kVersionWithCuts) return std::nullopt;
  for (std::uint64_t left = from.varint(); from.ok() && left > 0; --left) {
    LastCall call;
    call.id = from.text();
    call.request = from.digest();
    call.start = from.number<std::int64_t>();
    call.end = from.number<std::int64_t>();
    call.shown_end = from.number<std::int64_t>();
    call.finished = from.number<std::uint8_t>() != 0;
    call.result = get_result(from);
    if (version == kVersionWithCuts) call.result.cut_bytes = from.number<std::int32_t>();
    calls.push_back(std::move(call));
  }
  if (!from.all_read()) return std::nullopt;
  return calls;
}

std::int64_t first_new_of(const LastCall& call) {
  const SampleResult& result = call.result;
  return call.start + result.cached_tokens + result.skipped_tokens + result.prompt_tokens;
}

std::int64_t skipped_prompt(std::int64_t window, bool scores, std::int64_t begin,
                            std::int64_t end) {
  return scores ? 0 : window_skips(window, begin, end);
}

std::int64_t release_tokens(const std::vector<LastCall>& calls, std::int64_t base,
                            StoredMarks& marks) {
  std::int64_t wanted = std::numeric_limits<std::int64_t>::max();
  for (const LastCall& call : calls) wanted = std::min(wanted, call.start);
  const auto kept = std::ranges::upper_bound(marks.bases, wanted, {}, &HistoryBase::position);
  if (kept == marks.bases.begin()) return base;
  base = (kept - 1)->position;
  marks.base_digest = (kept - 1)->digest;
  marks.bases.erase(marks.bases.begin(), kept);
  return base;
}

std::vector<HistoryMark> marks_from(std::int64_t base, std::vector<HistoryMark> marks) {
  const auto behind = std::ranges::upper_bound(marks, base, {}, &HistoryMark::position);
  if (behind == marks.begin()) return marks;
  marks.erase(marks.begin(), behind - 1);
  marks.front().position = base;
  return marks;
}

void append_marks(const StoredCall& call, std::int64_t base, std::int64_t position,
                  std::vector<HistoryMark>& marks) {
  if (call.start >= position) return;  // a match that begins here is marked already
  bool first = true;
  for (const HistoryMark& mark : call.marks) {
    if (mark.position >= position) return;
    const bool is_start = std::exchange(first, false);
    if (is_start && !marks.empty() && marks.back().position == call.start) {
      // A match of stop strings begins with the first token, if it is sampled.
      if (mark.source == TokenSource::kSampled) continue;
      marks.pop_back();
    }
    // A second mark of the same source would mean a new match.
    const bool goes_on =
        is_start && call.start > base && !marks.empty() && marks.back().source == mark.source;
    if (!goes_on) marks.push_back(mark);
  }
}

std::vector<HistoryMark> marks_of(const std::vector<HistoryMark>& stored, std::int64_t base,
                                  const SessionHistory& history, std::int64_t position) {
  const std::int64_t from = std::max(base, history.base());
  std::vector<HistoryMark> marks;
  bool stands_there = false;  // a mark at the beginning of the history's marks
  for (const HistoryMark& mark : stored) {
    if (mark.position < from) marks.push_back(mark);
    stands_there |= mark.position == from;
  }
  for (const HistoryMark& mark : history.marks(from, position)) {
    const bool goes_on = mark.position == from && from > base && !stands_there && !marks.empty() &&
                         marks.back().source == mark.source;
    if (!goes_on) marks.push_back(mark);
  }
  return marks;
}

}  // namespace lintel
