// Schedules of the learning rate: by the step, and by a measurement.
#include <cmath>
#include <limits>
#include <numbers>

#include "catch.h"
#include "ops/factory.h"
#include "train/train.h"

using namespace tern;

TEST_CASE("schedules", "[schedule]") {
  namespace schedule = train::schedule;
  CHECK(schedule::constant(17) == 1);
  CHECK(schedule::linear_warmup(0, 10) == 0);
  CHECK(schedule::linear_warmup(1, 10) == Approx(0.1));
  CHECK(schedule::linear_warmup(10, 10) == 1);
  CHECK(schedule::linear_warmup(1, 0) == 1);
  CHECK(schedule::inverse_sqrt(5, 10) == Approx(0.5));
  CHECK(schedule::inverse_sqrt(10, 10) == 1);
  CHECK(schedule::inverse_sqrt(40, 10) == Approx(0.5));
  CHECK(schedule::inverse_sqrt(4, 0) == Approx(0.5));
  CHECK(schedule::cosine(5, 10, 110) == Approx(0.5));
  CHECK(schedule::cosine(10, 10, 110) == 1);
  CHECK(schedule::cosine(60, 10, 110) == Approx(0.5));
  CHECK(schedule::cosine(60, 10, 110, 0.2) == Approx(0.6));
  CHECK(schedule::cosine(35, 10, 110) == Approx(0.5 + 0.25 * std::numbers::sqrt2));
  CHECK(schedule::cosine(200, 10, 110, 0.1) == Approx(0.1));
  CHECK(schedule::cosine(3, 3, 3) == 0);
}

TEST_CASE("schedules that end with the training", "[schedule]") {
  namespace schedule = train::schedule;
  CHECK(schedule::linear(5, 10, 110) == Approx(0.5));
  CHECK(schedule::linear(10, 10, 110) == 1);
  CHECK(schedule::linear(35, 10, 110) == Approx(0.75));
  CHECK(schedule::linear(35, 10, 110, 0.2) == Approx(0.8));
  CHECK(schedule::linear(110, 10, 110, 0.2) == Approx(0.2));
  CHECK(schedule::linear(500, 10, 110) == 0);
  CHECK(schedule::linear(3, 3, 3) == 0);

  CHECK(schedule::wsd(5, 10, 110, 20) == Approx(0.5));
  CHECK(schedule::wsd(10, 10, 110, 20) == 1);
  CHECK(schedule::wsd(90, 10, 110, 20) == 1);
  CHECK(schedule::wsd(91, 10, 110, 20) == Approx(0.95));
  CHECK(schedule::wsd(100, 10, 110, 20, 0.1) == Approx(0.55));
  CHECK(schedule::wsd(110, 10, 110, 20, 0.1) == Approx(0.1));
  CHECK(schedule::wsd(60, 10, 110, 1000) == Approx(0.5));  // a decay of more than there is begins after the warm-up
  CHECK(schedule::wsd(110, 10, 110, 0) == 0);
  CHECK(schedule::wsd(109, 10, 110, 0) == 1);

  CHECK(schedule::one_cycle(0, 30, 100) == Approx(0.04));
  CHECK(schedule::one_cycle(15, 30, 100) == Approx(0.52));
  CHECK(schedule::one_cycle(30, 30, 100) == 1);
  CHECK(schedule::one_cycle(65, 30, 100) == Approx((1 + 4e-6) / 2));
  CHECK(schedule::one_cycle(100, 30, 100) == Approx(4e-6));
  CHECK(schedule::one_cycle(10, 0, 100, 0.5, 0.25) == Approx(0.25 + 0.375 * (1 + std::cos(0.1 * std::numbers::pi))));
}

TEST_CASE("ReduceLROnPlateau reduces after measurements without an improvement", "[schedule]") {
  train::ReduceLROnPlateau plateau({.factor = 0.5, .patience = 1, .cooldown = 1, .floor = 0.2});
  CHECK(plateau.factor() == 1);
  CHECK(plateau.update(3) == 1);
  CHECK(plateau.update(2) == 1);
  CHECK(plateau.update(1.9999) == 1);                                      // less than a part of 1e-4 better
  CHECK(plateau.update(std::numeric_limits<double>::quiet_NaN()) == 0.5);  // a NaN is no improvement
  CHECK(plateau.update(5) == 0.5);                                         // in the cooldown
  CHECK(plateau.update(5) == 0.5);
  train::ReduceLROnPlateau resumed({.factor = 0.5, .patience = 1, .cooldown = 1, .floor = 0.2});
  resumed.load(plateau.state());
  for (train::ReduceLROnPlateau* each : {&plateau, &resumed}) {
    CHECK(each->update(5) == 0.25);
    CHECK(each->update(1) == 0.25);
    CHECK(each->update(1) == 0.25);
    CHECK(each->update(1) == 0.2);  // the floor
  }
  train::ReduceLROnPlateau accuracy({.patience = 0, .threshold = 0.5, .is_relative = false, .maximize = true});
  CHECK(accuracy.update(-2) == 1);
  CHECK(accuracy.update(-1.4) == 1);
  CHECK(accuracy.update(-1) == Approx(0.1));
  train::ReduceLROnPlateau negative({.patience = 0});  // a log-likelihood that does not get better
  CHECK(negative.update(-10) == 1);
  CHECK(negative.update(-9.9995) == Approx(0.1));
  CHECK_THROWS_WITH(train::ReduceLROnPlateau({.factor = 1}), "[ReduceLROnPlateau] expected a factor in (0, 1) but got 1");
  CHECK_THROWS_WITH(plateau.load(ones({3})), "[ReduceLROnPlateau] expected a state of f64 (4,) but got f32 (3,)");
}
