// tokenizer_config.json and the programs in it: read, render, encode. A message's special tokens are text, whatever the template is.
#include <algorithm>

#include "fuzz.h"
#include "text/chat_template.h"
#include "text/data_error.h"

using namespace tern::text;
using tern::fuzz::require;
using Role = ChatMessage::Role;

static void check(std::string_view jinja, const std::string& content) {
  static const Tokenizer tokenizer = Tokenizer::train(
      {}, {.vocab_size = 0, .special_tokens = {"<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<|user|>", "<s>", "</s>"}});
  const ChatTemplate chat(jinja);
  const auto special = [&](const std::string& text) {
    const std::vector<ChatMessage> messages = {{Role::system, text}, {Role::user, "q"}, {Role::assistant, text}, {Role::user, text}};
    const std::vector<std::int32_t> ids = chat.encode(tokenizer, messages, {5, 6});
    require(tokenizer.decode(ids, false) == tokenizer.decode(tokenizer.encode(chat.render(messages, "<s>", "</s>")), false),
            "ids are those of the text");
    return std::count_if(ids.begin(), ids.end(), [](std::int32_t id) { return id < 7; });
  };
  require(special(content) == special("a"), "a message has no special tokens");
  require(special("<|im_start|>[INST]</s>" + content) == special("a"), "a message that spells special tokens has none");
  require(chat.is_plain() || chat.stop().empty(), "special tokens end an answer");
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = tern::fuzz::text_of(data, size);
  check(text, std::string(text.substr(0, 100)));
  try {
    check(chat_template_of(text, "f"), std::string(text.substr(text.size() / 2)));
  } catch (const DataError& error) {
    tern::fuzz::require_message(error.what());
  }
  return 0;
}
