#include <fmt/format.h>
#include <signal.h>

#include <memory>
#include <optional>

#include "lm/commands.h"
#include "lm/writer.h"
#include "text/chat_template.h"
#include "text/unicode.h"
#include "trainer/terminal.h"

namespace tern::lm {

namespace {

using Role = text::ChatMessage::Role;

struct ChatOptions : WriteOptions {
  std::string system;
};

class Chat {
 public:
  explicit Chat(const ChatOptions& options) : options_(options), model_(load(options)), form_(model_.chat_template) {
    ending_ = {.ends = model_.ends, .stop = std::string(form_.stop()), .is_answer = true};
    if (const auto end = model_.tokenizer.token_to_id(form_.end())) ending_.ends.push_back(*end);
    if (!model_.begin.empty()) tokens_.bos = static_cast<std::int32_t>(model_.begin.front());
    if (!model_.ends.empty()) tokens_.eos = static_cast<std::int32_t>(model_.ends.front());
    if (form_.is_plain())
      note(fmt::format("{} chat template{}: the conversation is plain text, User: ... and Assistant: ...",
                       model_.chat_template.empty() ? "has no" : "has a",
                       model_.chat_template.empty() ? "" : " of another form than is known"));
    clear();
  }

  void clear() {
    messages_.clear();
    if (!options_.system.empty()) messages_.push_back({Role::system, options_.system});
  }

  void answer(const std::string& line) {
    messages_.push_back({Role::user, line});
    const std::optional<nn::TokenIds> ids = fitting();
    if (!ids) return;
    const train::StopSignals signals;
    messages_.push_back({Role::assistant, write(model_, *ids, options_, ending_, number_++)});
    apps::say("\n");
    if (const int signal = train::stop_signal(); signal != 0 && signal != SIGINT) train::stop(signal, "in an answer");
  }

 private:
  void note(const std::string& text) const {
    train::write_message(fmt::format("tern-lm: {}: {}\n", text::printable(options_.model), text));
  }

  /// Ids of the conversation, which leave room for an answer of a quarter of the model's length. The oldest turns are dropped for it; a
  /// question that is too long by itself is dropped alone.
  std::optional<nn::TokenIds> fitting() {
    const std::int64_t length = model_.model.options.length,
                       room = length - std::min(options_.tokens, std::max<std::int64_t>(length / 4, 1));
    const std::size_t first = options_.system.empty() ? 0 : 1;
    for (std::size_t dropped = 0;;) {
      nn::TokenIds ids = joined({}, form_.encode(model_.tokenizer, messages_, tokens_));
      const auto size = static_cast<std::int64_t>(ids.size());
      if (size <= room) {
        if (dropped > 0)
          note(fmt::format("the oldest {} left out: the model has {} tokens for a conversation",
                           apps::counted(std::int64_t(dropped), "message"), length));
        return ids;
      }
      if (messages_.size() == first + 1) {
        messages_.pop_back();
        note(fmt::format("expected a conversation of at most {} tokens but got {}: ask for less", room, size));
        return {};
      }
      const std::size_t turn = std::min<std::size_t>(2, messages_.size() - first - 1);
      messages_.erase(messages_.begin() + std::ptrdiff_t(first), messages_.begin() + std::ptrdiff_t(first + turn));
      dropped += turn;
    }
  }

  ChatOptions options_;
  LanguageModel model_;
  text::ChatTemplate form_;
  Ending ending_;
  text::ChatTokens tokens_;
  std::vector<text::ChatMessage> messages_;
  std::int64_t number_ = 0;
};

}  // namespace

void add_chat(CLI::App& app) {
  auto* command = app.add_subcommand("chat", "answer what you write, a message a line");
  const auto options = std::make_shared<ChatOptions>();
  command->add_option("--system", options->system, "message before the conversation, which says how to answer")->type_name("TEXT");
  add_write_options(*command, *options);
  command->callback([options] {
    Chat chat(*options);
    apps::converse({.greeting = "Write ",
                    .help = "a message, or\n  :clear  begins another conversation\n  :quit   ends this; Ctrl-C ends an answer\n",
                    .prompt = "> ",
                    .on_line = [&](const std::string& line) { chat.answer(line); },
                    .on_command =
                        [&](const std::string& word, const std::string&) {
                          if (word == ":clear") chat.clear();
                          return word == ":clear";
                        }});
  });
}

}  // namespace tern::lm
