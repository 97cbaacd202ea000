# Functions of both packages: sourced by deb.sh and lab-deb.sh once they have set here, programs, version and arch. It makes
# the directory tree.

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

# build PACKAGE OUTPUT_DIRECTORY
build() {
	mkdir -p "$2"
	dpkg-deb --root-owner-group --build "$tree" "$2/$1_${version}_$arch.deb"
}
