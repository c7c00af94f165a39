// SPDX-License-Identifier: Apache-2.0
// Small valid files of tokenizers.
#include <string>
#include <vector>

#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/split.h"
#include "model/tokenizer/unicode.h"
#include "tests/fuzz/mutations.h"

namespace lintel::fuzz {
namespace {

std::string letter(unsigned byte) {
  std::string text;
  append_utf8(text, letter_of_byte(static_cast<unsigned char>(byte)));
  return text;
}

// A string of JSON; of the characters here two need an escape.
std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += c;
  }
  return json + '"';
}

// "a":0,"b":1
std::string numbered(const std::vector<std::string>& tokens) {
  std::string json;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    json += (id == 0 ? "" : ",") + quoted(tokens[id]) + ":" + std::to_string(id);
  }
  return json;
}

std::string added_token(std::size_t id, const std::string& text, const char* flags) {
  return "{\"id\":" + std::to_string(id) + ",\"content\":\"" + text +
         "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false," + flags + "}";
}

std::string byte_level_seed() {
  std::vector<std::string> tokens;
  for (unsigned byte = 0; byte < 256; ++byte) tokens.push_back(letter(byte));
  tokens.insert(tokens.end(), {"th", "the", "\xC4\xA0the", "in"});
  return R"({"version":"1.0","added_tokens":[)" +
         added_token(260, "<|end|>", R"("normalized":false,"special":true)") + "," +
         added_token(261, "<think>", R"("normalized":true,"special":false)") +
         R"(],"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[)"
         R"({"type":"Split","pattern":{"Regex":)" +
         quoted(std::string(regex_of(SplitPattern::kQwen2))) +
         R"(},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,)"
         R"("trim_offsets":false,"use_regex":false}]},"post_processor":null,)"
         R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)" +
         numbered(tokens) + R"(},"merges":["t h",["th","e"],[)" + quoted("\xC4\xA0") +
         R"(,"the"],"i n"]}})";
}

std::string byte_fallback_seed() {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  for (unsigned byte = 0; byte < 256; ++byte) {
    tokens.push_back(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">");
  }
  tokens.insert(tokens.end(), {"\xE2\x96\x81", "a", "t", "\xE2\x96\x81t", "\xE2\x96\x81ta"});
  return R"({"added_tokens":[)" + added_token(0, "<unk>", R"("normalized":false,"special":true)") +
         "," + added_token(1, "<s>", R"("normalized":false,"special":true)") +
         R"(],"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":")"
         "\xE2\x96\x81"
         R"("},{"type":"Replace","pattern":{"String":" "},"content":")"
         "\xE2\x96\x81"
         R"("}]},"pre_tokenizer":null,"post_processor":{"type":"TemplateProcessing","single":[)"
         R"({"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],)"
         R"("special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]}}},)"
         R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":")"
         "\xE2\x96\x81"
         R"("},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},)"
         R"({"type":"Strip","content":" ","start":1,"stop":0}]},)"
         R"("model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,)"
         R"("vocab":{)" +
         numbered(tokens) + "},\"merges\":[\"\xE2\x96\x81 t\",\"\xE2\x96\x81t a\"]}}";
}

}  // namespace

std::vector<std::string> tokenizer_json_seeds() {
  return {byte_level_seed(), byte_fallback_seed()};
}

std::vector<std::string> world_vocabulary_seeds() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string lines;
  for (unsigned byte = 0; byte < 256; ++byte) {
    lines +=
        std::to_string(byte + 1) + " b'\\x" + kDigits[byte / 16] + kDigits[byte % 16] + "' 1\n";
  }
  return {lines + "257 'the' 3\n258 \"it's\" 4\n259 '\\u4f60\\n' 4\n260 b'\\xe4\\xbd' 2\n"};
}

}  // namespace lintel::fuzz
