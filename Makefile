# The commands a newcomer types. CMake and CTest do the work: see CMakePresets.json, and CONTRIBUTING.md for the rest.
#   PRESET=cpu|cuda|asan|ci   what to build; by default cuda where a GPU and nvcc are found, else cpu
#   JOBS=N                    how many jobs at a time; by default one a processor
#   ARGS="..."                more arguments for the program or for CTest
ifndef PRESET
PRESET := $(shell scripts/choose-preset.sh)
endif
JOBS ?= $(or $(patsubst -j%,%,$(filter -j%,$(MAKEFLAGS))),$(shell nproc))
BUILD := build/$(PRESET)
export JOBS

.DEFAULT_GOAL := help
# Ninja runs the jobs in parallel; two of our targets at a time would be two Ninjas in one directory.
.NOTPARALLEL:
.PHONY: help packages build translate recall lm test parity install clean

help:
	@echo "make translate   train a German-English translator on the embedded corpus, about 2 minutes on 2 cores"
	@echo "make recall      train a model that looks up what it has read, about half a minute on 2 cores"
	@echo "make lm          train a language model on the embedded corpus, about two minutes on 2 cores, and sample from it"
	@echo "make build       build the library and the programs in $(BUILD)"
	@echo "make test        build and run every test"
	@echo "make parity      set tern beside tokenizers, sacreBLEU and PyTorch, which it fetches into build/reference (DATA=a corpus)"
	@echo "make install     install the library and the programs (PREFIX=/usr/local)"
	@echo "make clean       remove $(BUILD)"
	@echo "Each installs the distribution packages that are missing. PRESET, JOBS and ARGS change what is done: see Makefile."

packages:
	@scripts/install-packages.sh

build: packages
	@scripts/build.sh $(PRESET) programs

translate: packages
	@scripts/build.sh $(PRESET) tern-translate
	@$(BUILD)/apps/tern-translate train --data data/embedded --src de --tgt en --preset quick --out runs/quick $(ARGS)

recall: packages
	@scripts/build.sh $(PRESET) tern-recall
	@$(BUILD)/apps/tern-recall train --preset quick --out runs/recall $(ARGS)

lm: packages
	@scripts/build.sh $(PRESET) tern-lm
	@$(BUILD)/apps/tern-lm prepare data/embedded/train.en data/embedded/train.de --vocab 2048 --out runs/lm-data
	@$(BUILD)/apps/tern-lm train --preset tiny --data runs/lm-data --out runs/lm $(ARGS)
	@$(BUILD)/apps/tern-lm sample runs/lm --prompt "The dog" --tokens 40

# Each test may use two threads (CMakePresets.json), but most of the time it uses one.
test: packages
	@scripts/build.sh $(PRESET) all
	@ctest --preset $(PRESET) --parallel $(JOBS) $(ARGS)

# The reference packages go into a virtual environment of their own; nothing else of the project needs them.
parity: packages
	@scripts/build.sh $(PRESET) tern-parity
	@python=$$(scripts/reference-packages.sh tokenizers sacrebleu safetensors numpy torch) && \
	  $$python scripts/parity.py --program $(BUILD)/tests/parity/tern-parity $(if $(DATA),--data $(DATA)) $(ARGS)

PREFIX ?= /usr/local
install: packages
	@scripts/build.sh $(PRESET) programs
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	@rm -rf $(BUILD)
