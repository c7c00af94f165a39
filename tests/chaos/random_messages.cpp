// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/random_messages.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lintel::testing {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string RandomMessages::text(bool utf8) {
  switch (below(8)) {
    case 0:
      return "";
    case 1:
      return std::string(below(3000), 'x');
    case 2: {
      std::string bytes(below(40), '\0');
      for (char& byte : bytes) byte = static_cast<char>(below(utf8 ? 128 : 256));
      return bytes;
    }
    case 3:
      return "\xf0\x9f\xa6\x86\xe2\x80\xae%s%n\n\r\"\\";
    default:
      return words_.empty() ? "word" : one_of(words_);
  }
}

std::int64_t RandomMessages::whole_number() {
  constexpr std::int64_t k32 = std::int64_t{1} << 31;
  static const std::vector<std::int64_t> odd = {0,
                                                -1,
                                                1,
                                                2,
                                                k32 - 1,
                                                -k32,
                                                k32,
                                                2 * k32 - 1,
                                                std::int64_t{1} << 62,
                                                49,
                                                50,
                                                255,
                                                256,
                                                1000000,
                                                16777217,
                                                std::numeric_limits<std::int64_t>::max(),
                                                std::numeric_limits<std::int64_t>::min()};
  if (once_in(2)) return static_cast<std::int64_t>(below(40));
  return once_in(4) ? static_cast<std::int64_t>(random_()) : one_of(odd);
}

double RandomMessages::number() {
  static const std::vector<double> odd = {0.0,
                                          -0.0,
                                          -1.0,
                                          1.0,
                                          0.5,
                                          1e-300,
                                          1e300,
                                          std::numeric_limits<double>::infinity(),
                                          -std::numeric_limits<double>::infinity(),
                                          std::numeric_limits<double>::quiet_NaN(),
                                          std::numeric_limits<double>::denorm_min()};
  return once_in(2) ? static_cast<double>(below(2000)) / 1000 : one_of(odd);
}

void RandomMessages::set(Message& message, const FieldDescriptor* field, int depth) {
  const Reflection& reflect = *message.GetReflection();
  const bool add = field->is_repeated();
  const auto put = [&](auto add_one, auto set_one, auto value) {
    add ? (reflect.*add_one)(&message, field, value) : (reflect.*set_one)(&message, field, value);
  };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      put(&Reflection::AddInt32, &Reflection::SetInt32, static_cast<std::int32_t>(whole_number()));
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      put(&Reflection::AddInt64, &Reflection::SetInt64, whole_number());
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      put(&Reflection::AddUInt32, &Reflection::SetUInt32,
          static_cast<std::uint32_t>(whole_number()));
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      put(&Reflection::AddUInt64, &Reflection::SetUInt64,
          static_cast<std::uint64_t>(whole_number()));
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      put(&Reflection::AddDouble, &Reflection::SetDouble, number());
      break;
    case FieldDescriptor::CPPTYPE_FLOAT:
      put(&Reflection::AddFloat, &Reflection::SetFloat, static_cast<float>(number()));
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      put(&Reflection::AddBool, &Reflection::SetBool, once_in(2));
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      put(&Reflection::AddEnumValue, &Reflection::SetEnumValue, static_cast<int>(whole_number()));
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      put(&Reflection::AddString, &Reflection::SetString,
          text(field->type() == FieldDescriptor::TYPE_STRING));
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      fill(add ? *reflect.AddMessage(&message, field) : *reflect.MutableMessage(&message, field),
           depth + 1);
      break;
  }
}

void RandomMessages::fill(Message& message, int depth) {
  constexpr int kDeepest = 6;
  const auto& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    if (depth >= kDeepest && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!once_in(2)) continue;
    std::uint64_t times = 1;
    if (field->is_repeated()) times = once_in(50) ? below(500) : below(4);
    if (depth > 2) times = std::min<std::uint64_t>(times, 4);
    for (; times > 0; --times) set(message, field, depth);
  }
}

void RandomMessages::change(Message& message) {
  const auto& type = *message.GetDescriptor();
  if (type.field_count() == 0) return;
  for (std::uint64_t changes = 1 + below(3); changes > 0; --changes) {
    const FieldDescriptor* const field = type.field(static_cast<int>(below(type.field_count())));
    const Reflection& reflect = *message.GetReflection();
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (is_message && field->is_repeated() && reflect.FieldSize(message, field) > 0) {
      const int size = reflect.FieldSize(message, field);
      change(*reflect.MutableRepeatedMessage(&message, field, static_cast<int>(below(size))));
    } else if (is_message && !field->is_repeated() && reflect.HasField(message, field)) {
      change(*reflect.MutableMessage(&message, field));
    } else if (once_in(4)) {
      reflect.ClearField(&message, field);
    } else {
      set(message, field, /*depth=*/1);
    }
  }
}

std::string RandomMessages::damage(std::string bytes) {
  for (std::uint64_t times = 1 + below(4); times > 0; --times) {
    const std::size_t at = below(bytes.size() + 1);
    switch (below(7)) {
      case 0:
        bytes.resize(at);
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:  // the type of what may be a field
        if (at < bytes.size()) bytes[at] = static_cast<char>((bytes[at] & ~7) | below(8));
        break;
      case 3:  // a length or number of ten bytes
        bytes.insert(at, std::string(9, '\xff') + '\x01');
        break;
      case 4: {
        std::string random(below(20), '\0');
        for (char& byte : random) byte = static_cast<char>(random_());
        bytes.insert(at, random);
        break;
      }
      case 5:
        bytes.insert(at, bytes.substr(below(bytes.size() + 1), below(64)));
        break;
      case 6:  // deep nesting: groups, or messages within messages
        bytes.insert(at, std::string(below(300), once_in(2) ? '\x0b' : '\x0a'));
        break;
    }
  }
  return bytes;
}

}  // namespace lintel::testing
