# Two commands: `make demo` shows what Justitia does, `make test` checks what every change must keep; the other
# targets check more.
# Both install what they need (see `deps`) and run as root or with sudo.

CARGO ?= cargo
SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)
JUSTITIA := $(or $(CARGO_TARGET_DIR),target)/release/justitia
# Named, so that the flags for a static program are not those of build scripts.
STATIC := $(shell uname -m)-unknown-linux-gnu
EXPERIMENTS := $(or $(CARGO_TARGET_DIR),target)/cache-experiments

# What each is for:
#   clang, llvm, libelf-dev, zlib1g-dev, make, pkg-config     the eBPF probes: compiler, and what libbpf
#                        is built from
#   qemu-system-x86, busybox-static, fio, kmod, util-linux, dmsetup, xfsprogs, btrfs-progs, e2fsprogs, xz-utils,
#   binutils, strace     the lab's virtual machines: QEMU, the guest's tools and its file systems
#   libnbd-bin, python3-libnbd, nbdkit, qemu-utils     NBD clients for the cache's tests, a slow disk, and servers to
#                        compare it with (over vhost-user-blk qemu-storage-daemon, of qemu-system-common)
#   nbd-client     attaches the guest kernel's own NBD client to the cache
#   mmdebstrap     a small Debian with systemd, in which the package is tested, and one with databases
#   libvirt-clients, libxml2-utils     virt-xml-validate: the XML of the guide
#   prometheus     promtool, and a real scrape of the metrics
PACKAGES := clang llvm libelf-dev zlib1g-dev make pkg-config \
	qemu-system-x86 busybox-static fio kmod util-linux dmsetup xfsprogs btrfs-progs e2fsprogs xz-utils \
	binutils strace libnbd-bin python3-libnbd nbd-client nbdkit qemu-utils prometheus mmdebstrap \
	libvirt-clients libxml2-utils

# Tests that boot virtual machines and take minutes; `make test` runs the shorter of them.
VM_TESTS := agent_ cache_vm:: cache_devices:: power_loss:: probes_agent:: recharge::

# Tests of memory between virtual machines.
VMS_TESTS := guest_memory:: host_memory::

# The mixtures of ordinary hosts, and how often each configuration of each runs: make ordinary MIXTURES='slab burst' REPEAT=3
MIXTURES :=
REPEAT := 1

# Crates with fuzz targets. `make check` compiles these with the stable compiler; to run them takes a nightly one.
FUZZED := kernel cache guest-protocol runtimes

.PHONY: help deps build build-tests demo ordinary test lint check test-vm test-guest test-vms test-databases test-seeds sim test-sanitizer test-probes test-package test-runtimes dist soak screenshots reference fuzz-short cache-experiments

help:
	@echo 'make demo        a stock kernel in a VM, conventional against Justitia: a table and target/lab/report.html'
	@echo 'make test        formatting, lints, and all tests, with a short one in a VM of each part'
	@echo 'make build       release build'
	@echo 'make check       formatting, lints, and checks of the sources and documents (checks/)'
	@echo 'make ordinary    mixtures of ordinary hosts, the kernel alone against Justitia, in VMs: one table; two hours and more'
	@echo 'make test-vm     the agent and the cache in VMs, all of it: half an hour'
	@echo 'make test-guest  guests that put what they evict, in VMs: minutes'
	@echo 'make test-vms    memory between VMs, end to end: minutes'
	@echo 'make test-databases   Redis, MariaDB and PostgreSQL in a guest that puts: three quarters of an hour'
	@echo 'make test-seeds  the simulated hosts of the planners, with hundreds of seeds each: minutes'
	@echo 'make sim         device bandwidth on a model of disks and page cache: tables'
	@echo 'make test-sanitizer   the cache'"'"'s tests under AddressSanitizer'
	@echo 'make test-probes   the eBPF probes against the truth, on every filesystem and kernel: minutes'
	@echo 'make test-package  the Debian package under a real systemd in a VM: minutes'
	@echo 'make test-runtimes  Docker, podman, units and reloads under a real systemd in VMs; half an hour'
	@echo 'make cache-experiments   DoubleDecker'"'"'s experiments with the cache, natively: minutes, and a page of results'
	@echo 'make dist        what is released, in target/dist: .deb, .rpm, tarball, OCI image, SBOM, checksums'
	@echo 'make soak        two hours of kills, churn and faults in a VM; SOAK_MINUTES=10 for less'
	@echo 'make screenshots   docs/top.svg and docs/report.png anew, from what the programs show'
	@echo 'make reference   docs/reference anew, from the definitions in the code'
	@echo 'make fuzz-short  the parsers against random input, a minute each'
	@echo 'make deps        installs the packages that these need'

# One call of the package manager, and none when everything is there.
deps:
	@missing=; for package in $(PACKAGES); do \
		dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ]; then \
		echo "installing what the lab's virtual machines and the tests need:$$missing"; \
		$(SUDO) apt-get update -q && \
		$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing; \
	fi

build:
	$(CARGO) build --release --workspace --bins

demo: deps build
	$(JUSTITIA)-lab run reread-x4 --configuration conventional,justitia --repeat 3
	$(JUSTITIA)-lab run writers-x4 --configuration conventional,justitia+io --repeat 1
	$(JUSTITIA)-lab report

ordinary: deps build
	$(JUSTITIA)-lab ordinary $(MIXTURES) --repeat $(REPEAT)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

