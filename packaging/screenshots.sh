#!/bin/sh
# The README's pictures, from what the programs show: packaging/screenshots.sh
#   docs/top.svg      `justitia top` over a recording that is made in a guest: four containers under pressure
#   docs/report.png   the lab's report (`make demo` makes it), by chromium
# BIN is where the programs lie (target/release), LAB where the lab keeps its files.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
bin=${BIN:-$here/target/release}
lab=${JUSTITIA_LAB_DIR:-${bin%/*}/lab}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$bin/examples/sh" '
	mkdir -p /data /run/lab && mount /dev/vda /data || exit 1
	C=/sys/fs/cgroup; weight=100
	mkdir $C/shop.slice && echo "+memory +io" >$C/shop.slice/cgroup.subtree_control || exit 1
	for t in batch.scope search.scope api.scope db.scope; do
		mkdir $C/shop.slice/$t && echo $weight >$C/shop.slice/$t/io.weight || exit 1
		weight=$((weight * 2))
		truncate -s 300M /data/$t
		sh -c "echo \$\$ >$C/shop.slice/$t/cgroup.procs; while :; do cat /data/$t >/dev/null; sleep 0.1; done" >/dev/null 2>&1 &
	done
	justitia run >/run/agent.log 2>&1 &
	sleep 8
	sh -c "while :; do dd if=/dev/zero of=/data/backup bs=1M count=300 2>/dev/null; sleep 1; done" >/dev/null 2>&1 &
	justitia record --seconds 25 /run/recording && base64 /run/recording' >"$work/recording.txt"
base64 -d "$work/recording.txt" >"$work/recording"
"$bin/examples/picture" "$work/recording" >"$work/top.svg"
mv "$work/top.svg" "$here/docs/top.svg"

if [ -e "$lab/report.html" ]; then
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/chromium" \
		--window-size=1000,900 --screenshot="$work/report.png" "file://$lab/report.html" 2>/dev/null
	mv "$work/report.png" "$here/docs/report.png"
else
	echo "no $lab/report.html: run \`make demo\` first for a picture of the report" >&2
fi
