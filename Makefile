# libupoll, the C library, and its installation. Needs cargo, a C compiler and GNU make.
#
#   make && make install PREFIX=/usr DESTDIR=/tmp/stage

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share/upoll
MANDIR ?= $(PREFIX)/share/man
DESTDIR ?=
CC ?= cc
CARGO ?= cargo
INSTALL ?= install

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
SONAME := libupoll.so.0
CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR
OUT := $(CARGO_TARGET_DIR)/capi
ARCHIVE := $(CARGO_TARGET_DIR)/release/libupoll_c.a
# What a static library of Rust's needs of the system.
PRIVATE_LIBS := -lgcc_s -lpthread -ldl -lm

all: $(OUT)/libupoll.a $(OUT)/$(SONAME)

# Cargo knows best whether there is anything to do.
$(ARCHIVE): always
	$(CARGO) build --release --locked --quiet -p upoll-capi --lib

$(OUT)/libupoll.a: $(ARCHIVE)
	@mkdir -p $(OUT)
	cp $< $@

$(OUT)/$(SONAME): $(ARCHIVE) crates/upoll-capi/upoll.map
	@mkdir -p $(OUT)
	$(CC) -shared -o $@ -Wl,-soname,$(SONAME) -Wl,--version-script=crates/upoll-capi/upoll.map \
		-Wl,--gc-sections -Wl,-z,defs -Wl,-z,nodelete $(LDFLAGS) \
		$(addprefix -Wl$(comma)-u$(comma),$(SYMBOLS)) $(ARCHIVE) $(PRIVATE_LIBS)
	ln -sf $(SONAME) $(OUT)/libupoll.so

comma := ,
SYMBOLS := $(shell sed -n 's/^\t\t\(upoll_.*\);/\1/p' crates/upoll-capi/upoll.map)

PAGES := $(wildcard man/man[1-9]/*)
# A page has a link for each other name that it is about, as PAGE=NAME. Calls that the C library does
# not have are found by their plain names, too; its own keep their pages.
LINKS := $(shell cd man/man3 && for page in *.3; do \
	sed -n "/^\.Nm $${page%.3}\>/d; s/^\.Nm \([A-Za-z0-9_]*\).*/$$page=\1.3/p" $$page; done) \
	$(foreach name,epoll_ctl_batch epoll_pwait1,upoll_$(name).3=$(name).3)
LINK_NAMES := $(foreach link,$(LINKS),$(lastword $(subst =, ,$(link))))

install: all
	$(INSTALL) -d $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(DATADIR)
	$(INSTALL) -m 644 crates/upoll-capi/valgrind.supp $(DESTDIR)$(DATADIR)/valgrind.supp
	$(INSTALL) -m 644 include/upoll.h $(DESTDIR)$(INCLUDEDIR)/upoll.h
	$(INSTALL) -m 644 $(OUT)/libupoll.a $(DESTDIR)$(LIBDIR)/libupoll.a
	$(INSTALL) -m 755 $(OUT)/$(SONAME) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libupoll.so
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|' \
		-e 's|@VERSION@|$(VERSION)|; s|@PRIVATE_LIBS@|$(PRIVATE_LIBS)|' \
		crates/upoll-capi/upoll.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/upoll.pc
	for link in $(LINKS); do \
		$(INSTALL) -d $(DESTDIR)$(MANDIR)/man3 && \
		echo ".so man3/$${link%%=*}" > $(DESTDIR)$(MANDIR)/man3/$${link#*=} || exit 1; done
	for page in $(PAGES:man/%=%); do \
		$(INSTALL) -D -m 644 man/$$page $(DESTDIR)$(MANDIR)/$$page || exit 1; done

uninstall:
	rm -f $(DESTDIR)$(INCLUDEDIR)/upoll.h $(DESTDIR)$(LIBDIR)/pkgconfig/upoll.pc
	rm -f $(DESTDIR)$(DATADIR)/valgrind.supp
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,libupoll.a libupoll.so $(SONAME))
	rm -f $(addprefix $(DESTDIR)$(MANDIR)/,$(PAGES:man/%=%) $(addprefix man3/,$(LINK_NAMES)))

.PHONY: all always install uninstall
