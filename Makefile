# upoll: the C library libupoll, the command upoll with its preload libraries, and their installation.
# Needs cargo, a C compiler, binutils and GNU make.
#
#   make && make install PREFIX=/usr DESTDIR=/tmp/stage
#   make install-lib        the C library alone
#   make install-debug      debug information, for debuggers to find by build ID
#   make deb                Debian packages

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share/upoll
MANDIR ?= $(PREFIX)/share/man
# `upoll run` finds its libraries by the way from its own folder, so these two do not change.
BINDIR := $(PREFIX)/bin
RUNDIR := $(PREFIX)/lib/upoll
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
DEBUGDIR ?= $(PREFIX)/lib/debug
DESTDIR ?=
CC ?= cc
CARGO ?= cargo
INSTALL ?= install
OBJCOPY ?= objcopy
READELF ?= readelf

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
SONAME := libupoll.so.0
CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR
# The command that builds what the rules take from BUILT. CI has one for all, so that nothing is built twice.
UPOLL_BUILD ?=
BUILT ?= $(CARGO_TARGET_DIR)/release
build = $(or $(UPOLL_BUILD),$(CARGO) build --release --locked --quiet --lib --bins $(addprefix -p ,$(1)))
OUT := $(CARGO_TARGET_DIR)/capi
ARCHIVE := $(BUILT)/libupoll_c.a
# What a static library of Rust's needs of the system. The compiler adds its own library for unwinding: which
# one depends on -static.
PRIVATE_LIBS := -lpthread -ldl -lm
LIBRARIES := libupoll_preload.so libupoll_fair.so
PROGRAMS := upoll $(LIBRARIES)
SHELLS := bash zsh fish
# The commands of upoll, each of which prints its own manual page.
COMMANDS := run bench demo soak top completions
COMMAND_PAGES := $(COMMANDS:%=upoll-%.1)

all: lib programs
lib: $(OUT)/libupoll.a $(OUT)/$(SONAME)
programs: $(addprefix $(OUT)/,$(PROGRAMS) $(addprefix upoll.,$(SHELLS)) $(COMMAND_PAGES))

# Splits the debug information of a program or library off: $(1) becomes $(2) and $(2).debug.
split = $(OBJCOPY) --only-keep-debug $(1) $(2).debug && \
	$(OBJCOPY) --strip-unneeded --add-gnu-debuglink=$(2).debug $(1) $(2)

# Cargo knows best whether there is anything to do.
$(ARCHIVE): always
	$(call build,upoll-capi)

.PHONY: built
built: always
	$(call build,upoll-cli upoll-preload upoll-fair)
$(addprefix $(BUILT)/,$(PROGRAMS)): built ;

# The bitcode is for rustc alone.
$(OUT)/libupoll.a: $(ARCHIVE)
	@mkdir -p $(OUT)
	$(OBJCOPY) --strip-debug --remove-section .llvmbc --remove-section .llvmcmd $< $@

$(OUT)/$(SONAME): $(ARCHIVE) crates/upoll-capi/upoll.map include/upoll.h
	@mkdir -p $(OUT)
	$(CC) -shared -o $(OUT)/unsplit.so -Wl,-soname,$(SONAME) -Wl,--version-script=crates/upoll-capi/upoll.map \
		-Wl,--gc-sections -Wl,-z,defs -Wl,-z,nodelete -Wl,--build-id $(LDFLAGS) \
		$(addprefix -Wl$(comma)-u$(comma),$(SYMBOLS)) $(ARCHIVE) $(PRIVATE_LIBS)
	$(call split,$(OUT)/unsplit.so,$@)
	ln -sf $(SONAME) $(OUT)/libupoll.so

$(addprefix $(OUT)/,$(PROGRAMS)): $(OUT)/%: $(BUILT)/%
	@mkdir -p $(OUT)
	$(call split,$<,$@)

$(addprefix $(OUT)/upoll.,$(SHELLS)): $(OUT)/upoll.%: $(OUT)/upoll
	$< completions $* > $@

$(addprefix $(OUT)/,$(COMMAND_PAGES)): $(OUT)/upoll-%.1: $(OUT)/upoll
	$< manual $* > $@

