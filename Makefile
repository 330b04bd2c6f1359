# Shakedown. `make bench` and `make test` do everything from a clean clone; `make help` lists the rest.
# Worth setting: BACKENDS="cpu gpu", CUDA_ARCHS="90", CUDA_HOME, CUDNN_HOME, NCCL_HOME, DNNL_HOME,
# BUILD (objects), CXXFLAGS, NVCCFLAGS, REVISION (where git does not know it); V=1 shows the commands.

.DEFAULT_GOAL := all
SHELL := /bin/bash
BUILD ?= build
BIN := bin

# ---- what this machine can build: launch/machine looks, launch/setup installs ---------------------
places := BACKENDS CUDA_ARCHS CUDA_HOME CUDNN_HOME NCCL_HOME DNNL_HOME
$(shell mkdir -p $(BUILD) && $(foreach place,$(places),$(if $($(place)),$(place)="$($(place))")) \
  launch/machine make > $(BUILD)/machine.mk)
include $(BUILD)/machine.mk
NEEDS_NOTHING := setup bench test doctor clean help format readme
ifneq ($(MISSING_BACKEND),)
  ifneq ($(filter-out $(NEEDS_NOTHING),$(or $(MAKECMDGOALS),all)),)
    $(error $(MISSING_BACKEND))
  endif
endif

# ---- flags ------------------------------------------------------------------------------------------
MPICXX ?= mpicxx
CXXFLAGS ?= -O2 -g1
NVCCFLAGS ?= -O3 -lineinfo
CPPFLAGS += -I. -I$(BUILD) -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX
WARNINGS := -Wall -Wextra -Wpedantic
LDLIBS += -lfmt -ljpeg -lpng -ldl -lpthread
ifneq ($(filter cpu,$(BACKENDS)),)
  CPPFLAGS += $(DNNL_CPPFLAGS)
  LDFLAGS += $(DNNL_LDFLAGS)
  LDLIBS += -ldnnl
endif
ifneq ($(filter gpu,$(BACKENDS)),)
  CPPFLAGS += $(CUDA_CPPFLAGS)
  LDFLAGS += $(CUDA_LDFLAGS)
  LDLIBS += -lcudnn -lcublas -lnccl -lcudart
