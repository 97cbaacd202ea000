#!/bin/sh
# Builds what is released into a directory: packaging/dist.sh DIRECTORY STATIC OUTPUT_DIRECTORY. DIRECTORY holds the built
# programs, as for deb.sh; STATIC is the program justitia, linked statically: it is in what has to run on any distribution.
set -eu
programs=$1 static=$2 out=$3
here=$(cd "$(dirname "$0")" && pwd)
version=$("$static" --version | cut -d' ' -f2)
arch=$(uname -m)
stem=justitia-$version-$arch
. "$here/tree.sh"

rm -rf "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)
"$here/deb.sh" "$programs" "$out"

# Debug information is apart: `debuginfod`, gdb and perf find it by the program's build ID.
for of in "deb:$programs/justitia" "static:$static"; do
	objcopy --only-keep-debug --compress-debug-sections=zlib "${of#*:}" "$out/$stem-${of%%:*}.debug"
done

product "$static"
# On distributions with a merged /usr systemd and udev look there.
mv "$tree/lib" "$tree/usr/"
size=$(du -sk "$tree" | cut -f1)
stamp=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || date +%s)}
# packed FILE DIRECTORY [NAME]: a tar of the directory that is the same for the same content.
packed() { tar -C "$2" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$stamp" -caf "$1" "${3:-.}"; }

work=$(mktemp -d)
trap 'rm -rf "$tree" "$work"' EXIT
mkdir "$work/$stem"
cp -a "$tree/." "$work/$stem"
packed "$out/$stem.tar.gz" "$work" "$stem"

# The image: the program alone. It needs --privileged, and the host's /sys/fs/cgroup and process namespace.
umoci init --layout "$work/image"
umoci new --image "$work/image:$version"
umoci insert --rootless --image "$work/image:$version" "$tree/usr/bin/justitia" /usr/bin/justitia
umoci config --image "$work/image:$version" --config.entrypoint /usr/bin/justitia --config.cmd run \
	--config.label org.opencontainers.image.title=justitia --config.label "org.opencontainers.image.version=$version" \
	--config.label "org.opencontainers.image.licenses=(MIT OR Apache-2.0) AND GPL-2.0-only"
umoci gc --layout "$work/image"
packed "$out/$stem.oci.tar" "$work/image"

cat >"$work/justitia.spec" <<EOF
Name: justitia
Version: $version
Release: 1
Summary: I/O weights that hold for what applications see
License: (MIT OR Apache-2.0) AND GPL-2.0-only
URL: https://localhost/justitia
AutoReqProv: no
%define __os_install_post %{nil}
%define _build_id_links none
%description
Makes cgroup I/O weights hold through the page cache, on a stock kernel. Observes by eBPF what every tenant's applications get,
and moves memory.low and memory.reclaim so that what is cached follows the weights. A hypervisor cache serves disks of
virtual machines by weight. The program is linked statically.
%post
upgrade=\$([ "\$1" = 1 ] || echo yes)
$(cat "$here/after-install.sh")
%preun
[ "\$1" = 0 ] || exit 0
$(cat "$here/before-removal.sh")
%postun
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
%files
%config(noreplace) /etc/justitia/justitia.toml
%config(noreplace) /etc/justitia/cache.toml
%dir /etc/justitia
%dir /etc/justitia/justitia.toml.d
%doc /usr/share/doc/justitia
/usr/bin/justitia
/usr/lib/systemd/system/*
/usr/lib/udev/rules.d/*
/usr/share/justitia
/usr/share/man/man1/*
/usr/share/bash-completion/completions/*
/usr/share/zsh/vendor-completions/*
/usr/share/fish/vendor_completions.d/*
EOF
rpmbuild --quiet -bb --buildroot "$tree" --define "_topdir $work/rpm" --define "_rpmdir $out" --define "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
	--define "_binary_payload w9.xzdio" --noclean "$work/justitia.spec"

# What the program is made of: every package of the lock file that it links, with version, source and licence. The tool writes a
# file beside the manifest of each member of the workspace; names of this machine's directories are no part of a release.
root=$(cd "$here/.." && pwd)
cargo cyclonedx --quiet --manifest-path "$root/cli/Cargo.toml" --format json --spec-version 1.5 --override-filename "$stem.cdx" \
	--no-build-deps --target "$arch-unknown-linux-gnu"
sed "s#$root/##g; s#$root##g" "$root/cli/$stem.cdx.json" >"$out/$stem.cdx.json"
find "$root" -path "$root/target" -prune -o -name "$stem.cdx.json" -exec rm {} +

chmod 0644 "$out"/*
cd "$out"
sha256sum -- * >SHA256SUMS
echo "$size KiB installed; in $out:"
ls -l --block-size=KiB