comma := ,
parenthesis := (
# The header names what the library exports.
SYMBOLS := $(shell grep -o '\bupoll_[a-z0-9_]*$(parenthesis)' include/upoll.h | tr -d '$(parenthesis)' | sort -u)

PAGES := $(wildcard man/man[1-9]/*)
# A page has a link for each other name that it is about, as PAGE=NAME. Calls that the C library does
# not have are found by their plain names, too; its own keep their pages.
LINKS := $(shell cd man/man3 && for page in *.3; do \
	sed -n "/^\.Nm $${page%.3}\>/d; s/^\.Nm \([A-Za-z0-9_]*\).*/$$page=\1.3/p" $$page; done) \
	$(foreach name,epoll_ctl_batch epoll_pwait1,upoll_$(name).3=$(name).3)
LINK_NAMES := $(foreach link,$(LINKS),$(lastword $(subst =, ,$(link))))

# Fills in a template: $(1) becomes $(2).
filled = sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	-e 's|@VERSION@|$(VERSION)|; s|@PRIVATE_LIBS@|$(PRIVATE_LIBS)|; s|@SONAME@|$(SONAME)|' \
	-e "s|@TO_INCLUDE@|$$(realpath -m --relative-to=$(CMAKEDIR) $(INCLUDEDIR))|" \
	crates/upoll-capi/$(1).in > $(DESTDIR)$(2)/$(1) && chmod 644 $(DESTDIR)$(2)/$(1)
CMAKEDIR = $(LIBDIR)/cmake/upoll

install: install-lib install-programs

install-lib: lib install-man
	$(INSTALL) -d $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(CMAKEDIR) $(DESTDIR)$(DATADIR)
	$(INSTALL) -m 644 crates/upoll-capi/valgrind.supp $(DESTDIR)$(DATADIR)/valgrind.supp
	$(INSTALL) -m 644 include/upoll.h $(DESTDIR)$(INCLUDEDIR)/upoll.h
	$(INSTALL) -m 644 $(OUT)/libupoll.a $(DESTDIR)$(LIBDIR)/libupoll.a
	$(INSTALL) -m 755 $(OUT)/$(SONAME) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libupoll.so
	$(call filled,upoll.pc,$(LIBDIR)/pkgconfig)
	$(call filled,upoll-config.cmake,$(CMAKEDIR))
	$(call filled,upoll-config-version.cmake,$(CMAKEDIR))

install-man:
	for link in $(LINKS); do \
		$(INSTALL) -d $(DESTDIR)$(MANDIR)/man3 && \
		echo ".so man3/$${link%%=*}" > $(DESTDIR)$(MANDIR)/man3/$${link#*=} && \
		chmod 644 $(DESTDIR)$(MANDIR)/man3/$${link#*=} || exit 1; done
	for page in $(PAGES:man/%=%); do \
		$(INSTALL) -D -m 644 man/$$page $(DESTDIR)$(MANDIR)/$$page || exit 1; done

install-programs: programs
	$(INSTALL) -d $(addprefix $(DESTDIR),$(BINDIR) $(RUNDIR))
	$(INSTALL) -m 755 $(OUT)/upoll $(DESTDIR)$(BINDIR)/upoll
	$(INSTALL) -m 755 $(addprefix $(OUT)/,$(LIBRARIES)) $(DESTDIR)$(RUNDIR)
	$(INSTALL) -D -m 644 $(OUT)/upoll.bash $(DESTDIR)$(BASHDIR)/upoll
	$(INSTALL) -D -m 644 $(OUT)/upoll.zsh $(DESTDIR)$(ZSHDIR)/_upoll
	$(INSTALL) -D -m 644 $(OUT)/upoll.fish $(DESTDIR)$(FISHDIR)/upoll.fish
	$(INSTALL) -d $(DESTDIR)$(MANDIR)/man1
	$(INSTALL) -m 644 $(addprefix $(OUT)/,$(COMMAND_PAGES)) $(DESTDIR)$(MANDIR)/man1

install-debug: all
	for file in $(SONAME) $(PROGRAMS); do \
		id=$$($(READELF) --notes $(OUT)/$$file | sed -n 's/^ *Build ID: //p'); \
		[ -n "$$id" ] || { echo "$$file has no build ID: its debug information is left out" >&2; continue; }; \
		$(INSTALL) -D -m 644 $(OUT)/$$file.debug \
			$(DESTDIR)$(DEBUGDIR)/.build-id/$$(echo $$id | cut -c 1-2)/$$(echo $$id | cut -c 3-).debug || exit 1; done

deb: all
	ci/deb

uninstall:
	rm -f $(DESTDIR)$(INCLUDEDIR)/upoll.h $(DESTDIR)$(LIBDIR)/pkgconfig/upoll.pc
	rm -f $(DESTDIR)$(CMAKEDIR)/upoll-config.cmake $(DESTDIR)$(CMAKEDIR)/upoll-config-version.cmake
	rm -f $(DESTDIR)$(DATADIR)/valgrind.supp
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,libupoll.a libupoll.so $(SONAME))
	rm -f $(DESTDIR)$(BINDIR)/upoll $(addprefix $(DESTDIR)$(RUNDIR)/,$(LIBRARIES))
	rm -f $(DESTDIR)$(BASHDIR)/upoll $(DESTDIR)$(ZSHDIR)/_upoll $(DESTDIR)$(FISHDIR)/upoll.fish
	rm -f $(addprefix $(DESTDIR)$(MANDIR)/,$(PAGES:man/%=%) $(addprefix man3/,$(LINK_NAMES)) $(addprefix man1/,$(COMMAND_PAGES)))

.PHONY: all lib programs always install install-lib install-man install-programs install-debug deb uninstall
# Half a file is not taken for a new one.
.DELETE_ON_ERROR:
