// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/web_seeds.h"

namespace lintel::fuzz {
namespace {

std::string repeated(const std::string& piece, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += piece;
  return text;
}

// An input whose data are lists in lists.
std::string nested_data(int depth) {
  return R"({"inputs":[{"name":"tokens","datatype":"INT64","shape":[1,1],"data":)" +
         repeated("[", depth) + "1" + repeated("]", depth) + "}]}";
}

std::string many_names(int count) {
  std::string text = R"("0":1)";
  for (int i = 1; i < count; ++i) text += ",\"" + std::to_string(i) + "\":1";
  return text;
}

}  // namespace

std::vector<std::string> web_frame_seeds() {
  const auto sealed = [](const std::string& message) {
    return std::string(4, '\0') + static_cast<char>(message.size()) + message;
  };
  return {sealed(""),
          sealed("\n\6tokens"),
          sealed(R"({"name":"tokens"})"),
          "AAAAAAgKBnRva2Vucw==",
          "AAAAAAA=CgZ0b2tlbnM=",
          "AAAAAAgKBnRva2Vu"};
}

std::vector<std::string> web_socket_seeds() {
  // Under a mask of zeros, which leaves a payload as it is.
  const auto frame = [](int first, const std::string& payload) {
    const auto size = static_cast<int>(payload.size());
    std::string head(1, static_cast<char>(first));
    if (size < 126) {
      head += static_cast<char>(0x80 | size);
    } else {
      head += {static_cast<char>(0xfe), static_cast<char>(size >> 8), static_cast<char>(size)};
    }
    return head + std::string(4, '\0') + payload;
  };
  constexpr int kFinal = 0x80;
  const std::string event = R"({"type":"response.create","input":"na\u00efve"})";
  return {frame(kFinal | 1, event),
          frame(kFinal | 1, event) + frame(kFinal | 1, "\xe2\x82\xac"),
          frame(1, event.substr(0, 9)) + frame(0, "") + frame(kFinal, event.substr(9)),
          frame(1, "a") + frame(kFinal | 9, "ping") + frame(kFinal | 10, "") + frame(kFinal, "b"),
          frame(kFinal | 1, repeated("long ", 60)) + frame(kFinal | 8,
                                                           "\x03\xe8"
                                                           "bye"),
          frame(kFinal | 8, ""),
          frame(kFinal | 2, "binary"),
          frame(kFinal | 1, "\xc3") + frame(kFinal | 9, "")};
}

std::vector<std::string> web_json_seeds() {
  return {
      // The Open Inference Protocol's.
      R"({"id":"7","inputs":[{"name":"tokens","datatype":"INT64","shape":[1,3],"data":[[1,2,3]]},
 {"name":"text_input","datatype":"BYTES","shape":[1,1],"data":["na\u00efve"]}],
 "parameters":{"max_new_tokens":5,"temperature":0.5,"echo":true,"binary_data_output":false},
 "outputs":[{"name":"tokens","parameters":{"binary_data":false}}]})",
      // Triton's.
      R"({"text_input":"The ","stop":["\n","end"],"outputs":["text_output","score"],
 "parameters":{"stop":"x","seed":18446744073709551615},"max_tokens":-1})",
      // OpenAI's.
      R"({"model":"text","prompt":["a",[1,2],"\ud83d\ude00"],"max_tokens":3,"n":2,"echo":true,"logprobs":2,
 "stop":["x"],"logit_bias":{"65":-100},"seed":-1,"stream":true,"stream_options":{"include_usage":true}})",
      R"({"model":"text","prompt":[1,2,3],"temperature":1e-3,"top_p":1,"user":"u","suffix":null})",
      // Ours, with bytes as base64 and as text.
      R"({"prompt":{"text":"VGhl"},"maxNewTokens":20,"sampling":{"temperature":0.9,"seed":"7",
 "logitBias":{"65":-1.5}},"stop":{"strings":["Cg=="]},"given":[{"position":"5","values":{"tokens":{"ids":[1]}}}]})",
      R"({"prompt":{"text":"The "},"max_new_tokens":20,"stop":{"strings":["\n"]}})",
      // Inputs that cost more than their length: depth, names, lists.
      nested_data(100), R"({"sampling":{"logitBias":{)" + many_names(200) + "}}}",
      R"({"model":"text","prompt":"a","logit_bias":{)" + many_names(200) + "}}",
      R"({"given":[{})" + repeated(",{}", 200) + "]}"};
}

std::vector<std::string> web_head_seeds() {
  return {
      "POST /lintel.v1.ModelService/List HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
      "Content-Type: application/json\r\nX-Request-Id: mine-7\r\nExpect: 100-continue\r\n\r\n",
      "GET http://localhost:8080/v1/models/a%2Fb%20c?x=%41 HTTP/1.1\r\nHost: localhost:8080\r\n"
      "Origin: http://localhost:8080\r\n\r\n",
      "POST /v2/models/m/versions/3/infer HTTP/1.0\r\nContent-Length: 3\r\n\r\n{ }",
      "OPTIONS /v1/completions HTTP/1.1\r\nHost: [::1]:80\r\nOrigin: https://example.org\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x, y\r\n\r\n",
      "HEAD /js/wire/base64.js HTTP/1.1\r\nHost: [::1]\r\nOrigin: http://[::1]\r\n\r\n",
      // Chunks with extensions, then trailers.
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
      "1;a=b\r\n{\r\n0a ; c = \"d e\"\r\n          \r\n1\r\n}\r\n0;e\r\nX-A: 1\r\nX-B: 2\r\n\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: CHUNKED \r\n\r\n"
      "2\r\n{}\r\n0\r\n\r\n",
      // The most headers allowed.
      [] {
        std::string many = "GET / HTTP/1.1\r\nHost: localhost\r\n";
        for (int i = 1; i < 100; ++i) many += "a: b\r\n";
        return many + "\r\n";
      }()};
}

}  // namespace lintel::fuzz
