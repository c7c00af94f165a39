// SPDX-License-Identifier: Apache-2.0
// What the golden outputs leave open, each in every cut.
#include "server/grammar/schema.h"
#include "server/grammar/tool_calls.h"
#include "tests/server/chat/reader/reader_cases.h"
#include "tests/server/grammar/grammar_support.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Calls = std::vector<JoinedOutput::Call>;

const ToolTypes& some_tools() {
  static const ToolTypes kTools(nlohmann::json::parse(R"([
    {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {
      "code": {"type": "string"}, "n": {"type": "integer"}, "list": {"type": "array"},
      "maybe": {"type": "string", "nullable": true}}}}},
    {"type": "function", "name": "flat", "parameters": {"properties": {
      "x": {"oneOf": [{"const": 1.5}, {"enum": [true]}]}, "o": {"anyOf": [{"type": "object"}]}}}},
    7, {"function": {"name": 1}}, {"function": {"name": "bare"}}])"));
  return kTools;
}

ReadOutput read_in_all_cuts(ToolDialect dialect, const std::string& text,
                            ReasoningMode reasoning = ReasoningMode::kNone,
                            OutputEnd end = OutputEnd::kStop, bool parallel = true) {
  const ReaderCase of{"", text, {reasoning, dialect, parallel}, end};
  const ReadOutput whole = read_pieces(of, {text}, &some_tools());
  for (const OutputPieces& pieces : cuts_of(text, 2)) {
    const ReadOutput read = read_pieces(of, pieces, &some_tools());
    CAPTURE(text, pieces.size());
    REQUIRE(read.joined == whole.joined);
    REQUIRE(read.stopped == whole.stopped);
  }
  return whole;
}

JoinedOutput hermes(const std::string& text) {
  return read_in_all_cuts(ToolDialect::kHermes, text).joined;
}
JoinedOutput xml(const std::string& text) {
  return read_in_all_cuts(ToolDialect::kXml, text).joined;
}
JoinedOutput pythonic(const std::string& list) {
  return read_in_all_cuts(ToolDialect::kPythonic,
                          "<|tool_call_start|>" + list + "<|tool_call_end|>")
      .joined;
}
// The arguments of the only call of a function `run`.
std::string xml_arguments(const std::string& parameters) {
  const JoinedOutput read =
      xml("<tool_call>\n<function=run>\n" + parameters + "</function>\n</tool_call>");
  REQUIRE(read.calls.size() == 1);
  return read.calls[0].arguments;
}
std::string python_arguments(const std::string& keywords) {
  const JoinedOutput read = pythonic("[f(" + keywords + ")]");
  REQUIRE(read.calls.size() == 1);
  return read.calls[0].arguments;
}

}  // namespace

TEST_CASE("white space: kept in content, dropped around reasoning and before calls") {
  const auto read = [](const std::string& text, ReasoningMode mode, OutputEnd end) {
    return read_in_all_cuts(ToolDialect::kHermes, text, mode, end).joined;
  };
  const std::string call = "<tool_call>{\"name\": \"f\"}</tool_call>";
  const Calls one = {{"f", "{}"}};
  CHECK(hermes(" \n a \n") == JoinedOutput{"", " \n a \n", {}});
  CHECK(hermes("a \n" + call + " \n") == JoinedOutput{"", "a", one});
  CHECK(hermes(" " + call + " b ") == JoinedOutput{"", "b", one});
  CHECK(hermes("a" + call + " b") == JoinedOutput{"", "a b", one});
  CHECK(read("\n", ReasoningMode::kTags, OutputEnd::kStop) == JoinedOutput{"", "\n", {}});
  CHECK(read(" <think> a \n</think> ", ReasoningMode::kTags, OutputEnd::kStop) ==
        JoinedOutput{"a", "", {}});
  CHECK(read("a </think>\n" + call + "\nb", ReasoningMode::kOpened, OutputEnd::kStop) ==
        JoinedOutput{"a", "b", one});
  CHECK(read("a \n", ReasoningMode::kNone, OutputEnd::kLength) == JoinedOutput{"", "a", {}});
  CHECK(read("a </think> b", ReasoningMode::kOpened, OutputEnd::kLength) ==
        JoinedOutput{"a", "b", {}});
}

TEST_CASE("reasoning: its place in the output is known") {
  struct Place {
    const char* text;
    ReasoningMode mode;
    std::uint64_t begin, end;
  };
  for (const Place& place :
       {Place{"ab\n</think>\nc", ReasoningMode::kOpened, 0, 3},
        Place{"<think>ab</think>c", ReasoningMode::kOpened, 7, 9},
        Place{"\n<think>ab</think>c", ReasoningMode::kTags, 8, 10},
        Place{"é\n<tool_call>{\"name\": \"f\"}", ReasoningMode::kOpened, 0, 3}}) {
    OutputReader reader({place.mode, ToolDialect::kHermes, true});
    std::vector<OutputDelta> deltas;
    bool was_in_reasoning = false;
    for (const char c : std::string_view(place.text)) {
      was_in_reasoning = was_in_reasoning || reader.in_reasoning();
      reader.push(std::string_view(&c, 1), deltas);
    }
    CHECK(was_in_reasoning);
    CHECK_FALSE(reader.in_reasoning());
    REQUIRE(reader.reasoning().has_value());
    CHECK(reader.reasoning()->begin == place.begin);
    CHECK(reader.reasoning()->end == place.end);
  }
  CHECK_FALSE(OutputReader({ReasoningMode::kTags}).reasoning().has_value());
  CHECK(OutputReader({ReasoningMode::kOpened}).in_reasoning());
}