endif
newest_arch := $(lastword $(CUDA_ARCHS))
GENCODE := $(foreach arch,$(CUDA_ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
           -gencode arch=compute_$(newest_arch),code=compute_$(newest_arch)

# ---- sources ----------------------------------------------------------------------------------------
# A backend's folders, or where it is not built the files that say so.
backend_sources = $(if $(filter $(2),$(BACKENDS)),$(wildcard $(1)/$(2)/*.cpp $(1)/$(2)/*.cu),$(wildcard $(1)/$(2)_absent.cpp))
room_sources = $(filter-out %_absent.cpp,$(wildcard $(1)/*.cpp)) \
               $(call backend_sources,$(1),cpu) $(call backend_sources,$(1),gpu)
PROGRAM_SOURCES := training/train.cpp training/compare.cpp collectives/collective_perf.cpp collectives/link_matrix.cpp
LIBRARY := $(call room_sources,common) $(call room_sources,resnet) \
           $(filter-out $(PROGRAM_SOURCES),$(wildcard training/*.cpp training/*/*.cpp)) \
           $(filter-out $(PROGRAM_SOURCES),$(call room_sources,collectives)) $(wildcard collectives/operations/*.cpp)
# collective_perf under nccl-tests' names, whose options and table it then has
NCCL_TESTS := all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter sendrecv
TEST_SOURCES := $(wildcard tests/*/*_test.cpp)
MPI_TEST_SOURCES := $(wildcard tests/*/*_mpitest.cpp)
TEST_SUPPORT := $(wildcard tests/*.cpp tests/reference/*.cpp)

object = $(patsubst %,$(BUILD)/%.o,$(1))
LIBRARY_OBJECTS := $(call object,$(LIBRARY))
TEST_OBJECTS := $(call object,$(TEST_SOURCES) $(TEST_SUPPORT))
MPI_TEST_OBJECTS := $(call object,$(MPI_TEST_SOURCES) $(TEST_SUPPORT))
BINARIES := $(addprefix $(BIN)/,$(notdir $(PROGRAM_SOURCES:.cpp=)))
NCCL_TESTS := $(NCCL_TESTS:%=$(BIN)/%_perf)
TESTS := $(BUILD)/unit_tests $(BUILD)/mpi_tests

# ---- building ---------------------------------------------------------------------------------------
ifneq ($(V),1)
  quiet = @echo '$(1) $@';
endif
.PHONY: all tests
all: $(BINARIES) $(NCCL_TESTS)
	@mkdir -p runs
tests: all $(TESTS)

$(foreach source,$(PROGRAM_SOURCES),$(eval $(BIN)/$(basename $(notdir $(source))): $(LIBRARY_OBJECTS) $(call object,$(source))))
$(BINARIES):
	@mkdir -p $(@D)
	$(call quiet,link) $(MPICXX) $(CXXFLAGS) -fopenmp $(LDFLAGS) $^ -o $@ $(LDLIBS)

$(NCCL_TESTS): $(BIN)/collective_perf
	@ln -sf collective_perf $@

# Every element of every message passes through these loops.
$(BUILD)/collectives/cpu/%.o: CXXFLAGS += -O3
# Tests are compiled once and run for seconds.
$(TEST_OBJECTS) $(MPI_TEST_OBJECTS): CXXFLAGS := $(subst -O2,-O1,$(CXXFLAGS))
$(BUILD)/unit_tests: $(LIBRARY_OBJECTS) $(TEST_OBJECTS)
$(BUILD)/mpi_tests: $(LIBRARY_OBJECTS) $(MPI_TEST_OBJECTS)
$(TESTS):
	$(call quiet,link) $(MPICXX) $(CXXFLAGS) -fopenmp $(LDFLAGS) $^ -o $@ $(LDLIBS) $(CATCH_LIBS)

# Every object depends on the flags, so that another backend or option rebuilds what it must.
$(BUILD)/%.cpp.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	$(call quiet,c++ ) $(MPICXX) -std=c++20 $(CPPFLAGS) $(CXXFLAGS) -fopenmp $(WARNINGS) -MMD -MP -c $< -o $@

$(BUILD)/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(call quiet,nvcc) $(NVCC) -std=c++20 $(CPPFLAGS) $(NVCCFLAGS) $(GENCODE) -Xcompiler=-Wall,-Wextra -MMD -MP -c $< -o $@

# Files rewritten only when their text changes.
hash := \#
rewrite = $(shell mkdir -p $(BUILD); printf '%s\n' '$(2)' | cmp -s - $(1) || printf '%s\n' '$(2)' > $(1))
REVISION ?= $(shell git describe --always --dirty 2>/dev/null || echo unknown)
$(call rewrite,$(BUILD)/git_revision.hpp,$(hash)define SHAKEDOWN_GIT_REVISION "$(REVISION)")
$(call rewrite,$(BUILD)/flags,$(MPICXX) $(CPPFLAGS) $(CXXFLAGS) $(NVCC) $(NVCCFLAGS) $(GENCODE))
$(BUILD)/flags: ;

-include $(LIBRARY_OBJECTS:.o=.d) $(TEST_OBJECTS:.o=.d) $(MPI_TEST_OBJECTS:.o=.d) \
         $(PROGRAM_SOURCES:%=$(BUILD)/%.d)

# ---- everything in one command ------------------------------------------------------------------
# The set-up may change what this machine can build: make starts anew behind it, on all cores.
anew = $(MAKE) $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))
.PHONY: setup bench test run-bench run-tests
setup:
	launch/setup
bench: setup
	+$(anew) run-bench
run-bench: all
	launch/bench
test: setup
	+$(anew) run-tests
run-tests: tests
	tests/run $(BUILD)

# ---- for developers -----------------------------------------------------------------------------
.PHONY: check doctor format tidy sanitize readme clean help
FORMATTED = $(shell git ls-files --cached --others --exclude-standard '*.cpp' '*.hpp' '*.cu' '*.cuh')

check:
	tests/check_tree
	@clang-format --dry-run -Werror $(FORMATTED)
doctor:
	@launch/machine doctor
format:
	@clang-format -i $(FORMATTED)
tidy: all
	clang-tidy --quiet $(filter-out %.cu,$(LIBRARY) $(PROGRAM_SOURCES)) -- -std=c++20 $(CPPFLAGS) -fopenmp \
	  $(shell $(MPICXX) --showme:compile)

# Leaks are not looked for: MPI keeps memory of its own until the end.
sanitize:
	+$(MAKE) BACKENDS=cpu BUILD=build/sanitize BIN=build/sanitize/bin \
	  CXXFLAGS="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined" tests
	ASAN_OPTIONS=detect_leaks=0 launch/mpi -n 1 build/sanitize/unit_tests
	ASAN_OPTIONS=detect_leaks=0 launch/mpi -n 2 build/sanitize/mpi_tests '[communicator],[bench]'

# Renews README's option tables from the programs.
readme: all
	tests/check_tree --renew-readme

clean:
	rm -rf $(BUILD) $(BIN)

help:
	@echo 'make bench     set up, build, run the main job on what this machine has, report'
	@echo 'make test      set up, build, run all tests'
	@echo 'make setup     install what is missing; make doctor only looks'
	@echo 'make           build: BACKENDS="cpu gpu" CUDA_ARCHS="90" CUDA_HOME=... as wanted'
	@echo 'make check     rules of the tree, formatting; make format mends the latter'
	@echo 'make tidy      clang-tidy; make sanitize  unit tests under ASan and UBSan'
	@echo 'make readme    renew the option tables; make clean  remove what was built'
