#!/bin/sh
# The README's pictures, from what the programs show: packaging/screenshots.sh
#   docs/top.svg      `justitia top` over a recording that is made in a guest: four containers that read and write
#                     more than the page cache holds, on a disk that they wait for
#   docs/report.png   the head of the lab's report about re-reading (`make demo` measures it), by chromium
# BIN is where the programs lie (the release build), JUSTITIA_LAB_DIR where the lab keeps its files.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
bin=${BIN:-${CARGO_TARGET_DIR:-$here/target}/release}
lab=${JUSTITIA_LAB_DIR:-${bin%/*}/lab}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$bin/examples/sh" '
	mkdir -p /data /etc/justitia && mount /dev/vda /data || exit 1
	printf "[io]\nenabled = true\n" >/etc/justitia/justitia.toml
	C=/sys/fs/cgroup; weight=100
	mkdir $C/shop.slice && echo "+memory +io" >$C/shop.slice/cgroup.subtree_control || exit 1
	for t in batch search api db; do
		mkdir $C/shop.slice/$t.scope && echo $weight >$C/shop.slice/$t.scope/io.weight || exit 1
		weight=$((weight * 2))
		dd if=/dev/zero of=/data/$t bs=1M count=400 2>/dev/null || exit 1
	done
	sync; echo 3 >/proc/sys/vm/drop_caches
	for t in batch search api db; do
		sh -c "echo \$\$ >$C/shop.slice/$t.scope/cgroup.procs; exec fio --name=$t --filename=/data/$t --size=400m --bs=64k --rw=randrw \
			--rwmixread=90 --ioengine=psync --thread --numjobs=2 --time_based --runtime=600" >/dev/null 2>&1 &
	done
	justitia run >/run/agent.log 2>&1 &
	sleep 130
	justitia record --seconds 30 /run/recording && base64 /run/recording' >"$work/recording.txt"
base64 -d "$work/recording.txt" >"$work/recording"
"$bin/examples/picture" "$work/recording" >"$work/top.svg"
mv "$work/top.svg" "$here/docs/top.svg"

# The newest kernel's.
results=$(find "$lab/results" -name 'reread-x4@*.json' 2>/dev/null | sort -V | tail -n 1)
if [ -n "$results" ]; then
	mkdir "$work/results"
	cp "$results" "$work/results/"
	"$bin/justitia-lab" report --results "$work/results" --out "$work/report.html"
	chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars --user-data-dir="$work/chromium" \
		--window-size=1000,1440 --screenshot="$work/report.png" "file://$work/report.html" 2>/dev/null
	mv "$work/report.png" "$here/docs/report.png"
else
	echo "no results of reread-x4 in $lab/results: run \`make demo\` first for a picture of the report" >&2
fi