TEST_CASE("deltas: text stands at its offset in the output") {
  const std::string text =
      "<think> a b\n</think>\n c d <tool_call>{\"name\": \"f\"}</tool_call>\n e";
  for (const OutputPieces& pieces : cuts_of(text, 3)) {
    OutputReader reader({ReasoningMode::kTags, ToolDialect::kHermes, true});
    std::vector<OutputDelta> deltas;
    for (const std::string& piece : pieces) reader.push(piece, deltas);
    reader.finish(OutputEnd::kStop, deltas);
    for (const OutputDelta& delta : deltas) {
      if (delta.kind == OutputDelta::Kind::kCall) continue;
      REQUIRE(text.substr(delta.offset, delta.text.size()) == delta.text);
    }
  }
}

TEST_CASE("bytes that are no UTF-8: read as U+FFFD, whole characters come out") {
  OutputReader reader({});
  std::vector<OutputDelta> deltas;
  reader.push("a\xC3", deltas);
  REQUIRE(deltas.size() == 1);
  reader.push("\xA9\xFF\xE2\x82", deltas);
  reader.finish(OutputEnd::kStop, deltas);
  std::string text;
  for (const OutputDelta& delta : deltas) text += delta.text;
  CHECK(text == "aé\uFFFD\uFFFD");
  CHECK(hermes("\xF0\x9F\x98\x80\xC0").content == "😀\uFFFD");
}

TEST_CASE("parallel off: the reader stops at the end of the first call") {
  const auto read = [](ToolDialect dialect, const std::string& text) {
    return read_in_all_cuts(dialect, text, ReasoningMode::kNone, OutputEnd::kStop, false);
  };
  const ReadOutput one{{"", "a", {{"f", "{}"}}}, true};
  const std::string call = "a <tool_call>{\"name\": \"f\"}";
  CHECK(read(ToolDialect::kHermes, call + "</tool_call> b") == one);
  CHECK(read(ToolDialect::kHermes, call + "\n<tool_call>{\"name\": \"g\"}") == one);
  CHECK_FALSE(read(ToolDialect::kHermes, call).stopped);
  const std::string function = "<function=f>\n</function>";
  CHECK(read(ToolDialect::kXml, "a\n" + function) == one);
  CHECK(read(ToolDialect::kXml, "a\n<tool_call>" + function + "\n</tool_call>b") == one);
  CHECK(read(ToolDialect::kXml, "a\n<tool_call>" + function + "\n" + function) == one);
  CHECK(read(ToolDialect::kXml, "a\n<tool_call>" + function + " b") == one);
  const std::string list = "a<|tool_call_start|>[f(), g()]<|tool_call_end|>";
  CHECK(read(ToolDialect::kPythonic, list) == one);
  CHECK(read(ToolDialect::kPythonic, "a<|tool_call_start|>[{\"name\": \"f\"}, {}]") == one);
}

TEST_CASE("a call in reasoning: it ends it in mid-line, too, and only with a whole head") {
  const auto read = [](ToolDialect dialect, const std::string& text) {
    return read_in_all_cuts(dialect, text, ReasoningMode::kOpened).joined;
  };
  const std::string call = "<tool_call>{\"name\": \"f\"}</tool_call>";
  CHECK(read(ToolDialect::kHermes, call) == JoinedOutput{"", "", {{"f", "{}"}}});
  CHECK(read(ToolDialect::kHermes, "<think>" + call) == JoinedOutput{"", "", {{"f", "{}"}}});
  CHECK(read(ToolDialect::kHermes, "a " + call) == JoinedOutput{"a", "", {{"f", "{}"}}});
  CHECK(read(ToolDialect::kXml, "a: <tool_call>\n<function=f>\n</function>\n</tool_call>b") ==
        JoinedOutput{"a:", "b", {{"f", "{}"}}});
  CHECK(read(ToolDialect::kXml, "a <tool_call> and <function=f>") ==
        JoinedOutput{"a <tool_call> and <function=f>", "", {}});
  CHECK(read(ToolDialect::kHermes, "a <tool_call>\nis it\n</think>b") ==
        JoinedOutput{"a <tool_call>\nis it", "b", {}});
  CHECK(read(ToolDialect::kHermes, "<tool_call> </think>b") ==
        JoinedOutput{"<tool_call>", "b", {}});
  CHECK(read(ToolDialect::kXml, "a\n<function=f>\n</function>\n</tool_call>\nb") ==
        JoinedOutput{"a", "b", {{"f", "{}"}}});
  CHECK(read(ToolDialect::kXml, "a\n<function f>\n</think>b") ==
        JoinedOutput{"a\n<function f>", "b", {}});
  CHECK(read(ToolDialect::kPythonic, "a\n<|tool_call_start|>[f()]<|tool_call_end|>b") ==
        JoinedOutput{"a", "b", {{"f", "{}"}}});
}

