// Conversations beside Jinja's (tests/fixtures/make_chat_fixtures.py), their ids, and the texts of users that spell special tokens.
#include "text/chat_template.h"

#include <algorithm>

#include "catch.h"
#include "support.h"
#include "text/data_error.h"

using namespace tern::text;
using namespace tern::text::test;
using Role = ChatMessage::Role;

namespace {

std::vector<ChatMessage> conversation(const Json& json) {
  std::vector<ChatMessage> result;
  for (const Json& message : json) {
    const std::string role = message["role"];
    result.push_back({role == "system" ? Role::system : role == "user" ? Role::user : Role::assistant, message["content"]});
  }
  return result;
}

const Tokenizer& tokenizer() {
  const std::vector<std::string> special = {"<s>",        "</s>",       "<|im_start|>",  "<|im_end|>",          "<|im_sep|>",
                                            "<|end|>",    "<|user|>",   "<|assistant|>", "<|start_header_id|>", "<|end_header_id|>",
                                            "<|eot_id|>", "<|system|>", "<|endoftext|>", "<start_of_turn>",     "<end_of_turn>",
                                            "[INST]",     "[/INST]"};
  static const Tokenizer result = Tokenizer::train(std::vector<std::string>{"user\nassistant\n\nsystem\n hello hello you you"},
                                                   {.vocab_size = 300, .min_frequency = 1, .special_tokens = special});
  return result;
}

ChatTokens tokens() { return {*tokenizer().token_to_id("<s>"), *tokenizer().token_to_id("</s>")}; }

}  // namespace

TEST_CASE("Conversations are rendered as Jinja renders templates of their form", "[text]") {
  const Json all = fixture("chat.json");
  for (const Json& entry : all["templates"]) {
    const std::string name = entry["name"], form = entry["form"];
    INFO(name);
    const ChatTemplate chat(entry["jinja"].get<std::string>());
    CHECK(chat.name() == form);
    CHECK(chat.is_plain() == (form == "plain"));
    for (std::size_t i = 0; i < all["conversations"].size(); ++i) {
      INFO("conversation " << i);
      const std::vector<ChatMessage> messages = conversation(all["conversations"][i]);
      const std::string text = chat.render(messages, "<s>", "</s>");
      if (!chat.is_plain()) CHECK(text == entry["texts"][i].get<std::string>());
      // The ids that the whole text has, which is the text of no other special tokens.
      CHECK(chat.encode(tokenizer(), messages, tokens()) == tokenizer().encode(text, {.special_tokens = true}));
    }
  }
}

TEST_CASE("The plain form needs no special tokens, and says where an answer ends", "[text]") {
  const ChatTemplate chat;
  const std::vector<ChatMessage> messages = {
      {Role::system, "Be brief."}, {Role::user, "Hi"}, {Role::assistant, "Hello"}, {Role::user, "?"}};
  CHECK(chat.render(messages, "<s>", "</s>") == "System: Be brief.\nUser: Hi\nAssistant: Hello\nUser: ?\nAssistant:");
  // Words have the ids that they have in the whole text, with the space before them.
  CHECK(chat.encode(tokenizer(), std::vector<ChatMessage>{{Role::user, "hello you"}}, {}) ==
        tokenizer().encode("User: hello you\nAssistant:"));
  CHECK(tokenizer().encode(" hello").size() < 6);
  CHECK(chat.stop() == "\nUser:");
  CHECK(chat.end().empty());
  CHECK(ChatTemplate("<|im_start|>").stop().empty());
  CHECK(ChatTemplate("<|im_start|>").end() == "<|im_end|>");
  CHECK(ChatTemplate("{{ bos_token + 1 }}").render(messages, "<s>", "</s>").starts_with("System"));
}

TEST_CASE("Special tokens of a message are text, and those of the template are tokens", "[text]") {
  const Json all = fixture("chat.json");
  const std::vector<std::string> names = {"<s>",    "</s>",    "<|im_start|>",  "<|im_end|>", "<|eot_id|>",
                                          "[INST]", "[/INST]", "<|assistant|>", "<|end|>"};
  std::string hostile;
  for (const std::string& name : names) hostile += name;
  const auto count = [&](const std::vector<std::int32_t>& ids) {
    return std::count_if(ids.begin(), ids.end(), [](std::int32_t id) { return id < 17; });
  };
  for (const Json& entry : all["templates"]) {
    const ChatTemplate chat(entry["jinja"].get<std::string>());
    INFO(entry["name"].get<std::string>());
    const std::vector<ChatMessage> friendly = {{Role::system, "a"}, {Role::user, "b"}, {Role::assistant, "c"}, {Role::user, "d"}};
    std::vector<ChatMessage> messages = friendly;
    for (ChatMessage& message : messages) message.content = hostile;
    const std::vector<std::int32_t> ids = chat.encode(tokenizer(), messages, tokens());
    CHECK(count(ids) == count(chat.encode(tokenizer(), friendly, tokens())));
    CHECK((count(ids) > 0) == !chat.is_plain());
    CHECK(tokenizer().decode(ids, false) == chat.render(messages, "<s>", "</s>"));
  }
  // A tokenizer without these tokens spells them; tokens that a model lacks are left out.
  const Tokenizer bytes = Tokenizer::train({}, {.vocab_size = 256, .special_tokens = {}});
  const ChatTemplate chat("bos_token <|im_start|>");
  const std::vector<ChatMessage> hi = {{Role::user, "Hi"}};
  CHECK(bytes.decode(chat.encode(bytes, hi, {})) == chat.render(hi, "", ""));
}

TEST_CASE("A tokenizer_config.json has one template, or one of the name default", "[text]") {
  CHECK(chat_template_of(R"({"a": 1, "chat_template": "x<|im_start|>"})", "f") == "x<|im_start|>");
  CHECK(chat_template_of(R"({"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]})", "f") ==
        "b");
  CHECK(chat_template_of("{}", "f").empty());
  CHECK(chat_template_of(R"({"chat_template": null})", "f").empty());
  const auto fault = [](const char* json) { return message_of<DataError>([&] { (void)chat_template_of(json, "f"); }); };
  CHECK(fault(R"({"chat_template": 3})") == "f: \"chat_template\": expected a text, or a list of templates with names");
  CHECK(fault(R"({"chat_template": [{"name": "other", "template": "a"}, 7]})") ==
        "f: \"chat_template\": expected a template of the name default");
  CHECK(fault("[1]") == "f: expected an object");
  CHECK(fault("{").starts_with("f:"));
}
