// SPDX-License-Identifier: Apache-2.0
#include "client/cli/flags.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "client/cli/console.h"
#include "client/lib/channel.h"
#include "proto/fields/request_fields.h"

namespace lintel::cli {

void refuse_flag(std::string_view flag, std::string_view text, const std::string& why) {
  throw UsageError(std::string(flag) + " '" + std::string(text) + "': " + why);
}

std::string trimmed(const std::string& text) {
  constexpr const char* kBlanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

namespace {

template <typename Number>
Number parse_number(std::string_view flag, std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) refuse_flag(flag, text, "out of range");
  if (error != std::errc() || end != text.data() + text.size()) {
    refuse_flag(flag, text,
                std::is_floating_point_v<Number> ? "expected a number"
                : std::is_unsigned_v<Number>     ? "expected a whole number, 0 or more"
                                                 : "expected a whole number");
  }
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(number)) refuse_flag(flag, text, "expected a finite number");
  }
  return number;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::pair<std::string_view, std::string_view> split_pair(std::string_view flag,
                                                         std::string_view text,
                                                         const std::string& form) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) refuse_flag(flag, text, "expected " + form);
  return {text.substr(0, equals), text.substr(equals + 1)};
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::int32_t parse_int32(std::string_view flag, std::string_view text) {
  return parse_number<std::int32_t>(flag, text);
}
std::int64_t parse_int64(std::string_view flag, std::string_view text) {
  return parse_number<std::int64_t>(flag, text);
}
std::uint32_t parse_uint32(std::string_view flag, std::string_view text) {
  return parse_number<std::uint32_t>(flag, text);
}
std::uint64_t parse_uint64(std::string_view flag, std::string_view text) {
  return parse_number<std::uint64_t>(flag, text);
}
float parse_float(std::string_view flag, std::string_view text) {
  return parse_number<float>(flag, text);
}
double parse_double(std::string_view flag, std::string_view text) {
  return parse_number<double>(flag, text);
}

std::vector<std::int32_t> parse_ids(std::string_view flag, std::string_view text) {
  std::vector<std::int32_t> ids;
  if (text.empty()) return ids;
  for (const std::string_view part : split(text, ',')) ids.push_back(parse_int32(flag, part));
  return ids;
}

std::vector<std::int64_t> parse_indices(std::string_view flag, std::string_view text,
                                        std::int64_t count) {
  std::vector<std::int64_t> indices;
  for (const std::string_view part : split(text, ',')) {
    const std::size_t dash = part.find('-');
    const auto first = parse_number<std::uint32_t>(flag, part.substr(0, dash));
    const auto last = dash == std::string_view::npos
                          ? first
                          : parse_number<std::uint32_t>(flag, part.substr(dash + 1));
    if (last < first) refuse_flag(flag, text, "the range " + std::string(part) + " runs backwards");
    if (last >= count) {
      refuse_flag(flag, text,
                  std::to_string(last) + " is past the last image, " + std::to_string(count - 1));
    }
    for (std::int64_t i = first; i <= last; ++i) indices.push_back(i);
  }
  return indices;
}

std::pair<std::int32_t, float> parse_bias(std::string_view flag, std::string_view text) {
  const auto [id, value] = split_pair(flag, text, "ID=VALUE");
  return {parse_int32(flag, id), parse_float(flag, value)};
}

GivenTokens parse_given(std::string_view flag, std::string_view text) {
  const auto [position, ids] = split_pair(flag, text, "POSITION=ID,ID,...");
  return {parse_int64(flag, position), parse_ids(flag, ids)};
}

std::chrono::seconds parse_duration(std::string_view flag, std::string_view text) {
  static constexpr std::pair<char, std::int64_t> kUnits[] = {
      {'s', 1}, {'m', 60}, {'h', 3600}, {'d', 24 * 3600}};
  constexpr std::int64_t kLongest = std::int64_t{100} * 365 * 24 * 3600;
  for (const auto& [unit, seconds] : kUnits) {
    if (text.empty() || text.back() != unit) continue;
    const std::string_view digits = text.substr(0, text.size() - 1);
    std::int64_t count = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    if (error != std::errc() || end != digits.data() + digits.size()) break;
    if (count < 1 || count > kLongest / seconds) break;
    return std::chrono::seconds(count * seconds);
  }
  refuse_flag(flag, text, "expected a time like 90s, 30m, 72h or 30d");
}

