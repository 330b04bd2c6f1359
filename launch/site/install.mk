# make install, install-strip, uninstall, dist. What is installed is what was built: no program is compiled or looked
# for here, so that root may install what a user built. Python's modules are byte-compiled, as their
# users may not write there.
#   bin/                   shakedown, shakedown-COMMAND (the only names in PATH)
#   libexec/shakedown/     programs, launch/, training/{recipes,convert_weights.py}, and results/, a link to share/shakedown/
#   share/shakedown/       report, schema, reference figures, module file
PREFIX ?= /usr/local
bindir ?= $(PREFIX)/bin
libexecdir ?= $(PREFIX)/libexec
datadir ?= $(PREFIX)/share
mandir ?= $(datadir)/man
completionsdir ?= $(datadir)/bash-completion/completions

ifneq ($(filter install install-strip uninstall,$(MAKECMDGOALS)),)
$(foreach folder,DESTDIR PREFIX bindir libexecdir datadir mandir completionsdir,$(if $(filter-out 1,$(words x$($(folder)))),\
  $(error $(folder)=$($(folder)): must be one path without spaces)))
$(foreach folder,PREFIX bindir libexecdir datadir mandir completionsdir,$(if $(filter-out /%,$($(folder))),\
  $(error $(folder)=$($(folder)): must be an absolute path)))
endif

programs = $(BINARIES) $(BIN)/judge
commands = mpi acceptance bench experiments variants report doctor $(subst _,-,$(notdir $(programs)))
home = $(DESTDIR)$(libexecdir)/shakedown
share = $(DESTDIR)$(datadir)/shakedown
module = $(share)/modulefiles/shakedown/$(VERSION)
fill = sed -e 's|@HOME@|$(libexecdir)/shakedown|g; s|@BIN@|$(bindir)|g; s|@MAN@|$(mandir)|g; s|@VERSION@|$(VERSION)|g'

.PHONY: install install-strip uninstall dist
define remove
rm -rf $(home) $(share)
rm -f $(foreach name,shakedown $(commands:%=shakedown-%),$(DESTDIR)$(bindir)/$(name) \
  $(DESTDIR)$(mandir)/man1/$(name).1 $(DESTDIR)$(completionsdir)/$(name))
endef

install:
	@for program in $(programs); do \
	  [[ -x $$program ]] || { echo "make install: $$program is missing: run make first" >&2; exit 2; }; \
	done
	@PYTHONPATH=results python3 -m reporting.interpreter  # refuses an older one
	@$(remove)
	@install -d $(home)/bin $(home)/build $(home)/training $(share)/modulefiles/shakedown \
	  $(DESTDIR)$(bindir) $(DESTDIR)$(mandir)/man1 $(DESTDIR)$(completionsdir)
	@install $(stripped) $(programs) $(home)/bin
	@for name in $(notdir $(NCCL_TESTS)); do ln -s collective_perf $(home)/bin/$$name; done
	@install -m 644 $(BUILD)/machine.mk $(home)/build
	@install -m 644 VERSION $(home)
	@tar -c --exclude=__pycache__ --exclude=launch/site --exclude=launch/setup --exclude=launch/node --exclude='*.[ch]pp' launch training/recipes | tar -xC $(home) --no-same-owner
	@sed -i 's|$${SHAKEDOWN:-$$SLURM_SUBMIT_DIR}|$${SHAKEDOWN:-$(libexecdir)/shakedown}|' $(home)/launch/slurm/*.sbatch
	@install training/convert_weights.py $(home)/training
	@tar -cC results --exclude=__pycache__ report reporting schema.json $(notdir $(wildcard results/reference)) | \
	  tar -xC $(share) --no-same-owner
	@ln -s $(shell realpath -m --relative-to=$(libexecdir)/shakedown $(datadir)/shakedown) $(home)/results
	@$(fill) launch/site/modulefile > $(module)
	@$(fill) launch/site/shakedown > $(DESTDIR)$(bindir)/shakedown
	@chmod 755 $(DESTDIR)$(bindir)/shakedown
	@for name in $(commands); do ln -s shakedown $(DESTDIR)$(bindir)/shakedown-$$name; done
	@launch/site/pages $(home) $(VERSION) $(DESTDIR)$(mandir)/man1 $(DESTDIR)$(completionsdir)
	@python3 -m compileall -q -s '$(DESTDIR)' -p / $(home)/launch $(share)/reporting
	@chmod -R u+w,go-w,a+rX $(home) $(share)
	@echo 'installed: $(DESTDIR)$(bindir)/shakedown; module use $(datadir)/shakedown/modulefiles'

# Without debug information.
install-strip: stripped := -s
install-strip: install

uninstall:
	@$(remove)

# Of the commit HEAD; .gitattributes names what only this repository needs.
archive := shakedown-$(VERSION).tar.gz
dist:
	@mkdir -p $(BUILD)/dist
	@git describe --always > $(BUILD)/dist/REVISION
	@git diff --quiet HEAD || echo 'make dist: the tree has changes that are not committed: they are not in $(archive)' >&2
	git archive --format=tar.gz --prefix=shakedown-$(VERSION)/ --add-file=$(BUILD)/dist/REVISION -o $(archive) HEAD