TEST_CASE("a call in reasoning: the end tag of the reasoning after it is no content") {
  const auto read = [](ToolDialect dialect, const std::string& text, bool parallel = true) {
    return read_in_all_cuts(dialect, text, ReasoningMode::kOpened, OutputEnd::kStop, parallel)
        .joined;
  };
  const std::string call = "<tool_call>{\"name\": \"f\"}</tool_call>";
  const Calls one = {{"f", "{}"}};
  CHECK(read(ToolDialect::kHermes, "a " + call + "</think>\n\nb") == JoinedOutput{"a", "b", one});
  CHECK(read(ToolDialect::kHermes, "a " + call + "\n</think>") == JoinedOutput{"a", "", one});
  CHECK(read(ToolDialect::kHermes, "a " + call + " b </think> c </think>") ==
        JoinedOutput{"a", "b c </think>", one});
  CHECK(read(ToolDialect::kHermes, "a " + call + "\n" + call + "</think>b") ==
        JoinedOutput{"a", "b", {{"f", "{}"}, {"f", "{}"}}});
  // Without the closing tag of the call.
  CHECK(read(ToolDialect::kHermes, "a <tool_call>{\"name\": \"f\"}\n</think>b") ==
        JoinedOutput{"a", "b", one});
  CHECK(read(ToolDialect::kXml, "a\n<function=f>\n</function>\n</think>\nb") ==
        JoinedOutput{"a", "b", one});
  CHECK(read(ToolDialect::kXml, "a\n<tool_call><function=f>\n</function>\n</think>\nb", false) ==
        JoinedOutput{"a", "", one});
  // After the end of the reasoning the tag is text.
  CHECK(read(ToolDialect::kHermes, "a</think>" + call + "</think>") ==
        JoinedOutput{"a", "</think>", one});
}

TEST_CASE("closing tags after a call: none is content, also where the call is repeated") {
  const std::string again = "<|tool_call_start|>[f()]<|tool_call_end|>";
  const Calls one = {{"f", "{}"}};
  const auto read = [](ToolDialect dialect, const std::string& text) {
    return read_in_all_cuts(dialect, text).joined;
  };
  CHECK(read(ToolDialect::kPythonic, again + "[f()]<|tool_call_end|>") ==
        JoinedOutput{"", "[f()]", one});
  CHECK(read(ToolDialect::kPythonic, again + "<|tool_call_end|>\n<|tool_call_end|>ok") ==
        JoinedOutput{"", "ok", one});
  CHECK(read(ToolDialect::kPythonic, again + again) ==
        JoinedOutput{"", "", {{"f", "{}"}, {"f", "{}"}}});
  CHECK(read(ToolDialect::kHermes, "<tool_call>{\"name\": \"f\"}</tool_call></tool_call>a") ==
        JoinedOutput{"", "a", one});
  CHECK(read(ToolDialect::kXml, "<function=f></function></tool_call>a </tool_call> b") ==
        JoinedOutput{"", "a b", one});
  // Before a call it is text.
  CHECK(read(ToolDialect::kPythonic, "<|tool_call_end|>") ==
        JoinedOutput{"", "<|tool_call_end|>", {}});
}

TEST_CASE("calls that are not to follow text: a document may speak of them") {
  const auto read = [](ToolDialect dialect, const std::string& text) {
    ReaderCase of{"", text, {ReasoningMode::kOpened, dialect}, OutputEnd::kStop};
    of.options.calls_after_text = false;
    const ReadOutput whole = read_pieces(of, {text}, nullptr);
    for (const OutputPieces& pieces : cuts_of(text, 4)) {
      REQUIRE(read_pieces(of, pieces, nullptr).joined == whole.joined);
    }
    return whole.joined;
  };
  const std::string call = "<tool_call><function=f></function></tool_call>";
  const Calls one = {{"f", "{}"}};
  CHECK(read(ToolDialect::kXml, "a</think>\n{\"x\": \"" + call + "\"}") ==
        JoinedOutput{"a", "{\"x\": \"" + call + "\"}", {}});
  CHECK(read(ToolDialect::kXml, "a</think>\n" + call) == JoinedOutput{"a", "", one});
  CHECK(read(ToolDialect::kXml, "a " + call) == JoinedOutput{"a", "", one});
}