std::string unescape(std::string_view flag, std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      bytes += text[i];
      continue;
    }
    const char kind = i + 1 < text.size() ? text[i + 1] : '\0';
    const char* const known = "nrt0\\";
    const char* const meant = "\n\r\t\0\\";
    std::size_t k = 0;
    while (k < 5 && known[k] != kind) ++k;
    if (k < 5 && i + 1 < text.size()) {
      bytes += meant[k];
      i += 1;
    } else if (kind == 'x' && i + 3 < text.size() && hex_digit(text[i + 2]) >= 0 &&
               hex_digit(text[i + 3]) >= 0) {
      bytes += static_cast<char>(hex_digit(text[i + 2]) * 16 + hex_digit(text[i + 3]));
      i += 3;
    } else {
      refuse_flag(flag, text, "expected \\n, \\r, \\t, \\0, \\\\ or \\xHH after the backslash");
    }
  }
  return bytes;
}

void on_chosen(CLI::App& command, CommandLine& command_line, std::function<int()> run) {
  // Not callback(): CLI11 reads the environment for every sub-command that has one of those, after
  // the flags of the chosen one.
  command.parse_complete_callback(
      [&command_line, run = std::move(run)] { command_line.run = run; });
}

CLI::Option* add_text(CLI::App& app, const std::string& flag, std::string& target,
                      const std::string& type_name, const std::string& help) {
  return app.add_option(flag, target, help)
      ->type_name(type_name)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

CLI::Option* add_repeated(CLI::App& app, const std::string& flag, std::vector<std::string>& target,
                          const std::string& type_name, const std::string& help) {
  return app.add_option(flag, target, help + " (may be repeated)")
      ->type_name(type_name)
      ->allow_extra_args(false);  // one value after each flag
}

namespace {

double parse_deadline(std::string_view flag, std::string_view text) {
  const double seconds = parse_double(flag, text);
  if (seconds >= 0.001 && seconds <= 1e8) return seconds;
  refuse_flag(flag, text, "expected seconds from 0.001 to 1e8");
}

// The error of an address, with the flag it was given to.
template <typename Parse>
auto parse_address(const char* flag, const std::string& text, Parse parse) {
  try {
    return parse(text);
  } catch (const std::invalid_argument& error) {
    throw UsageError(std::string(flag) + " " + error.what());
  }
}

const char* flag_of(TlsFileError::File file) {
  switch (file) {
    case TlsFileError::File::kCa:
      return "--tls-ca";
    case TlsFileError::File::kCertificate:
      return "--tls-cert";
    case TlsFileError::File::kKey:
      return "--tls-key";
  }
  return "";
}

}  // namespace

std::string read_token(const std::string& given) {
  if (given.empty() || given.front() != '@') return given;
  std::ifstream in(given.substr(1));
  std::string token;
  std::getline(in, token);
  token.erase(token.find_last_not_of(" \r") + 1);  // of files from elsewhere
  if (!in || token.empty()) {
    throw Failure("--token: cannot read a token from " + given.substr(1));
  }
  return token;
}

void add_adapter_flag(CLI::App& app, std::string& adapter) {
  add_text(app, "--adapter", adapter, "NAME",
           "LoRA adapter of the model to use; `lintel model get` lists them [none]");
}

void add_security_flags(CLI::App& app, Tls& tls, std::string& token) {
  const std::string group = "Connection";
  add_text(app, "--tls-ca", tls.ca, "FILE",
           "Encrypt, and trust servers whose certificate these PEM authorities signed")
      ->envname("LINTEL_TLS_CA")
      ->group(group);
  add_text(app, "--tls-cert", tls.certificate, "FILE",
           "Our PEM certificate, for servers that ask for one; with --tls-key")
      ->envname("LINTEL_TLS_CERT")
      ->group(group);
  add_text(app, "--tls-key", tls.key, "FILE", "Its PEM private key")
      ->envname("LINTEL_TLS_KEY")
      ->group(group);
  // Other users of the machine see a command line but not an environment.
  add_text(app, "--token", token, "TOKEN", "Bearer token, or @FILE that holds it")
      ->envname("LINTEL_TOKEN")
      ->group(group);
}

void ConnectionFlags::add_to(CLI::App& app, bool with_model) {
  const std::string group = "Connection";
  add_text(app, "--address", address, "ADDRESS",
           "Server to call: HOST:PORT, HOST alone for port 50051, or unix:PATH; or several with "
           "commas between them, each of which will do")
      ->envname("LINTEL_ADDRESS")
      ->capture_default_str()
      ->group(group);
  if (with_model) {
    add_text(app, "--model", model, "NAME",
             "Model to use; needless where one is loaded, or one of the kind that is needed, and "
             "for a chat where one has a chat template")
        ->envname("LINTEL_MODEL")
        ->group(group);
  }
  std::ostringstream seconds;
  seconds << deadline_seconds;
  add_parsed(app, "--deadline", deadline_seconds, parse_deadline, "SECONDS",
             "Longest time a call may take")
      ->envname("LINTEL_DEADLINE")
      ->default_str(seconds.str())
      ->group(group);
  add_security_flags(app, tls, token);
  add_text(app, "--proxy", proxy, "HOST:PORT",
           "HTTP proxy to go through to another machine; http_proxy in the environment is not "
           "heeded")
      ->envname("LINTEL_PROXY")
      ->group(group);
}

std::chrono::milliseconds ConnectionFlags::deadline() const {
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(std::max(1.0, deadline_seconds * 1000)));
}

