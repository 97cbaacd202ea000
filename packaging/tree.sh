# Functions of all packages: sourced by deb.sh, lab-deb.sh and dist.sh once they have set here, programs, version and arch.
# It makes the directory tree.

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 0755 "$tree"
umask 022

# licences PACKAGE: its copyright file.
licences() {
	mkdir -p "$tree/usr/share/doc/$1"
	cat "$here/../LICENSE-MIT" "$here/../LICENSE-APACHE" "$here/../kernel/src/bpf/LICENSE-GPL-2.0" >"$tree/usr/share/doc/$1/copyright"
}

# reference NAME: man pages and shell completions of the program of this name.
reference() {
	name=$1
	"$programs/justitia-lab" generate "$tree/generated"
	mkdir -p "$tree/usr/share/man/man1"
	for page in "$tree/generated/man"/*.1; do
		case ${page##*/} in
		justitia-lab*) of=justitia-lab ;;
		*) of=justitia ;;
		esac
		[ "$of" != "$name" ] || gzip -9nc "$page" >"$tree/usr/share/man/man1/${page##*/}.gz"
	done
	for to in "bash-completion/completions/$name:$name.bash" "zsh/vendor-completions/_$name:_$name" \
		"fish/vendor_completions.d/$name.fish:$name.fish"; do
		install -D -m 0644 "$tree/generated/completions/${to#*:}" "$tree/usr/share/${to%%:*}"
	done
	rm -r "$tree/generated"
}

# product PROGRAM: the files of the product, the program stripped.
product() {
	install -D -m 0755 -s "$1" "$tree/usr/bin/justitia"
	for unit in justitia justitia-cache justitia-guest justitia-host; do
		install -D -m 0644 "$here/$unit.service" "$tree/lib/systemd/system/$unit.service"
	done
	install -D -m 0644 "$here/60-justitia-guest.rules" "$tree/lib/udev/rules.d/60-justitia-guest.rules"
	for file in grafana.json alerts.yml cache-alerts.yml; do
		install -D -m 0644 "$here/$file" "$tree/usr/share/justitia/$file"
	done
	# The documents, and what they lead to, at the places where they name each other.
	for document in README.md SPECIFICATION.md CONTRIBUTING.md CHANGELOG.md docs cache/README.md lab/experiments \
		kernel/src/bpf/README.md kernel/src/bpf/LICENSE-GPL-2.0; do
		to=$tree/usr/share/doc/justitia/$document
		mkdir -p "$(dirname "$to")"
		cp -r "$here/../$document" "$to"
	done
	chmod -R u=rwX,go=rX "$tree/usr/share/doc/justitia"
	licences justitia
	reference justitia
	mkdir -p "$tree/etc/justitia/justitia.toml.d"
	for file in justitia.toml cache.toml; do
		install -m 0644 "$here/$file" "$tree/etc/justitia/$file"
	done
}

# build PACKAGE OUTPUT_DIRECTORY
build() {
	mkdir -p "$2"
	dpkg-deb --root-owner-group --build "$tree" "$2/$1_${version}_$arch.deb"
}
