# Shakedown. `make bench` and `make test` do everything from a clean clone; `make help` lists the rest.
# Variables: BACKENDS="cpu gpu", CUDA_ARCHS="90", CUDA_HOME, CUDNN_HOME, NCCL_HOME, DNNL_HOME, BUILD (objects),
# MPICXX, NVCC, CXX (which MPICXX and nvcc call), NVCC_CCBIN, CPPFLAGS, CXXFLAGS, NVCCFLAGS, LDFLAGS, LDLIBS
# (added to what is needed), PREFIX and DESTDIR (of `make install`), REVISION; V=1 prints the commands.

.DEFAULT_GOAL := all
SHELL := /bin/bash
BUILD ?= build
BIN := bin
VERSION := $(file <VERSION)
hash := \#
quoted = '$(subst ','\'',$(1))'

# The host's compiler: MPICXX's and nvcc's own, unless CXX is given.
MPICXX ?= mpicxx
ifneq ($(origin CXX),default)
  host_cxx := $(CXX)
  export OMPI_CXX ?= $(CXX)
  export MPICH_CXX ?= $(CXX)
endif
ccbin := $(addprefix -ccbin=,$(or $(NVCC_CCBIN),$(lastword $(host_cxx))))

# ---- what this machine can build: launch/machine looks, launch/setup installs ---------------------
NEEDS_NOTHING := sites aarch64-test setup bench test check doctor format clean help dist install install-strip uninstall
ifneq ($(filter-out $(NEEDS_NOTHING),$(or $(MAKECMDGOALS),all)),)
  builds := yes
  places := LIGHT BACKENDS CUDA_ARCHS CUDA_HOME CUDNN_HOME NCCL_HOME DNNL_HOME MPICXX NVCC CPPFLAGS LDFLAGS
  $(shell mkdir -p $(BUILD) && CXX=$(call quoted,$(host_cxx)) \
    $(foreach place,$(places),$(if $($(place)),$(place)=$(call quoted,$($(place))))) \
    launch/machine make > $(BUILD)/machine.mk)
  include $(BUILD)/machine.mk
  ifneq ($(MISSING_PACKAGES)$(MISSING_BACKEND),)
    $(error $(or $(MISSING_PACKAGES),$(MISSING_BACKEND)))
  endif
  ifneq ($(CHOSEN),)
    $(info $(CHOSEN))
  endif
endif

