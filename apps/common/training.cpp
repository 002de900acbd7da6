#include "common/training.h"

#include "common/program.h"
#include "text/unicode.h"
#include "trainer/terminal.h"

namespace tern::apps {

train::TrainerOptions trainer_options(const TrainingSettings& settings, std::int64_t per_epoch) {
  return {.updates = settings.epochs * per_epoch,
          .updates_per_epoch = per_epoch,
          .valid_every = settings.valid_every,
          .patience = settings.patience,
          .lr = settings.lr,
          .schedule = settings.schedule,
          .warmup = settings.warmup,
          .clip = settings.clip,
          .ema = settings.ema,
          .precision = precision(settings),
          .profile = settings.profile,
          .compile = settings.compile};
}

Session::Session(const char* program, const TrainingSettings& settings, Device device, const io::JsonObject& config, double started)
    : ranks(settings.ranks, device),
      run(program, settings.out, config, settings.checkpoints, &ranks),
      settings_(settings),
      device_(device),
      config_(config.dump()),
      started_(started) {}

void Session::set_data(const std::string& path, const std::string& digest) {
  run.set_data(path, digest);
  ranks.require_same("options or data", config_ + digest);
}

void Session::say_training(const train::Trainer& trainer, const std::string& batch, const std::string& rule) const {
  // Sharded gradients change their addresses, and a graph keeps them.
  const Device captures = ranks.shard() >= parallel::Shard::gradients ? cpu : device_;
  say("training {} updates of {} on {}{}, {}{}, {}\n", trainer.total_updates(), batch, ranks.describe(), describe(device_),
      settings_.precision, rule.empty() ? "" : ", " + rule, describe_step(settings_.use_fused_kernel, captures, settings_.compile));
}

io::JsonObject Session::summary(const train::Trainer& trainer, std::int64_t parameters, const std::string& unit) const {
  io::JsonObject result;
  result.set("preset", settings_.preset).set("device", to_string(device_)).set("precision", settings_.precision);
  result.set("use_fused_kernel", settings_.use_fused_kernel).set("params", parameters);
  if (!ranks.is_alone()) result.set("ranks", std::int64_t{ranks.size()});
  result.set("updates", trainer.updates()).set("best_epoch", trainer.best().round).set("best_update", trainer.best().update);
  result.set("train_seconds", trainer.seconds()).set("total_seconds", train::seconds_now() - started_);
  return result.set(unit + "_per_second", trainer.items_per_second()).set("train_loss", trainer.train_loss());
}

void Session::finish(const io::JsonObject& summary) {
  run.finish(summary);
  say("trained in {}, {} {}; the run is in {}\n", duration(summary.get_double("train_seconds")), duration(train::seconds_now() - started_),
      run.is_resumed() ? "since --resume" : "in all", text::printable(settings_.out));
}

}  // namespace tern::apps