TEST_CASE("whole calls: a call that breaks off is none, wherever it stands") {
  const auto is_whole = [](ToolDialect dialect, const std::string& text) {
    OutputReader reader({ReasoningMode::kNone, dialect});
    std::vector<OutputDelta> deltas;
    reader.push(text, deltas);
    reader.finish(OutputEnd::kStop, deltas);
    return reader.calls_are_whole();
  };
  CHECK(is_whole(ToolDialect::kHermes, "text"));
  CHECK(is_whole(ToolDialect::kHermes, "<tool_call>{\"name\": \"f\"}"));
  CHECK(is_whole(ToolDialect::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}"));
  CHECK(is_whole(ToolDialect::kHermes, "<tool_call>{\"arguments\": {}, \"name\": \"f\""));
  CHECK_FALSE(is_whole(ToolDialect::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {"));
  CHECK(is_whole(ToolDialect::kXml, "<function=f></function>"));
  CHECK(is_whole(ToolDialect::kXml, "<tool_call><function=f></tool_call>"));
  CHECK_FALSE(is_whole(ToolDialect::kXml, "<tool_call><function=f>\n<parameter=a>\n1"));
  CHECK_FALSE(is_whole(ToolDialect::kXml, "<function=f></function>\n<function=f>"));
  const std::string begin = "<|tool_call_start|>";
  CHECK(is_whole(ToolDialect::kPythonic, begin + "[f(), g(a=1)"));
  CHECK(is_whole(ToolDialect::kPythonic, begin + "[{\"name\": \"f\", \"arguments\": {}}"));
  CHECK_FALSE(is_whole(ToolDialect::kPythonic, begin + "[f(), g(a=1"));
  const std::string broken = begin + "[f(5)]<|tool_call_end|>";
  CHECK_FALSE(is_whole(ToolDialect::kPythonic, broken));
  CHECK_FALSE(is_whole(ToolDialect::kPythonic, broken + begin + "[f()]<|tool_call_end|>"));
}

TEST_CASE("hermes: names and members") {
  const auto is_text = [](const std::string& head) {
    const std::string text = "<tool_call>" + head;
    return hermes(text) == JoinedOutput{"", text, {}};
  };
  const std::string longest(256, 'n');
  CHECK(hermes("<tool_call>{\"name\": \"" + longest + "\"}").calls == Calls{{longest, "{}"}});
  CHECK(hermes("<tool_call>{\"name\": \"\\u00e9\\/\"}").calls == Calls{{"é/", "{}"}});
  CHECK(is_text("{\"name\": \"" + longest + "n\"}"));
  for (const char* name : {"\"\"", "\"a b\"", "\"a(b\"", "\"<f>\"", "1", "null", "[\"f\"]"}) {
    INFO(name);
    CHECK(is_text(std::string("{\"name\": ") + name + ", \"arguments\": {}}"));
  }
  for (const char* arguments : {"[]", "\"[]\"", "\"\"", "1", "null", "true"}) {
    INFO(arguments);
    CHECK(is_text(std::string("{\"name\": \"f\", \"arguments\": ") + arguments + "}"));
  }
  CHECK(is_text("[{\"name\": \"f\"}]"));
  CHECK(is_text("{\"name\" \"f\"}"));
  CHECK(is_text("{name: \"f\"}"));
  // The first of each member counts; others are passed over, however they are nested.
  CHECK(hermes("<tool_call>{\"a\": {\"name\": [\"}\", 1]}, \"b\": -1.5e3, \"name\": \"f\", "
               "\"name\": \"g\", \"parameters\": {\"n\": 1}, \"arguments\": {}, }</tool_call>b") ==
        JoinedOutput{"", "b", {{"f", "{\"n\": 1}"}}});
  CHECK(hermes("<tool_call>{\"arguments\": \"{\\\"n\\\": 1}\", \"name\": \"f\"}") ==
        JoinedOutput{"", "", {{"f", "{\"n\": 1}"}}});
}

TEST_CASE("hermes: a broken call never looks whole") {
  const std::string head = "<tool_call>{\"name\": \"f\", \"arguments\": ";
  CHECK(hermes(head + "{\"a\": [1}</tool_call>").calls == Calls{{"f", "{\"a\": [1}</tool_call>"}});
  CHECK(hermes(head + "\"{\\\"n\\\": ").calls == Calls{{"f", ""}});
  CHECK(hermes(head + "\"{\\\"n\\\": \"}</tool_call>b") ==
        JoinedOutput{"", "b", {{"f", "{\"n\": "}}});
  CHECK(hermes(head + "{\"a\": \"\\\n\x01\\\"}\"}").calls ==
        Calls{{"f", "{\"a\": \"\\n\\u0001\\\"}\"}"}});
}

TEST_CASE("hermes: what a tag that is text holds is read again") {
  const std::string call = "<tool_call>{\"name\": \"f\"}</tool_call>";
  CHECK(hermes("<tool_call>" + call) == JoinedOutput{"", "<tool_call>", {{"f", "{}"}}});
  CHECK(hermes("<tool_call>{\"arguments\": {" + call) ==
        JoinedOutput{"", "<tool_call>{\"arguments\": {", {{"f", "{}"}}});
  CHECK(hermes("<<tool_call><" + call) == JoinedOutput{"", "<<tool_call><", {{"f", "{}"}}});
}

TEST_CASE("xml: where a value ends") {
  CHECK(xml_arguments("<parameter=code>\r\na\r\n</parameter>\r\n") == R"({"code": "a"})");
  CHECK(xml_arguments("<parameter=code>\r\ra\r\r\n</parameter>") == "{\"code\": \"\\r\\ra\\r\"}");
  CHECK(xml_arguments("<parameter=code>a\n\n</parameter>") == R"({"code": "a\n"})");
  CHECK(xml_arguments("<parameter=code>a</parameter></parameter>") ==
        R"({"code": "a</parameter>"})");
  CHECK(xml_arguments("<parameter=code>a\n<parameter=m>\n<parameter=n>1</parameter>") ==
        R"({"code": "a\n<parameter=m>", "n": 1})");
  CHECK(xml_arguments("<parameter=code>a <parameter=n>1</parameter>") ==
        R"({"code": "a <parameter=n>1"})");
  CHECK(xml("<tool_call><function=run><parameter=n>1</parameter></tool_call>b") ==
        JoinedOutput{"", "b", {{"run", R"({"n": 1})"}}});
  const std::string begin = "<tool_call><function=run><parameter=code>\na";
  CHECK(xml(begin + "</parameter>\n").calls == Calls{{"run", R"({"code": "a")"}});
  CHECK(xml(begin + "</parameter>\n</fun").calls ==
        Calls{{"run", R"({"code": "a</parameter>\n</fun)"}});
  CHECK(xml(begin + "\n</function>\n").calls == Calls{{"run", R"({"code": "a\n</function>\n)"}});
  CHECK(read_in_all_cuts(ToolDialect::kXml, begin + "\n</parameter>\n", ReasoningMode::kNone,
                         OutputEnd::kLength)
            .joined.calls == Calls{{"run", R"({"code": "a)"}});
  CHECK(xml("<tool_call><function=run><parameter=n>1").calls == Calls{{"run", R"({"n": )"}});
}

TEST_CASE("xml: names without blanks and quotes") {
  CHECK(xml("<function= \"f\" >\n<parameter='a b'>1</parameter>\n</function>\n</tool_call>b") ==
        JoinedOutput{"", "b", {{"f", R"({"a b": "1"})"}}});
  for (const char* text : {"<function=>", "<function=a b>", "<function=a<b>", "<function=a=b>",
                           "<tool_call><function=f", "<tool_call>f"}) {
    INFO(text);
    CHECK(xml(text) == JoinedOutput{"", text, {}});
  }
  CHECK(xml_arguments("<parameter=>1</parameter><parameter=a\"b>\n\"\n</parameter>") ==
        R"({"a\"b": "\""})");
}

TEST_CASE("xml: a function without a closing tag, and several in one") {
  const std::string one = "<function=f>\n</function>";
  CHECK(xml("<tool_call>" + one + "\na\n" + one + "</tool_call> b") ==
        JoinedOutput{"", "a b", {{"f", "{}"}, {"f", "{}"}}});
  CHECK(xml("a " + one) == JoinedOutput{"", "a " + one, {}});
}

TEST_CASE("xml: types by the schema") {
  const auto flat = [](const std::string& key, const std::string& value) {
    const JoinedOutput read =
        xml("<function=flat><parameter=" + key + ">" + value + "</parameter></function>");
    REQUIRE(read.calls.size() == 1);
    return read.calls[0].arguments;
  };
  CHECK(flat("x", "2.5") == R"({"x": 2.5})");
  CHECK(flat("x", "TRUE") == R"({"x": true})");
  CHECK(flat("x", " 01 ") == R"({"x": " 01 "})");
  CHECK(flat("o", "{'a': (1, -2.5e3, [], {}), \"b\": None,}") ==
        R"({"o": {"a": [1, -2.5e3, [], {}], "b": null}})");
  CHECK(flat("o", "{\"a\" :1}") == R"({"o": {"a" :1}})");
  CHECK(flat("o", "[1]") == R"({"o": "[1]"})");
  CHECK(flat("o", "{'a': 1} b") == R"({"o": "{'a': 1} b"})");
  CHECK(xml_arguments("<parameter=maybe>None</parameter>") == R"({"maybe": null})");
  CHECK(xml_arguments("<parameter=list>(1,)</parameter>") == R"({"list": [1]})");
  CHECK(xml_arguments("<parameter=n>1.0</parameter>") == R"({"n": "1.0"})");
  // Without types all is text.
  const ReaderCase of{"",
                      "<function=run><parameter=n>1</parameter></function>",
                      {ReasoningMode::kNone, ToolDialect::kXml, true},
                      OutputEnd::kStop};
  CHECK(read_pieces(of, {of.text}, nullptr).joined.calls == Calls{{"run", R"({"n": "1"})"}});
}

TEST_CASE("xml: types through references and combined schemas") {
  const ToolTypes types(nlohmann::ordered_json::parse(R"([
    {"type": "function", "function": {"name": "run", "parameters": {"$ref": "#/$defs/Run",
      "$defs": {
        "Run": {"allOf": [{"properties": {"trip": {"$ref": "#/$defs/Trip"}}},
                          {"$ref": "#/$defs/More"}],
                "anyOf": [{"properties": {"a": {"type": "integer"}}},
                          {"properties": {"a": {"type": "boolean"}, "b": {"type": "array"}}}]},
        "More": {"properties": {
          "all": {"allOf": [{"type": ["integer", "object"]}, {"type": ["object", "string"]}]},
          "any": {"anyOf": [{"$ref": "#/$defs/a~1b%20"}, {"type": "null"}]},
          "float": {"type": "float"},
          "loop": {"$ref": "#/$defs/Loop"},
          "narrow": {"type": "object", "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
          "spelt": {"type": "integer", "enum": [2.0]},
          "remote": {"$ref": "http://localhost/x"},
          "free": {"description": "anything"}, "true": true,
          "text": {"type": "string"}}},
        "Trip": {"type": "object"}, "a/b ": {"type": "integer"},
        "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]}}}}}])"));
  const auto value = [&](const std::string& key, const std::string& text) {
    const ReaderCase of{"",
                        "<function=run><parameter=" + key + ">" + text + "</parameter></function>",
                        {ReasoningMode::kNone, ToolDialect::kXml},
                        OutputEnd::kStop};
    const ReadOutput read = read_pieces(of, {of.text}, &types);
    for (const OutputPieces& pieces : cuts_of(of.text, 5)) {
      REQUIRE(read_pieces(of, pieces, &types).joined == read.joined);
    }
    REQUIRE(read.joined.calls.size() == 1);
    const std::string& all = read.joined.calls[0].arguments;
    const std::string begin = "{\"" + key + "\": ";
    REQUIRE(all.starts_with(begin));
    return all.substr(begin.size(), all.size() - begin.size() - 1);
  };
  CHECK(value("trip", "{\"days\": 3}") == "{\"days\": 3}");
  CHECK(value("a", "7") == "7");
  CHECK(value("a", "true") == "true");
  CHECK(value("b", "[7]") == "[7]");
  CHECK(value("all", "{}") == "{}");
  CHECK(value("all", "7") == "\"7\"");
  CHECK(value("any", "7") == "7");
  CHECK(value("any", "null") == "null");
  CHECK(value("float", "1.5") == "1.5");
  CHECK(value("loop", "7") == "7");
  CHECK(value("narrow", "{\"x\": 1}") == "{\"x\": 1}");
  CHECK(value("spelt", "2.0") == "2.0");
  // Without a type: what is an object or array, else text.
  for (const char* const key : {"remote", "free", "true"}) {
    CHECK(value(key, "{\"a\": [1]}") == "{\"a\": [1]}");
    CHECK(value(key, " [1] ") == "[1]");
    CHECK(value(key, "7") == "\"7\"");
    CHECK(value(key, "{a}") == "\"{a}\"");
    CHECK(value(key, "(1,)") == "\"(1,)\"");
    CHECK(value(key, "[1] or so") == "\"[1] or so\"");
    CHECK(value(key, "").empty() == false);
    CHECK(value(key, "") == "\"\"");
    CHECK(value(key, " a\n b") == "\" a\\n b\"");
  }
  CHECK(value("text", "{}") == "\"{}\"");
  CHECK(value("undeclared", "{}") == "\"{}\"");
}

TEST_CASE("xml: types behind anchors, identifiers and keywords for other names") {
  const auto value = [](const char* parameters, const std::string& key, const std::string& text) {
    const ToolTypes types(nlohmann::json::array(
        {{{"name", "run"}, {"parameters", nlohmann::json::parse(parameters)}}}));
    const ReaderCase of{"",
                        "<function=run><parameter=" + key + ">" + text + "</parameter></function>",
                        {ReasoningMode::kNone, ToolDialect::kXml},
                        OutputEnd::kStop};
    const ReadOutput read = read_pieces(of, {of.text}, &types);
    REQUIRE(read.joined.calls.size() == 1);
    return read.joined.calls[0].arguments;
  };
  constexpr const char* kReferences = R"({"$id": "http://localhost/a/root",
    "properties": {"anchor": {"$ref": "#N"}, "relative": {"$ref": "n"},
      "absolute": {"$ref": "http://localhost/a/n"}, "own": {"$ref": "root#/$defs/n"},
      "inner": {"$ref": "m#/$defs/x"}, "inner_anchor": {"$ref": "m#N"},
      "$id": {"type": "string"}, "other": {"$ref": "http://localhost/b"}},
    "$defs": {"n": {"$id": "n", "$anchor": "N0", "type": "integer"},
      "anchor": {"$anchor": "N", "type": "integer"},
      "m": {"$id": "m", "$defs": {"x": {"$ref": "#N"}, "y": {"$anchor": "N", "type": "boolean"}}}}})";
  for (const char* const key : {"anchor", "relative", "absolute", "own"}) {
    CHECK(value(kReferences, key, "10") == "{\"" + std::string(key) + "\": 10}");
  }
  CHECK(value(kReferences, "inner", "true") == R"({"inner": true})");
  CHECK(value(kReferences, "inner_anchor", "true") == R"({"inner_anchor": true})");
  CHECK(value(kReferences, "other", "10") == R"({"other": "10"})");
  // Old drafts ignore neighbours of a reference, and draft-04 names by `id`.
  constexpr const char* kOld = R"({"$schema": "http://json-schema.org/draft-04/schema#",
    "properties": {"n": {"$ref": "#/definitions/n", "type": "string"},
      "id": {"$ref": "#N", "allOf": [{"type": "boolean"}]}},
    "definitions": {"n": {"type": "integer"}, "m": {"id": "#N", "type": "integer"}}})";
  CHECK(value(kOld, "n", "10") == R"({"n": 10})");
  CHECK(value(kOld, "id", "10") == R"({"id": 10})");
  constexpr const char* kOther = R"({"properties": {"text": {"type": "string"}},
    "patternProperties": {"^n_": {"type": "integer"}, "_on$": {"type": ["boolean", "integer"]}},
    "allOf": [{"additionalProperties": {"$ref": "#/$defs/list"}}],
    "$defs": {"list": {"type": ["array", "integer", "boolean"]}}})";
  CHECK(value(kOther, "n_a", "10") == R"({"n_a": 10})");
  CHECK(value(kOther, "n_on", "true") == R"({"n_on": "true"})");
  CHECK(value(kOther, "a_on", "true") == R"({"a_on": true})");
  CHECK(value(kOther, "list", "[1]") == R"({"list": [1]})");
  CHECK(value(kOther, "text", "10") == R"({"text": "10"})");
  CHECK(value(R"({"properties": {}, "additionalProperties": false})", "a", "10") ==
        R"({"a": "10"})");
}

TEST_CASE("xml: a parameter of several types is JSON where its schema takes the value, else text") {
  const auto value = [](const char* schema, const std::string& text) {
    nlohmann::json parameters = {{"properties", {{"p", nlohmann::json::parse(schema)}}}};
    parameters["$defs"]["small"] = {{"type", "integer"}, {"maximum", 5}};
    const ToolTypes types(nlohmann::json::array({{{"name", "run"}, {"parameters", parameters}}}));
    const ReaderCase of{"",
                        "<function=run><parameter=p>" + text + "</parameter></function>",
                        {ReasoningMode::kNone, ToolDialect::kXml},
                        OutputEnd::kStop};
    const ReadOutput read = read_pieces(of, {of.text}, &types);
    REQUIRE(read.joined.calls.size() == 1);
    return nlohmann::json::parse(read.joined.calls[0].arguments).at("p").dump();
  };
  for (const char* const schema :
       {R"({"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 5}]})",
        R"({"oneOf": [{"type": "string"}, {"$ref": "#/$defs/small"}]})", R"({"enum": ["10", 5]})",
        R"({"type": ["string", "integer"], "maximum": 9})",
        R"({"type": ["string", "integer"], "exclusiveMaximum": 10})",
        R"({"type": ["string", "integer"], "maximum": 10, "exclusiveMaximum": true})",
        R"({"type": ["string", "number"], "allOf": [{"maximum": 9.5}]})"}) {
    INFO(schema);
    CHECK(value(schema, "10") == "\"10\"");
    CHECK(value(schema, "5") == "5");
  }
  CHECK(value(R"({"type": ["string", "boolean"], "enum": ["true", "x", false]})", "true") ==
        "\"true\"");
  CHECK(value(R"({"type": ["string", "boolean"], "enum": ["true", "x", false]})", "False") ==
        "false");
  CHECK(value(R"({"enum": ["null", 1]})", "null") == "\"null\"");
  CHECK(value(R"({"type": "string", "nullable": true})", "null") == "null");
  CHECK(value(R"({"type": ["string", "integer"], "minimum": 0})", "-1") == "\"-1\"");
  constexpr const char* kObject = R"({"anyOf": [{"type": "string"}, {"type": "object",
      "required": ["b"], "properties": {"b": {"type": "integer"}}}]})";
  CHECK(value(kObject, "{}") == "\"{}\"");
  CHECK(value(kObject, R"({"b": "x"})") == R"("{\"b\": \"x\"}")");
  CHECK(value(kObject, R"({"b": 1, "c": []})") == R"({"b":1,"c":[]})");
  CHECK(value(kObject, "{'b': 1}") == R"({"b":1})");
  CHECK(value(R"({"type": ["string", "array"], "items": {"type": "integer"}})", "[1, 2.0]") ==
        "[1,2.0]");
  CHECK(value(R"({"type": ["string", "array"], "items": {"type": "integer"}})", "[1.5]") ==
        "\"[1.5]\"");
  // Without a text there is nothing to choose.
  CHECK(value(R"({"type": "integer", "maximum": 5})", "10") == "10");
}

TEST_CASE("xml: types of a schema that refers to itself in every branch are found in little time") {
  nlohmann::json defs;
  for (int i = 0; i < 300; ++i) {
    const nlohmann::json next = {{"$ref", "#/$defs/" + std::to_string(i + 1)}};
    defs[std::to_string(i)] = {{"allOf", {next, next, next}}, {"anyOf", {next, next}}};
  }
  defs["300"] = {{"type", "integer"}, {"properties", {{"n", {{"type", "integer"}}}}}};
  const nlohmann::json first = {{"$ref", "#/$defs/0"}};
  const nlohmann::json last = {{"$ref", "#/$defs/299"}};
  const ToolTypes types(nlohmann::json::array(
      {{{"name", "f"},
        {"parameters",
         {{"properties", {{"a", first}, {"b", last}}}, {"allOf", {first}}, {"$defs", defs}}}}}));
  REQUIRE(types.find("f") != nullptr);
  CHECK(types.find("f")->at("b") == kIntegerType);
}

TEST_CASE("xml: an empty value that is no text is null, no member, or has none") {
  const ToolTypes types(nlohmann::json::parse(R"([{"name": "run", "parameters": {"properties": {
    "n": {"type": "integer"}, "x": {"type": "number"}, "on": {"type": "boolean"},
    "maybe": {"type": ["integer", "null"]}, "none": {"type": "null"}, "o": {"type": "object"},
    "list": {"type": "array"}, "lists": {"type": ["array", "null"]},
    "texts": {"type": ["array", "string"]},
    "either": {"type": ["integer", "string"]}}}}])"));
  const auto arguments = [&](const std::string& parameters) {
    const ReaderCase of{"",
                        "<function=run>" + parameters + "</function>",
                        {ReasoningMode::kNone, ToolDialect::kXml},
                        OutputEnd::kStop};
    const ReadOutput read = read_pieces(of, {of.text}, &types);
    for (const OutputPieces& pieces : cuts_of(of.text, 6)) {
      REQUIRE(read_pieces(of, pieces, &types).joined == read.joined);
    }
    REQUIRE(read.joined.calls.size() == 1);
    return read.joined.calls[0].arguments;
  };
  const auto empty = [](const std::string& key) {
    return "<parameter=" + key + ">\n\n</parameter>";
  };
  for (const char* const key : {"n", "x", "on"}) CHECK(arguments(empty(key)) == "{}");
  CHECK(arguments(empty("maybe")) == R"({"maybe": null})");
  CHECK(arguments(empty("none")) == R"({"none": null})");
  CHECK(arguments(empty("either")) == R"({"either": ""})");
  // The key of a list or an object has been written: it has no members.
  CHECK(arguments(empty("o")) == R"({"o": {}})");
  CHECK(arguments(empty("list") + "<parameter=x>1</parameter>") == R"({"list": [], "x": 1})");
  CHECK(arguments(empty("lists")) == R"({"lists": null})");
  CHECK(arguments(empty("texts")) == R"({"texts": ""})");
  CHECK(arguments(empty("n") + "<parameter=x>1</parameter>" + empty("on")) == R"({"x": 1})");
  CHECK(arguments("<parameter=x>1</parameter>" + empty("n") + empty("maybe")) ==
        R"({"x": 1, "maybe": null})");
  CHECK(arguments("<parameter=n> \n \n</parameter>") == "{}");
  // The next name is read while the empty value has not ended.
  CHECK(arguments("<parameter=maybe>\n\n<parameter=x>\n1</parameter>") ==
        R"({"maybe": null, "x": 1})");
}