check: lint
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps
	$(CARGO) test -p justitia-checks
	$(CARGO) test --workspace --doc
	for crate in $(FUZZED); do \
		$(CARGO) check --manifest-path $$crate/fuzz/Cargo.toml --target-dir target/fuzz || exit 1; \
	done
	@if $(CARGO) machete --version >/dev/null 2>&1; then \
		$(CARGO) machete; \
	else \
		echo 'cargo-machete is not installed: dependencies that nothing uses are not looked for'; \
	fi
	@if ! $(CARGO) deny --version >/dev/null 2>&1; then \
		echo 'cargo-deny is not installed: licences, versions and advisories of dependencies are not checked'; \
	elif ! $(CARGO) deny check licenses bans sources; then \
		exit 1; \
	elif ! $(CARGO) deny fetch db; then \
		echo 'the database of advisories cannot be had: advisories of dependencies are not checked'; \
	else \
		$(CARGO) deny check advisories; \
	fi

# The programs are built first: tests boot guests with them. With the tests, so that what both need is
# compiled once: tests ask some libraries for more, and alone the programs would get other builds of them.
build-tests: deps
	$(CARGO) build --workspace --bins --tests

# The checks of documents and sources run with the workspace's tests: alone, their libraries would be built once more.
test: deps lint build-tests
	$(CARGO) test --workspace --tests --no-fail-fast

test-guest: build-tests
	$(CARGO) test -p justitia-lab --test guests -- --include-ignored guest_puts::

test-vms: build-tests
	$(CARGO) test -p justitia-lab --no-fail-fast --test guests -- --include-ignored $(VMS_TESTS)

test-databases: build-tests
	$(CARGO) test -p justitia-lab --test guests -- --ignored --nocapture --test-threads=1 real_databases:: memory_split::

test-vm: build-tests
	$(CARGO) test -p justitia-lab --no-fail-fast --test guests -- --include-ignored $(VM_TESTS)

test-seeds:
	SEEDS=300 $(CARGO) test --release -p justitia-agent --test demand
	SEEDS=300 $(CARGO) test --release -p justitia-guest simulation
	SEEDS=300 $(CARGO) test --release -p justitia-host --test simulation
	SEEDS=600 $(CARGO) test --release -p justitia-cache --lib simulation
	SEEDS=100 $(CARGO) test --release -p justitia-cache --lib whatever_is_damaged

# Tables: the model beside recorded guests.
sim:
	$(CARGO) test -q -p justitia-plant --test recorded --test weights -- --nocapture --test-threads 1

# The cache under AddressSanitizer, whose runtime the stable compiler brings along. `--target`: build scripts are built
# without it.
# SIGBUS is the cache's to handle, and a fault that is not its ends the process by that signal, as a test expects.
test-sanitizer:
	ASAN_OPTIONS=handle_sigbus=0 RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address $(CARGO) test -p justitia-cache --lib \
		--target x86_64-unknown-linux-gnu --target-dir target/sanitizer

test-probes: build-tests
	$(CARGO) test -p justitia-lab --test probes -- --ignored --nocapture --test-threads=1

# What is released: a .deb, and statically linked an .rpm, a tarball and an OCI image; debug information, an SBOM, checksums.
dist: PACKAGES += rpm umoci
dist: deps build
	$(CARGO) cyclonedx --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-cyclonedx
	RUSTFLAGS='-C target-feature=+crt-static -L native=$(dir $(shell cc -print-file-name=libelf.a))' $(CARGO) build --release --target $(STATIC) -p justitia --features justitia-kernel/static
	packaging/dist.sh $(or $(CARGO_TARGET_DIR),target)/release $(or $(CARGO_TARGET_DIR),target)/$(STATIC)/release/justitia \
		$(or $(CARGO_TARGET_DIR),target)/dist

test-package: build-tests
	$(CARGO) test -p justitia-lab --test guests -- --ignored --nocapture --test-threads=1 package::

test-runtimes: build-tests
	$(CARGO) test -p justitia-lab --test guests -- --ignored --nocapture --test-threads=1 runtimes

# Data and a page of results; other delays, clocks and experiments of your own: justitia-lab cache experiment --help.
cache-experiments:
	$(CARGO) build --release -p justitia-lab --bins
	$(JUSTITIA)-lab cache experiment --results $(EXPERIMENTS)
	$(JUSTITIA)-lab report --results $(EXPERIMENTS) --out $(EXPERIMENTS)/report.html

soak: build-tests
	$(CARGO) test -p justitia-lab --test guests -- --ignored --nocapture soak::

# Needs chromium, and what `make demo` measured, for the report.
screenshots:
	$(CARGO) build --release -p justitia -p justitia-view -p justitia-lab --bins --examples
	packaging/screenshots.sh

# A test of the command line fails while they are out of date.
reference:
	$(CARGO) run -q -p justitia-lab --bin justitia-lab -- generate target/generated
	cp target/generated/reference/*.md docs/reference/

# Needs a nightly toolchain and `cargo install cargo-fuzz`.
fuzz-short:
	for crate in $(FUZZED); do \
		(cd $$crate && for target in $$($(CARGO) +nightly fuzz list); do \
			$(CARGO) +nightly fuzz run $$target -- -max_total_time=60 || exit 1; \
		done) || exit 1; \
	done
