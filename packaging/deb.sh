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

product "$binary"

mkdir "$tree/DEBIAN"
printf '%s\n' /etc/justitia/justitia.toml /etc/justitia/cache.toml >"$tree/DEBIAN/conffiles"
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
# What they do is in files of their own, which the other package has, too. An upgrade is configured after another version.
cat >"$tree/DEBIAN/postinst" - "$here/after-install.sh" <<'EOF'
#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
upgrade=$2
EOF
cat >"$tree/DEBIAN/prerm" - "$here/before-removal.sh" <<'EOF'
#!/bin/sh
set -e
[ "$1" = remove ] || exit 0
EOF
cat >"$tree/DEBIAN/postrm" <<'EOF'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ "$1" = purge ]; then
	rm -rf /etc/justitia
	# Without the journals nobody could restore the knobs and the balloons that they name. They go at the next boot, and what
	# they name with them.
	if [ -e /run/justitia/ledger ] || [ -e /run/justitia/host/balloons ]; then
		echo "justitia: knobs are still set, or balloons changed: see /run/justitia/ledger and /run/justitia/host/balloons, which are" \
			"kept. To restore them, install justitia again and run 'justitia reset' and 'justitia host reset'." >&2
	else
		rm -rf /run/justitia
	fi
fi
EOF
chmod 0755 "$tree"/DEBIAN/postinst "$tree"/DEBIAN/prerm "$tree"/DEBIAN/postrm
build justitia "$out"