TEST_CASE("xml: calls that a grammar makes of a record are read as documents of its schema") {
  const auto vocabulary =
      grammar::vocabulary_of({"<parameter=", ">\n", "\n</parameter>\n", "</function>", "12", "true",
                              "New York", "</", "x-", "ab", "東京", "\n<parameter=ab>\n"});
  std::mt19937_64 random(9);
  std::size_t num_members = 0;
  for (const char* const schema :
       {R"({"type":"object","additionalProperties":{"type":"integer"}})",
        R"({"type":"object","properties":{"ab":{"type":"boolean"},"x y":{"enum":["a","b"]}},
            "required":["ab"],"additionalProperties":{"type":["integer","null"]}})",
        R"({"type":"object","patternProperties":{"^x-":{"enum":["ab",12]},"b$":{"const":12}},
            "additionalProperties":false,"minProperties":1})",
        R"({"type":"object","properties":{"a":{"type":"integer"}},"propertyNames":{"maxLength":4},
            "additionalProperties":{"type":"array","items":{"type":"integer"}},
            "maxProperties":3})"}) {
    const ToolTypes types(
        nlohmann::json::array({{{"name", "f"}, {"parameters", nlohmann::json::parse(schema)}}}));
    const std::vector<grammar::ToolSpec> tools = {{"f", schema}};
    const auto calls = grammar::compile_tools(
        tools, {grammar::ToolDialect::kXml, grammar::ToolGrammarOptions::Mode::kRequired, false});
    const auto documents = grammar::compile_schema(schema);
    for (int i = 0; i < 40; ++i) {
      grammar::TokenMatcher row(calls, vocabulary);
      const std::string text = grammar::random_text(row, random, 4000, 0);
      CAPTURE(schema, text);
      REQUIRE(row.ended());
      const ReaderCase of{
          "", text, {ReasoningMode::kNone, ToolDialect::kXml, false}, OutputEnd::kStop};
      const ReadOutput read = read_pieces(of, {text}, &types);
      REQUIRE(read.joined.calls.size() == 1);
      const std::string& arguments = read.joined.calls[0].arguments;
      CAPTURE(arguments);
      num_members += nlohmann::json::parse(arguments).size();
      grammar::Matcher document(documents);
      REQUIRE(document.advance(arguments));
      REQUIRE(document.accepts());
    }
  }
  CHECK(num_members > 160);
}