# ---- flags ------------------------------------------------------------------------------------------
# CPPFLAGS, CXXFLAGS, NVCCFLAGS, LDFLAGS and LDLIBS are the user's, and only read here.
cold_cxxflags := $(or $(CXXFLAGS),-Og -g1)  # of tests, rules and texts: a third less to compile, and nobody waits for them
CXXFLAGS ?= -O2 -g1
NVCCFLAGS ?= -O3 -lineinfo
# Products and sums are rounded one by one, as everywhere: the same bits on Arm, and with -march of a processor that fuses them.
always := -fopenmp -ffp-contract=off
cxxflags = $(CXXFLAGS) $(always)
# Of GCC 13 in fmt 9: fmtlib/fmt#3533. clang does not know them, and notes each loop that it does not vectorize.
WARNINGS := -Wall -Wextra -Wpedantic -Wno-array-bounds -Wno-stringop-overflow -Wno-unknown-warning-option -Wno-pass-failed
cppflags := -I. -I$(BUILD) $(CPPFLAGS) -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $(FOUND_CPPFLAGS)
# Of a backend's libraries: for its folders alone, so that another backend recompiles no other file.
in_folders = $(foreach file,$(2),$(if $(filter $(1),$(subst /, ,$(dir $(file)))),$(file)))
vendor_cppflags = $(foreach backend,$(BACKENDS),$(if $(call in_folders,$(backend),$(1)),$(FOUND_CPPFLAGS_$(backend))))
nvcc_cppflags = $(filter-out -W% -f% -m%,$(cppflags) $(FOUND_CPPFLAGS_gpu))  # distributions put the compiler's own flags there
# Wherever the tree lies, the same objects.
prefix_map := $(call quoted,-ffile-prefix-map=$(CURDIR)=.)
ldflags := -Wl,--as-needed $(LDFLAGS) $(FOUND_LDFLAGS)
compressed := -gz  # debug information: of a program's 20 MB 18
ldlibs := $(FOUND_LIBS) -ldl -lpthread $(LDLIBS)
newest_arch := $(lastword $(CUDA_ARCHS))
GENCODE := $(foreach arch,$(CUDA_ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
           -gencode arch=compute_$(newest_arch),code=compute_$(newest_arch)
nvcc_flags = $(nvcc_cppflags) $(NVCCFLAGS) -Xfatbin=-compress-all $(GENCODE) $(ccbin) -Xcompiler=-Wall,-Wextra

# ---- sources ----------------------------------------------------------------------------------------
# A backend's folders, or where it is not built the files that say so.
backend_sources = $(if $(filter $(2),$(BACKENDS)),$(wildcard $(1)/$(2)/*.cpp $(1)/$(2)/*.cu),$(wildcard $(1)/$(2)_absent.cpp))
room_sources = $(filter-out %_absent.cpp,$(wildcard $(1)/*.cpp)) \
               $(call backend_sources,$(1),cpu) $(call backend_sources,$(1),gpu)
PROGRAM_SOURCES := training/programs/train.cpp training/programs/compare.cpp collectives/collective_perf.cpp collectives/link_matrix.cpp \
                   $(wildcard launch/node/*.cpp)
# A room is an archive: of it a program has what it calls, and of the others nothing.
ROOMS := training node collectives resnet common  # each before those that it calls
# What knows MPI is one unit: it alone is compiled again for another one (tests/sites).
sources_common := $(wildcard common/mpi_*.cpp) $(filter-out common/mpi_%,$(call room_sources,common)) $(wildcard common/judge/*.cpp common/operands/*.cpp)
sources_resnet := $(call room_sources,resnet)
sources_collectives := $(filter-out $(PROGRAM_SOURCES),$(call room_sources,collectives)) $(wildcard collectives/perf/*.cpp collectives/links/*.cpp)
sources_training := $(filter-out $(PROGRAM_SOURCES),$(foreach folder,$(wildcard training/*),$(call room_sources,$(folder))))
sources_node := $(foreach folder,$(wildcard launch/node/* launch/node/health/*),$(call room_sources,$(folder)))
LIBRARY = $(foreach room,$(ROOMS),$(sources_$(room)))
rooms_of_training := training resnet common
rooms_of_collectives := collectives common
rooms_of_launch := node common
# collective_perf under nccl-tests' names, whose options and table it then has
NCCL_TESTS := all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter sendrecv alltoallv hypercube
TEST_SOURCES := $(wildcard tests/*/*_test.cpp $(patsubst %,tests/*/%/*_test.cpp,$(filter cpu gpu,$(BACKENDS))))
MPI_TEST_SOURCES := $(wildcard tests/*/*_mpitest.cpp)
TEST_SUPPORT := $(wildcard tests/*.cpp tests/support/*.cpp tests/reference/*.cpp)

object = $(patsubst %,$(BUILD)/%.o,$(1))
archives = $(patsubst %,$(BUILD)/lib%.a,$(1))
# Units of eight files of a folder: what they all include is read once, which halves the time of a clean build. With UNITY=0
# each file is its own, for who works on them: it stays so while these objects exist.
UNITY ?= $(if $(wildcard $(BUILD)/common/mpi_session.cpp.o),0,1)
UNITY := $(UNITY)
# In some builds alone; with a main; what tests replace; what bin/judge, which has no MPI, has of common/, and what it has not.
ALONE := %_absent.cpp tests/main.cpp collectives/measurers.cpp common/judge/visits.cpp \
         $(addprefix common/,error.cpp nvml.cpp nvml_library.cpp options.cpp options_parsing.cpp output_file.cpp record.cpp statistics.cpp text_table.cpp types.cpp)
in_units = $(if $(filter-out 0,$(UNITY)),$(filter-out $(ALONE),$(filter %.cpp,$(1))))
objects = $(foreach folder,$(sort $(dir $(call in_units,$(1)))),\
            $(call units,$(folder),$(foreach file,$(call in_units,$(1)),$(if $(filter $(folder),$(dir $(file))),$(file))))) \
          $(call object,$(filter-out $(call in_units,$(1)),$(1)))
units = $(if $(2),$(call unit,$(1)$(words $(3)),$(wordlist 1,8,$(2))) $(call units,$(1),$(wordlist 9,$(words $(2)),$(2)),$(3) x))
unit = $(eval unit_$(1) := $(2))$(BUILD)/unity/$(1).cpp.o
EMBEDDED := $(wildcard results/reference/*.json)  # boards, limits and references, which the programs carry
LIBRARY_OBJECTS := $(foreach room,$(ROOMS),$(call objects,$(sources_$(room)))) $(BUILD)/embedded.cpp.o
TEST_OBJECTS := $(call objects,$(TEST_SOURCES)) $(call objects,$(TEST_SUPPORT))
MPI_TEST_OBJECTS := $(call object,$(MPI_TEST_SOURCES)) $(call objects,$(TEST_SUPPORT))
BINARIES := $(addprefix $(BIN)/,$(notdir $(PROGRAM_SOURCES:.cpp=)))
NCCL_TESTS := $(NCCL_TESTS:%=$(BIN)/%_perf)
TESTS := $(BUILD)/unit_tests $(BUILD)/mpi_tests
INJECTED := $(addprefix $(BUILD)/injected/,collective_perf link_matrix)
injecting := $(call object,tests/collectives/injected.cpp tests/support/injection.cpp tests/support/injected_data.cpp)
FAULTY := $(patsubst cpu,$(BUILD)/libfaulty_cpu.so,$(patsubst gpu,$(BUILD)/libfaulty.so,$(BACKENDS)))

# ---- building ---------------------------------------------------------------------------------------
ifneq ($(V),1)
  quiet = @echo '$(1) $@';
endif
compile = $(MPICXX) -std=c++20 $(cppflags) $(call vendor_cppflags,$*) $(cxxflags) $(prefix_map) $(WARNINGS)
link = $(call quiet,link) $(MPICXX) $(cxxflags) $(ldflags) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(ldlibs)
.PHONY: all tests
all: $(BINARIES) $(NCCL_TESTS) $(BIN)/judge
tests: all $(TESTS) $(INJECTED) $(FAULTY)

$(foreach room,$(ROOMS),$(eval $(call archives,$(room)): $(call objects,$(sources_$(room)))))
$(BUILD)/libcommon.a: $(BUILD)/embedded.cpp.o
$(call archives,$(ROOMS)): $(BUILD)/link_flags
	@rm -f $@
	$(call quiet,ar  ) $(AR) rcsT $@ $(filter %.o,$^)

$(foreach source,$(PROGRAM_SOURCES),$(eval $(BIN)/$(basename $(notdir $(source))): \
  $(call object,$(source)) $(call archives,$(rooms_of_$(firstword $(subst /, ,$(source)))))))
$(BINARIES): $(BUILD)/link_flags
	@mkdir -p $(@D)
	$(link) $(compressed)

# Without MPI and backends: for any machine that has records.
$(BIN)/judge: $(BUILD)/launch/judge.cpp.o $(BUILD)/libcommon.a $(BUILD)/link_flags
	@mkdir -p $(@D)
	$(link) $(compressed)

$(NCCL_TESTS): $(BIN)/collective_perf
	@ln -sf collective_perf $@

# Every element of every message passes through these loops.
$(BUILD)/collectives/cpu/%.o $(BUILD)/unity/collectives/cpu/%.o: cxxflags += -O3
cold := launch/node/health/% launch/node/monitor/% training/programs/%
$(TEST_OBJECTS) $(MPI_TEST_OBJECTS) $(injecting) $(cold:%=$(BUILD)/%.o) $(cold:%=$(BUILD)/unity/%.o): cxxflags = $(cold_cxxflags) $(always)
$(BUILD)/unit_tests: $(TEST_OBJECTS) $(BUILD)/fake_nvml.so
$(BUILD)/mpi_tests: $(MPI_TEST_OBJECTS)
$(TESTS): $(call archives,$(ROOMS)) $(BUILD)/link_flags
	$(link) $(CATCH_LIBS)

# Late or wrong, for tests: these objects come before the archive's.
$(INJECTED): $(BUILD)/injected/%: $(BUILD)/collectives/%.cpp.o $(injecting) $(call archives,$(rooms_of_collectives)) $(BUILD)/link_flags
	@mkdir -p $(@D)
	$(link)

# Kernels run alone on a GPU, for whoever changes them: tests/kernels. In no other target.
TIMING := $(call object,$(wildcard tests/timing/gpu/*.cpp))
$(BUILD)/kernels: $(TIMING) $(call archives,$(ROOMS)) $(BUILD)/link_flags
	$(link)

# wgmma is sm_90a's alone, and gram_statistics is used with it: on other GPUs these files' kernels are not found, and not used.
$(foreach file,gram_products wide_block_ends,$(BUILD)/resnet/gpu/$(file).cu.o): GENCODE := -gencode arch=compute_90a,code=sm_90a

# In NVML's place, for tests of what reads GPUs.
$(BUILD)/fake_nvml.so: tests/common/fake_nvml.cpp common/nvml_library.hpp $(BUILD)/flags
	$(call quiet,link) $(MPICXX) -std=c++20 $(cppflags) $(cold_cxxflags) -shared -fPIC $< -o $@

# What tests/faulty/run preloads. Nothing of a vendor's is linked, nor C++'s: a tool brings its own version of it.
faulty = $(call quiet,link) $(MPICXX) -std=c++20 $(cppflags) $(FOUND_CPPFLAGS_$(1)) $(cold_cxxflags) $(WARNINGS) -shared -fPIC \
         -static-libstdc++ -static-libgcc -Wl,-z,lazy,--as-needed,--version-script=tests/faulty/exports $(filter %.cpp,$^) -o $@ -ldl -lpthread
faulty_sources := tests/faulty/model.cpp
faulty_headers := $(wildcard tests/faulty/*.hpp tests/faulty/gpu/*.hpp) tests/faulty/exports common/numbers.hpp
$(BUILD)/libfaulty_cpu.so: $(faulty_sources) $(wildcard tests/faulty/cpu/*.cpp) $(faulty_headers) $(BUILD)/flags
	$(call faulty,cpu)
$(BUILD)/libfaulty.so: $(faulty_sources) $(wildcard tests/faulty/gpu/*.cpp) $(faulty_headers) $(BUILD)/faulty.fatbin $(BUILD)/flags
	$(call faulty,gpu) '-DFAULTY_KERNELS="$(BUILD)/faulty.fatbin"'
$(BUILD)/faulty.fatbin: tests/faulty/gpu/kernels.cu $(faulty_headers) $(BUILD)/nvcc_flags
	$(call quiet,nvcc) $(NVCC) -std=c++20 $(nvcc_flags) -fatbin $< -o $@
# Where blocks run, by the Compute Sanitizer's API. In no other target: few machines have it.
SANITIZER ?= /usr/local/cuda/compute-sanitizer
$(BUILD)/libplacement.so: tests/faulty/placement/placement.cpp $(BUILD)/placement.fatbin
	$(call quiet,link) $(MPICXX) -std=c++20 $(cppflags) $(FOUND_CPPFLAGS_gpu) -I$(SANITIZER)/include $(cold_cxxflags) $(WARNINGS) -shared -fPIC $< -o $@ \
	  '-DPLACEMENT_PATCH="$(abspath $(BUILD))/placement.fatbin"' -L$(SANITIZER) -lsanitizer-public -Wl,-rpath,$(SANITIZER)
$(BUILD)/placement.fatbin: tests/faulty/placement/patch.cu tests/faulty/placement/placement.hpp $(BUILD)/nvcc_flags
	$(call quiet,nvcc) $(NVCC) -std=c++20 $(nvcc_flags) -I$(SANITIZER)/include -fatbin --compile-as-tools-patch $< -o $@

# Every object and program depends on its flags, so that another backend or option rebuilds what it must.
$(foreach backend,$(BACKENDS),$(eval $(foreach sources,$(ROOMS:%=sources_%) TEST_SOURCES,\
  $(call objects,$(call in_folders,$(backend),$(filter %.cpp,$($(sources)))))): $(BUILD)/$(backend)_flags))
$(BUILD)/%.cpp.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	$(call quiet,c++ ) $(compile) -MMD -MP -c $< -o $@
# Of what is written here. To GCC an anonymous namespace of a file that is included is a header's.
$(BUILD)/%.cpp.o: $(BUILD)/%.cpp $(BUILD)/flags
	$(call quiet,c++ ) $(compile) -Wno-subobject-linkage -MMD -MP -c $< -o $@

$(BUILD)/%.cu.o: %.cu $(BUILD)/nvcc_flags
	@mkdir -p $(@D)
	$(call quiet,nvcc) $(NVCC) -std=c++20 $(nvcc_flags) -Xcompiler=$(prefix_map) -MMD -MP -c $< -o $@

# A raw string per line: each far shorter than what a compiler must take.
$(BUILD)/embedded.cpp: $(EMBEDDED) $(BUILD)/embedded_names
	@{ echo '#include "common/judge/court.hpp"'; echo 'std::map<std::string, std::string> shakedown::judge::embedded_files() {'; \
	   echo '  std::map<std::string, std::string> files;'; \
	   for file in $(EMBEDDED); do echo "  { std::string& text = files[\"$${file##*/}\"];"; \
	     sed 's/.*/text += R"json(&\n)json";/' $$file; echo '  }'; done; echo '  return files; }'; } > $@

# Files rewritten only when their lines change. An archive of the tree has the revision that `make dist`
# wrote, never that of a repository around it.
REVISION ?= $(shell if [[ -e .git ]]; then git describe --always --dirty; else cat REVISION; fi 2>/dev/null || echo unknown)
rewrite = $(shell mkdir -p $(BUILD); printf '%s\n' $(2) | cmp -s - $(1) || printf '%s\n' $(2) > $(1))
define_text = $(call quoted,$(hash)define SHAKEDOWN_$(1) "$(2)")
ifdef builds
$(call rewrite,$(BUILD)/git_revision.hpp,$(call define_text,GIT_REVISION,$(REVISION)) \
  $(call define_text,VERSION,$(VERSION)) \
  $(call define_text,CUDA_ARCHS,$(if $(filter gpu,$(BACKENDS)),$(CUDA_ARCHS))))
$(call rewrite,$(BUILD)/flags,$(call quoted,$(MPICXX) $(host_cxx) $(cppflags) $(cxxflags) $(cold_cxxflags)))
$(foreach backend,$(BACKENDS),$(call rewrite,$(BUILD)/$(backend)_flags,$(call quoted,$(FOUND_CPPFLAGS_$(backend)))))
$(if $(filter gpu,$(BACKENDS)),$(call rewrite,$(BUILD)/nvcc_flags,$(call quoted,$(NVCC) $(nvcc_flags))))
$(call rewrite,$(BUILD)/link_flags,$(call quoted,$(MPICXX) $(host_cxx) $(cxxflags) $(ldflags) $(ldlibs) $(LIBRARY_OBJECTS)))
$(call rewrite,$(BUILD)/embedded_names,$(EMBEDDED))
UNITS := $(sort $(filter $(BUILD)/unity/%,$(LIBRARY_OBJECTS) $(TEST_OBJECTS) $(MPI_TEST_OBJECTS)))
# Written only where it has other files. (make 4.3's $(file <) reads wrongly now and then.)
$(if $(UNITS),$(shell mkdir -p $(sort $(dir $(UNITS))); \
  unit() { local text; text=$$(printf '$(hash)include "%s"\n' "$${@:2}"); [[ -e $$1 && $$(<$$1) == "$$text" ]] || echo "$$text" >$$1; }; \
  $(foreach unit,$(UNITS:$(BUILD)/unity/%.cpp.o=%),unit $(BUILD)/unity/$(unit).cpp $(unit_$(unit));)))
-include $(LIBRARY_OBJECTS:.o=.d) $(TIMING:.o=.d) $(injecting:.o=.d) $(TEST_OBJECTS:.o=.d) $(MPI_TEST_OBJECTS:.o=.d) \
         $(PROGRAM_SOURCES:%=$(BUILD)/%.d) $(BUILD)/launch/judge.cpp.d
endif
$(addprefix $(BUILD)/,flags cpu_flags gpu_flags nvcc_flags link_flags embedded_names): ;

# ---- one backend alone --------------------------------------------------------------------------
# The programs link without either backend: each one's *_absent.cpp has all that the other rooms call.
ABSENT := $(wildcard */*_absent.cpp training/*/*_absent.cpp launch/node/*/*_absent.cpp)
no_backend := $(addprefix $(BUILD)/no_backend/,$(notdir $(PROGRAM_SOURCES:.cpp=)))
.PHONY: no_backend
no_backend: $(no_backend)
$(foreach source,$(PROGRAM_SOURCES),$(eval $(BUILD)/no_backend/$(basename $(notdir $(source))): $(call object,$(source))))
$(no_backend): $(BUILD)/embedded.cpp.o $(sort $(foreach room,$(ROOMS),$(call objects,$(filter-out $(call in_folders,cpu gpu,$(sources_$(room))),$(sources_$(room))))) $(call object,$(ABSENT)))
	@mkdir -p $(@D)
	$(call quiet,link) $(MPICXX) $(cxxflags) $(ldflags) $(filter %.o,$^) -o $@ $(filter-out -ldnnl -lcudnn -lcublas -lcublasLt -lnccl -lcudart,$(ldlibs))

# ---- everything in one command ------------------------------------------------------------------
# The set-up may change what this machine can build: make starts again after it, on all cores.
# LIGHT=1: without a GPU the cpu backend alone; `make LIGHT= test` also compiles what cannot run here.
light := LIGHT=$(if $(filter undefined,$(origin LIGHT)),1,$(LIGHT))
anew = $(MAKE) $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))
.PHONY: setup bench test run-bench run-tests
setup:
	launch/setup
bench: setup
	+$(anew) $(light) run-bench
run-bench: $(BIN)/train $(BIN)/compare
	launch/bench
test: setup
	+$(anew) $(light) run-tests
run-tests: tests
	tests/run $(BUILD)

# Other MPIs, each from public packages in a folder of its own: half an hour.
.PHONY: sites
sites:
	tests/sites/run

# The CPU backend for 64-bit Arm, by a cross-compiler and qemu-user: half an hour on two idle cores.
.PHONY: aarch64-test
aarch64-test:
	tests/sites/aarch64

# Two-node Slurm clusters on this machine; the time limits, too, which last minutes.
.PHONY: slurm-test
slurm-test: all
	for file in tests/slurm/*_test.py; do SHAKEDOWN_LONG_TESTS=1 python3 $$file || exit; done

include launch/site/install.mk

# ---- for developers -----------------------------------------------------------------------------
.PHONY: check doctor format tidy sanitize sanitize-threads fuzz docs clean help
FORMATTED = $(shell find common resnet training collectives launch/node tests -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh')

# Each source by itself: units of several hide an include that is missing.
alone := $(patsubst %,alone/%,$(filter %.cpp,$(LIBRARY)))
.PHONY: alone $(alone)
alone: $(alone)
$(alone): alone/%: $(BUILD)/flags
	$(call quiet,look) $(compile) -fsyntax-only $*

check:
	tests/check_tree
	@clang-format --dry-run -Werror $(FORMATTED)
doctor:
	@launch/machine doctor
format:
	@clang-format -i $(FORMATTED)
# Open MPI's way to say it, and MPICH's.
mpi_cppflags = $(filter -I% -D%,$(shell $(MPICXX) --showme:compile 2>/dev/null || $(MPICXX) -compile_info 2>/dev/null))
tidy: all
	clang-tidy --quiet $(filter-out %.cu,$(LIBRARY) $(PROGRAM_SOURCES)) -- -std=c++20 $(cppflags) $(FOUND_CPPFLAGS_cpu) $(FOUND_CPPFLAGS_gpu) -fopenmp $(mpi_cppflags)

# For clangd and the like, which know nothing of mpicxx.
json_text = "$(subst ",\",$(subst \,\\,$(1)))"
entry = {"directory": $(call json_text,$(CURDIR)), "file": "$(1)", "command": $(call json_text,$(2) -std=c++20 $(3) -c $(1))}
.PHONY: compile_commands.json
compile_commands.json:
	$(file >$@)
	$(foreach source,$(filter %.cpp,$(LIBRARY) $(PROGRAM_SOURCES) $(TEST_SOURCES) $(MPI_TEST_SOURCES) $(TEST_SUPPORT)),\
	  $(file >>$@,$(call entry,$(source),c++,$(mpi_cppflags) $(cppflags) $(call vendor_cppflags,$(source)) $(cxxflags) $(WARNINGS))))
	$(foreach source,$(filter %.cu,$(LIBRARY)),$(file >>$@,$(call entry,$(source),$(NVCC),$(nvcc_cppflags) $(NVCCFLAGS))))
	@sed -i '$$!s/$$/,/; 1s/^/[/; $$s/$$/]/' $@

# Leaks are not looked for: MPI keeps memory of its own until the end. Recipes lie next to the folder of the tests.
sanitize:
	+$(MAKE) BACKENDS=cpu BUILD=build-sanitize BIN=build-sanitize/bin \
	  CXXFLAGS="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined" tests
	ASAN_OPTIONS=detect_leaks=0 launch/mpi -n 1 build-sanitize/unit_tests
	ASAN_OPTIONS=detect_leaks=0 launch/mpi -n 2 build-sanitize/mpi_tests '[communicator],[bench]'

# Of training/, what reads data and what that needs; without MPI under the sanitizer.
data_alone = ROOMS='training resnet common' sources_training='$$(foreach folder,data exchange,$$(call room_sources,training/$$(folder)))'
sanitize-threads:  # the loader's
	+$(MAKE) BACKENDS=cpu BUILD=build-sanitize-threads CXXFLAGS="-O1 -g -fsanitize=thread" $(data_alone) \
	  TEST_SOURCES='$$(wildcard tests/training/data_*_test.cpp)' \
	  TEST_SUPPORT='tests/main.cpp $$(addprefix tests/support/,image_files.cpp jpeg.cpp transcript.cpp)' build-sanitize-threads/unit_tests
	TSAN_OPTIONS=ignore_noninstrumented_modules=1 launch/mpi -n 1 build-sanitize-threads/unit_tests '[loader]'

# libFuzzer, on what reads files from elsewhere: each of tests/fuzz for FUZZ_SECONDS, from seeds made here. A finding is
# an input in build-fuzz/fuzz that the fuzzer repeats: build-fuzz/fuzz/NAME FILE.
FUZZ_CXX ?= clang++
FUZZ_SECONDS ?= 600
FUZZERS := image pack tensor_file
fuzz_programs := $(addprefix $(BUILD)/fuzz/,$(FUZZERS) seeds)
$(fuzz_programs): $(BUILD)/fuzz/%: $(BUILD)/tests/fuzz/%.cpp.o $(BUILD)/tests/support/jpeg.cpp.o $(call archives,$(rooms_of_training))
	@mkdir -p $(@D)
	$(link) $(if $(filter %/seeds,$@),,-fsanitize=fuzzer)
fuzz:
	@command -v $(lastword $(FUZZ_CXX)) >/dev/null || { echo 'make fuzz needs clang with libFuzzer: apt-get install clang libomp-dev, or FUZZ_CXX'; exit 1; }
	+OMPI_CXX="$(FUZZ_CXX)" MPICH_CXX="$(FUZZ_CXX)" $(MAKE) BACKENDS=cpu BUILD=build-fuzz $(data_alone) \
	  CXXFLAGS="-O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined" $(fuzz_programs:$(BUILD)/%=build-fuzz/%)
	build-fuzz/fuzz/seeds build-fuzz/fuzz/corpus
	@for name in $(FUZZERS); do log=build-fuzz/fuzz/$$name.log; echo "fuzz $$name for $(FUZZ_SECONDS) s"; \
	  build-fuzz/fuzz/$$name -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=4096 -verbosity=0 -print_final_stats=1 \
	    -artifact_prefix=build-fuzz/fuzz/$$name- build-fuzz/fuzz/corpus/$$name >$$log 2>&1 || { tail -n 40 $$log; exit 1; }; \
	  grep -E 'executed_units|slowest|peak_rss' $$log; done

# Renews docs/options.md from the programs, the table of versions in docs/install.md and that of docs/judge.md.
docs: tests
	docs/pages.py

# Every program meets every fault, and runs on 64 ranks of this machine: about five minutes. tests/run has a part of it.
.PHONY: faults
faults: tests
	tests/faults/run --all
	tests/faults/many_ranks

clean:
	rm -rf $(BUILD) $(BIN) build-sanitize build-sanitize-threads build-fuzz

help:
	@echo 'make bench     set up, build, run the main job on what this machine has, report'
	@echo 'make test      set up, build, run all tests'
	@echo 'make setup     install what is missing; make doctor only reports'
	@echo 'make           build: BACKENDS="cpu gpu" CUDA_ARCHS="90" CUDA_HOME=... as wanted'
	@echo 'make install   copy the programs to PREFIX=/usr/local (DESTDIR=...); make install-strip, uninstall, dist'
	@echo 'make check     rules of the tree, formatting; make format mends the latter'
	@echo 'make alone     compile each source by itself (make UNITY=0 builds so), to find missing includes'
	@echo 'make tidy      clang-tidy; make sanitize  unit tests under ASan and UBSan'
	@echo 'make sanitize-threads  the loader under ThreadSanitizer'
	@echo 'make faults    every program meets every fault, and 64 ranks on this machine'
	@echo 'make fuzz      libFuzzer on image, packed and weights files, FUZZ_SECONDS=600 each'
	@echo 'make sites       builds and runs with Open MPI 5, MPICH and Intel MPI from public packages'
	@echo 'make aarch64-test  the CPU backend for 64-bit Arm: unit tests and programs, under qemu-user'
	@echo 'make slurm-test  job scripts and hooks on a Slurm cluster on this machine, with its time limits'
	@echo 'make compile_commands.json    for clangd; make no_backend   link without any backend'
	@echo 'make docs      renew the pages that repeat the programs; make clean  remove what was built'
