# Of every package, before its files are removed.
if [ -d /run/systemd/system ]; then
	# Clients that are connected lose their disks.
	if systemctl --quiet is-active justitia-cache.service; then
		justitia cache stats 2>/dev/null |
			sed -nE 's/^[1-9][0-9]* (clients|front ends over vhost-user)$/justitia: & lose their disks: justitia-cache is stopped/p' >&2
	fi
	systemctl disable --now justitia.service justitia-cache.service justitia-guest.service justitia-host.service
fi
# However the agent was started: restore what a killed agent has left, while the program is still installed. A failure says
# why, and the journal stays for the next try.
if [ -e /run/justitia/ledger ]; then justitia reset || true; fi
if [ -e /run/justitia/host/balloons ]; then justitia host reset || true; fi