TEST_CASE("xml: every declared name is read as it stands") {
  const std::vector<std::string> names = {"城市",       "$filter", "ids[]", "my key",
                                          "\"quoted\"", " a ",     "a<b",   std::string(300, 'n'),
                                          "a",          "a=b",     "it's'"};
  nlohmann::json properties;
  for (const std::string& name : names) properties[name] = {{"type", "integer"}};
  const ToolTypes types(
      nlohmann::json::array({{{"name", "f"}, {"parameters", {{"properties", properties}}}}}));
  for (const std::string& name : names) {
    INFO(name);
    const ReaderCase of{"",
                        "<function=f>\n<parameter=" + name + ">\n1\n</parameter>\n</function>",
                        {ReasoningMode::kNone, ToolDialect::kXml},
                        OutputEnd::kStop};
    for (const OutputPieces& pieces : cuts_of(of.text, 7)) {
      const ReadOutput read = read_pieces(of, pieces, &types);
      REQUIRE(read.joined.calls.size() == 1);
      const auto read_arguments = nlohmann::json::parse(read.joined.calls[0].arguments);
      REQUIRE(read_arguments == nlohmann::json{{name, 1}});
    }
  }
}

TEST_CASE("pythonic: literals") {
  CHECK(python_arguments("a='\\ud83d\\ude00\\ud83dx\\udc00', b=\"\\/\\0\\u12\"") ==
        "{\"a\": \"😀\uFFFDx\uFFFD\", \"b\": \"/\\u0000\\\\u12\"}");
  CHECK(python_arguments("a='\\U00110000\\x4g\\xe9'") == "{\"a\": \"\uFFFD\\\\x4gé\"}");
  CHECK(python_arguments("a = ( 1 , ) , b = -0") == R"({"a": [1], "b": -0})");
  CHECK(python_arguments("a={'b': [()]}, a=2") == R"({"a": {"b": [[]]}})");
  CHECK(python_arguments("a='x\ny'") == R"({"a": "x\ny"})");
  const std::string deep = "a=" + std::string(32, '[') + std::string(32, ']');
  CHECK(python_arguments(deep) == "{\"a\": " + std::string(32, '[') + std::string(32, ']') + "}");
}

