# What the packages have in common: sourced by deb.sh and lab-deb.sh once they have set here, version and arch. It makes tree.

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 0755 "$tree"
umask 022

# licences PACKAGE: its copyright file.
licences() {
	mkdir -p "$tree/usr/share/doc/$1"
	cat "$here/../LICENSE-MIT" "$here/../LICENSE-APACHE" "$here/../kernel/src/bpf/LICENSE-GPL-2.0" >"$tree/usr/share/doc/$1/copyright"
}

# reference NAME BINARY: man pages and shell completions of the program of this name.
reference() {
	name=$1
	"$2" generate "$tree/generated"
	mkdir -p "$tree/usr/share/man/man1"
	gzip -9n "$tree"/generated/man/*.1
	mv "$tree"/generated/man/*.1.gz "$tree/usr/share/man/man1/"
	for to in "bash-completion/completions/$name:$name.bash" "zsh/vendor-completions/_$name:_$name" \
		"fish/vendor_completions.d/$name.fish:$name.fish"; do
		install -D -m 0644 "$tree/generated/completions/${to#*:}" "$tree/usr/share/${to%%:*}"
	done
	rm -r "$tree/generated"
}

# build PACKAGE OUTPUT_DIRECTORY
build() {
	mkdir -p "$2"
	dpkg-deb --root-owner-group --build "$tree" "$2/$1_${version}_$arch.deb"
}
