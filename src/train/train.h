#pragma once
// Optimizers, schedules, clipping, loss scaling, averages, precision, and the training step in one include.
#include "train/clip.h"
#include "train/ema.h"
#include "train/exchange.h"
#include "train/grad_scaler.h"
#include "train/muon.h"
#include "train/optimizer.h"
#include "train/plateau.h"
#include "train/precision.h"
#include "train/r_drop.h"
#include "train/schedule.h"
#include "train/step.h"
