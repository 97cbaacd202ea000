#!/bin/sh
# Builds justitia-lab_VERSION_ARCH.deb, the lab, from a directory of built programs: packaging/lab-deb.sh DIRECTORY
# OUTPUT_DIRECTORY. It runs the programs of the package justitia in its virtual machines, and that has its documents.
set -eu
programs=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd)
version=$("$programs/justitia-lab" --version | cut -d' ' -f2)
arch=$(dpkg --print-architecture)
. "$here/tree.sh"

for program in justitia-lab justitia-lab-guest justitia-load; do
	install -D -m 0755 -s "$programs/$program" "$tree/usr/bin/$program"
done
licences justitia-lab
reference justitia-lab

mkdir "$tree/DEBIAN"
cat >"$tree/DEBIAN/control" <<EOF
Package: justitia-lab
Version: $version
Architecture: $arch
Maintainer: The Justitia developers <justitia@localhost>
Depends: justitia (= $version), libc6, libgcc-s1, libelf1, zlib1g, qemu-system-x86, busybox-static, fio, kmod, util-linux,
 dmsetup, xfsprogs, e2fsprogs, xz-utils, binutils, strace
Section: admin
Priority: optional
Installed-Size: $(du -sk "$tree" | cut -f1)
Description: experiments with I/O weights on stock kernels in virtual machines
 Boots stock kernels in QEMU, runs tenants there with and without Justitia, and
 reports what their applications get. Benches of the hypervisor cache.
 Its guide is /usr/share/doc/justitia/docs/guide/lab.md.
EOF
build justitia-lab "$out"