TEST_CASE("pythonic: a broken call never looks whole") {
  for (const char* value : {"1.", "+1", "x", "'a", "[1", "[1, 2", "[,]", "[1)", "{1: 2}", "{'a'}",
                            "Trueish", "f(1)", "{'a': }", "b'a'"}) {
    INFO(value);
    CHECK(python_arguments(std::string("a=") + value) == "{");
  }
  for (const char* value : {"01", "1 2", "1_000", "1+1"}) {
    INFO(value);
    const std::string arguments = python_arguments(std::string("a=") + value);
    CHECK(arguments.starts_with("{\"a\": "));
    CHECK_FALSE(arguments.ends_with('}'));
  }
  CHECK(python_arguments("a='b' 'c'") == R"({"a": "b")");
  CHECK(python_arguments("*a") == "{");
  CHECK(python_arguments("a=" + std::string(33, '[') + std::string(33, ']')) == "{");
  CHECK(pythonic("[f(a=1), 7, g()]b") == JoinedOutput{"", "", {{"f", R"({"a": 1})"}}});
  CHECK(pythonic("[{\"name\": \"f\", \"arguments\": {\"a\": 1}]").calls ==
        Calls{{"f", R"({"a": 1})"}});
}

TEST_CASE("pythonic: what is no list of calls is text") {
  for (const char* list : {"[]", "f", "[f]", "[f g()]", "[1]", "[{\"arguments\": {}}]", "()"}) {
    INFO(list);
    const std::string text = std::string("<|tool_call_start|>") + list + "<|tool_call_end|>";
    CHECK(pythonic(list) == JoinedOutput{"", text, {}});
  }
  CHECK(pythonic(" [ f ( ) , ] ").calls == Calls{{"f", "{}"}});
}

}  // namespace lintel::testing
