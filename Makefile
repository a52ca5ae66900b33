# What one types: `make demo`, `make test`, `make bench`; each works alone on a fresh clone of a machine with Rust,
# Python 3.11, a C compiler and make, and sets up what it needs inside the clone (target/, .venv/, out/).

CARGO ?= cargo
PREFIX ?= /usr/local
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
FOREBAY := $(TARGET)/release/forebay
STATIC_TARGET ?= $(shell uname -m)-unknown-linux-gnu
# SMALL=1 gives a demo of a second, BUILT=1 takes the command that is there: for tests.
DEMO_WORKFLOW := examples/gray-scott/workflow$(if $(SMALL),-small).toml

.DEFAULT_GOAL := help
.PHONY: help demo lab test test-all soak test-dax bench wheel static docs install clean

help:
	@echo 'make demo             couple the Gray-Scott simulation with its analytics, write a report'
	@echo 'make lab              the programs and benchmarks of the studies: forebay bench, forebay app'
	@echo 'make test             build the product, and run every test of it once'
	@echo 'make test-all         what takes longer; CI runs it after make test'
	@echo 'make soak             the same with many more rounds, and sanitizers: hours'
	@echo 'make test-dax         tests on persistent memory, memory nodes and sockets, in an emulated machine'
	@echo 'make bench            put and the coupled stream beside libpmem, ADIOS2 SST and a file per object'
	@echo 'make wheel            the Python package with the command inside: target/wheels'
	@echo 'make static           the command as one static file'
	@echo 'make docs             the book: target/book (needs mdbook; docs/src reads well without)'
	@echo 'make install PREFIX=  command, C library, header, completions, man pages; LAB=1, AGENT=1: lab, agent, too'
	@echo 'make clean            everything that was built'

# Without object stores, whose HTTP and TLS take a third of the build. The last line is the path of the report, relative
# to the clone.
demo:
ifndef BUILT
	@echo 'building the forebay command and the demo (the first time takes minutes)' >&2
	@$(CARGO) build --release --quiet --package forebay-cli --package gray-scott --no-default-features
endif
	@PATH="$(abspath $(TARGET))/release:$$PATH" $(FOREBAY) run $(DEMO_WORKFLOW) \
	  --out runs/demo-$$(date +%Y%m%d-%H%M%S)-$$$$ --report --open

# forebay finds it beside itself.
lab:
	@$(CARGO) build --release --package forebay-cli --package forebay-lab

test:
	@$(CARGO) xtask ci

test-all:
	@$(CARGO) xtask ci --all

soak:
	@$(CARGO) xtask ci --long

# As root it installs the emulator and what the machine in it uses.
test-dax:
	@$(CARGO) xtask dax-machine --tests $(if $(filter 0,$(shell id -u)),--install)

# Fetches what the other systems need; BENCH_ARGUMENTS= measures only what is there.
BENCH_ARGUMENTS ?= --install
bench:
	@$(CARGO) xtask bench put $(BENCH_ARGUMENTS)

wheel:
	@$(CARGO) xtask wheel

static:
	RUSTFLAGS='-C target-feature=+crt-static' $(CARGO) build --release --package forebay-cli \
	  --target $(STATIC_TARGET) --target-dir $(TARGET)/static
	@echo '$(TARGET)/static/$(STATIC_TARGET)/release/forebay'

docs:
	@if command -v mdbook >/dev/null; then mdbook build docs; \
	else echo 'mdbook is not installed (cargo install mdbook); read docs/src/SUMMARY.md instead'; fi

install:
	$(CARGO) build --release --package forebay-cli --package forebay-capi --package forebay-mem \
	  $(if $(LAB),--package forebay-lab) $(if $(AGENT),--package forebay-cluster)
	packaging/place.sh $(FOREBAY) $(DESTDIR)$(PREFIX)/bin/forebay
	$(if $(LAB),packaging/place.sh $(TARGET)/release/forebay-lab $(DESTDIR)$(PREFIX)/bin/forebay-lab)
	$(if $(AGENT),packaging/place.sh $(TARGET)/release/forebay-agent $(DESTDIR)$(PREFIX)/bin/forebay-agent)
	packaging/place.sh $(TARGET)/release/libforebay_mem.so $(DESTDIR)$(PREFIX)/lib/libforebay_mem.so
	crates/capi/install.sh $(PREFIX) $(TARGET)/release
	mkdir -p $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	$(FOREBAY) man $(DESTDIR)$(PREFIX)/share/man/man1
	$(FOREBAY) completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/forebay

clean:
	rm -rf target out runs .venv