Client ConnectionFlags::connect() const {
  if (tls.certificate.empty() != tls.key.empty()) {
    throw UsageError("--tls-cert and --tls-key go together, and one of them is missing");
  }
  Client::Options options;
  options.address.clear();
  for (const std::string& one : parse_address("--address", address, full_addresses)) {
    options.address += (options.address.empty() ? "" : ",") + one;
  }
  if (!proxy.empty()) options.proxy = parse_address("--proxy", proxy, proxy_address);
  options.deadline = deadline();
  options.tls = tls;
  options.token = read_token(token);
  try {
    return Client(options);
  } catch (const TlsFileError& error) {
    throw Failure(std::string(flag_of(error.which())) + ": " + error.what());
  } catch (const std::invalid_argument& error) {
    throw UsageError(std::string("--token: ") + error.what() + "; see --tls-ca");
  }
}

namespace {

// The field of a row: the message that it is in, which becomes set, and itself.
std::pair<google::protobuf::Message*, const google::protobuf::FieldDescriptor*> field_of(
    const RequestField& row, v1::GenerateRequest& request) {
  google::protobuf::Message* in = &request;
  std::string name(row.name);
  if (const std::size_t dot = name.find('.'); dot != std::string::npos) {
    in = request.GetReflection()->MutableMessage(
        &request, request.GetDescriptor()->FindFieldByName(name.substr(0, dot)));
    name.erase(0, dot + 1);
  }
  return {in, in->GetDescriptor()->FindFieldByName(name)};
}

// The text of a flag, parsed by the type of its field and set there. `flag` is for errors.
void set_field(const RequestField& row, std::string_view flag, std::string_view text,
               v1::GenerateRequest& request) {
  const auto [to, field] = field_of(row, request);
  const google::protobuf::Reflection& reflection = *to->GetReflection();
  switch (row.type) {
    case FieldType::kFlag:
      return reflection.SetBool(to, field, true);
    case FieldType::kCount:
      return reflection.SetUInt32(to, field, parse_uint32(flag, text));
    case FieldType::kPosition:
      return reflection.SetInt64(to, field, parse_int64(flag, text));
    case FieldType::kSeed:
      return reflection.SetUInt64(to, field, parse_uint64(flag, text));
    case FieldType::kNumber: {
      const float value = parse_float(flag, text);
      if (row.range.is_given() && !row.range.contains(value)) {
        refuse_flag(flag, text, "expected a number " + row.range.text());
      }
      return reflection.SetFloat(to, field, value);
    }
    case FieldType::kText:
      return reflection.SetString(to, field, std::string(text));
    case FieldType::kBiases: {
      const auto [id, value] = parse_bias(flag, text);
      if (!request.mutable_sampling()->mutable_logit_bias()->insert({id, value}).second) {
        throw UsageError(std::string(flag) + ": token " + std::to_string(id) + " is named twice");
      }
      return;
    }
    default:
      throw std::logic_error("no flag reads a field as " + std::string(row.name));
  }
}

bool is_of_sampling(const RequestField& row) { return row.name.starts_with("sampling."); }

}  // namespace

