#!/bin/sh
# Builds justitia_VERSION_ARCH.deb from a directory of built programs: packaging/deb.sh DIRECTORY OUTPUT_DIRECTORY. Man pages
# and completions are written by justitia-lab, which is in no package but its own.
set -eu
programs=$1 out=$2
binary=$programs/justitia
here=$(cd "$(dirname "$0")" && pwd)
version=$("$binary" --version | cut -d' ' -f2)
arch=$(dpkg --print-architecture)
. "$here/tree.sh"

install -D -m 0755 -s "$binary" "$tree/usr/bin/justitia"
for unit in justitia justitia-cache justitia-guest justitia-host; do
	install -D -m 0644 "$here/$unit.service" "$tree/lib/systemd/system/$unit.service"
done
install -D -m 0644 "$here/60-justitia-guest.rules" "$tree/lib/udev/rules.d/60-justitia-guest.rules"
for file in grafana.json alerts.yml cache-alerts.yml; do
	install -D -m 0644 "$here/$file" "$tree/usr/share/justitia/$file"
done
# The documents, at the places where they name each other.
for document in README.md SPECIFICATION.md CONTRIBUTING.md CHANGELOG.md docs cache/README.md kernel/src/bpf/README.md; do
	to=$tree/usr/share/doc/justitia/$document
	mkdir -p "$(dirname "$to")"
	cp -r "$here/../$document" "$to"
done
chmod -R u=rwX,go=rX "$tree/usr/share/doc/justitia"
licences justitia
reference justitia
mkdir -p "$tree/etc/justitia/justitia.toml.d"
install -m 0644 "$here/justitia.toml" "$tree/etc/justitia/justitia.toml"

mkdir "$tree/DEBIAN"
echo /etc/justitia/justitia.toml >"$tree/DEBIAN/conffiles"
# The C library's version that the binary was linked against is the oldest that it runs on.
libc=$(objdump -T "$binary" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sed s/GLIBC_// | sort -V | tail -1)
cat >"$tree/DEBIAN/control" <<EOF
Package: justitia
Version: $version
Architecture: $arch
Maintainer: The Justitia developers <justitia@localhost>
Depends: libc6${libc:+ (>= $libc)}, libgcc-s1, libelf1, zlib1g
Section: admin
Priority: optional
Installed-Size: $(du -sk "$tree" | cut -f1)
Description: I/O weights that hold for what applications see
 Makes cgroup I/O weights hold through the page cache, on a stock kernel.
 Observes by eBPF what every tenant's applications get, and moves memory.low
 and memory.reclaim so that what is cached follows the weights.
 A hypervisor cache serves disks of virtual machines by weight.
EOF
cat >"$tree/DEBIAN/postinst" <<'EOF'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# An upgrade goes on with what ran; a first installation waits to be asked: `systemctl enable --now justitia`. The
	# cache executes its new program, which VMs do not notice. Clients with TLS would: with them it goes on as it is.
	if [ -n "$2" ]; then
		systemctl try-restart justitia.service justitia-guest.service justitia-host.service
		if systemctl --quiet is-active justitia-cache.service; then
			if grep -Eq '^[[:space:]]*(\[[[:space:]]*)?tls' /etc/justitia/cache.toml; then
				echo "justitia: justitia-cache goes on with the program from before, since its clients may use TLS" \
					"and would be cut off. For the new one: systemctl restart justitia-cache" >&2
			else
				systemctl kill --kill-who=main -s USR2 justitia-cache.service
			fi
		fi
	fi
fi
EOF
cat >"$tree/DEBIAN/prerm" <<'EOF'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
	systemctl disable --now justitia.service justitia-cache.service justitia-guest.service justitia-host.service
fi
# However the agent was started: restore what a killed agent has left, while the program is still installed. A failure says
# why, and the journal stays for the next try.
if [ "$1" = remove ] && [ -e /run/justitia/ledger ]; then justitia reset || true; fi
if [ "$1" = remove ] && [ -e /run/justitia/host/balloons ]; then justitia host reset || true; fi
EOF
cat >"$tree/DEBIAN/postrm" <<'EOF'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ "$1" = purge ]; then
	rm -rf /etc/justitia
	# Without the journal nobody could restore the knobs that it names. It goes at the next boot, and they with it.
	if [ -e /run/justitia/ledger ]; then
		echo "justitia: knobs are still set, see /run/justitia/ledger, which is kept. To restore them, install justitia again" \
			"and run 'justitia reset'." >&2
	else
		rm -rf /run/justitia
	fi
fi
EOF
chmod 0755 "$tree"/DEBIAN/postinst "$tree"/DEBIAN/prerm "$tree"/DEBIAN/postrm
build justitia "$out"