void FieldFlags::add(CLI::App& app, std::size_t field, const std::string& group,
                     const std::string& unless_given) {
  const RequestField& row = kRequestFields[field];
  const std::string flag(row.cli.text);
  const std::string initial = unless_given.empty() ? std::string(row.default_value) : unless_given;
  const std::string help =
      std::string(row.help) + (row.default_value.empty() || row.type == FieldType::kFlag
                                   ? std::string()
                                   : " [" + initial + "]");
  CLI::Option* option = nullptr;
  if (row.type == FieldType::kFlag) {
    option = app.add_flag_callback(
        flag, [this, &row] { set_field(row, row.cli.text, "", given_); }, help);
  } else if (row.type == FieldType::kBiases) {
    option = app.add_option_function<std::vector<std::string>>(
                    flag,
                    [this, &row](const std::vector<std::string>& texts) {
                      for (const std::string& text : texts)
                        set_field(row, row.cli.text, text, given_);
                    },
                    std::string(row.help) + " (may be repeated)")
                 ->type_name(std::string(row.metavar))
                 ->allow_extra_args(false);  // one value after each flag
  } else {
    option = app.add_option_function<std::string>(
                    flag,
                    [this, &row](const std::string& text) {
                      set_field(row, row.cli.text, text, given_);
                    },
                    help)
                 ->type_name(std::string(row.metavar))
                 ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  if (!group.empty()) option->group(group);
}

void FieldFlags::add_sampling_to(CLI::App& app, const std::string& seed_help,
                                 const std::string& unless_given) {
  const std::string group = "Sampling";
  add_parsed(app, "--seed", seed, parse_uint64, "N", seed_help)->group(group);
  for (std::size_t i = 0; i < std::size(kRequestFields); ++i) {
    const RequestField& row = kRequestFields[i];
    if (row.cli.is_read_by_table() && is_of_sampling(row)) add(app, i, group, unless_given);
  }
}

void FieldFlags::add_others_to(CLI::App& app, bool for_session) {
  for (std::size_t i = 0; i < std::size(kRequestFields); ++i) {
    const RequestField& row = kRequestFields[i];
    if (!row.cli.is_read_by_table() || is_of_sampling(row)) continue;
    if (for_session && (row.name == "window" || row.name == "initial_state")) continue;
    add(app, i, "");
  }
}

void FieldFlags::fill(v1::GenerateRequest& request) const {
  request.MergeFrom(given_);
  if (seed) request.mutable_sampling()->set_seed(*seed);
}

bool FieldFlags::set_sampling(const std::string& command, std::string name,
                              const std::optional<std::string>& text) {
  std::ranges::replace(name, '_', '-');
  if (name == "seed") {
    seed = text ? std::optional(parse_uint64(command + " seed", *text)) : std::nullopt;
    return true;
  }
  for (const RequestField& row : kRequestFields) {
    if (!row.cli.is_read_by_table() || !is_of_sampling(row) || row.cli.text != "--" + name) {
      continue;
    }
    if (text) {
      set_field(row, command + " " + name, *text, given_);
    } else {
      const auto [in, field] = field_of(row, given_);
      in->GetReflection()->ClearField(in, field);
    }
    return true;
  }
  return false;
}

void retry_when_full(Cancellation& cancellation, std::chrono::milliseconds patience,
                     const std::function<void()>& call, const std::function<bool()>& untouched) {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  for (;;) {
    try {
      return call();
    } catch (const CallError& error) {
      if (error.code() != grpc::StatusCode::RESOURCE_EXHAUSTED || !error.retry_delay() ||
          !untouched()) {
        throw;
      }
      const auto delay = std::max(*error.retry_delay(), std::chrono::milliseconds(1));
      if (std::chrono::steady_clock::now() + delay > give_up) throw;
      if (cancellation.wait_for(delay)) {
        throw CallError(grpc::StatusCode::CANCELLED, "cancelled");
      }
    }
  }
}

}  // namespace lintel::cli
